"""The congestion control inside the kernel: it keeps to rates that it is told, and what is missing is one line."""

import os
import platform
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from beds import needs_namespaces, needs_tun
from tcp_ends import connected, drain, sent_in

from autobyte.congestion.datapath import kernel
from autobyte.congestion.datapath.beside import run_told
from autobyte.congestion.datapath.kernel import NAME, RATES, paced_kernel
from autobyte.congestion.datapath.relay import Hop
from autobyte.congestion.link import SteadyPace
from autobyte.errors import AutoByteError

MISSING = [tool for tool in ("clang", "bpftool") if shutil.which(tool) is None]
needs_bpf = pytest.mark.skipif(
    os.geteuid() != 0 or bool(MISSING), reason=f"a BPF program needs root, clang and bpftool; missing: {MISSING}"
)
AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


@needs_bpf
def test_a_connection_keeps_to_the_rates_that_it_is_told_and_nothing_is_left() -> None:
    with paced_kernel() as rates, connected() as (sender, receiver):
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, NAME.encode())
        reader = drain(receiver)
        for rate in (20e6, 60e6, 5e6):
            rates.set_pace(sender, rate)
            sent_in(sender, 0.15)  # what is under way at the old rate
            assert 0.8 * rate < sent_in(sender, 0.4) / 0.4 < 1.1 * rate
        sender.close()
        reader.join(5.0)
        with pytest.raises(AutoByteError, match="another process has the kernel's 'autobyte'"), paced_kernel():
            pass
    assert NAME not in AVAILABLE.read_text().split()
    assert not RATES.exists()


@needs_bpf
def test_what_a_killed_process_left_in_the_kernel_is_replaced() -> None:
    code = f"import os; from {kernel.__name__} import paced_kernel as it; of = it(); of.__enter__(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert NAME in AVAILABLE.read_text().split()
    with paced_kernel():
        assert NAME in AVAILABLE.read_text().split()
    assert NAME not in AVAILABLE.read_text().split()


@needs_bpf
@needs_namespaces
@needs_tun
def test_losses_do_not_slow_the_kernel_down() -> None:
    told = run_told(Hop(1.25e6, 0.01, 100, loss=0.05, headers=0), SteadyPace(500.0), seconds=1.6)
    assert told.utilisation == pytest.approx(0.57, rel=0.15)  # 500 of 833 packets a second, less 5 %
    assert 0.02 < told.loss < 0.1


def test_an_old_kernel_is_refused_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "release", lambda: "5.15.0-91-generic")
    with pytest.raises(AutoByteError, match=r"needs Linux 6\.0, this is 5\.15\.0-91-generic"), paced_kernel():
        pass


def test_what_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "bpftool" else tool)
    with pytest.raises(AutoByteError, match="loaded by bpftool, and bpftool is missing"), paced_kernel():
        pass
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(AutoByteError, match="loading a BPF program needs root"), paced_kernel():
        pass
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: tool)
    monkeypatch.setattr(kernel, "LOCK", Path("/nowhere/lock"))
    with pytest.raises(AutoByteError, match="cannot lock /nowhere/lock: No such file"), paced_kernel():
        pass


def test_a_tool_that_fails_is_named_with_its_last_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: tool)
    monkeypatch.setattr(kernel, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(kernel, "RATES", tmp_path / "rates")

    def failing(words, **options):
        return subprocess.CompletedProcess(words, 1, "", "warning\nerror: unknown target 'bpf'\n\n")

    monkeypatch.setattr(subprocess, "run", failing)
    with pytest.raises(AutoByteError, match=r"^clang -O2 -g failed: error: unknown target 'bpf'$"), paced_kernel():
        pass
