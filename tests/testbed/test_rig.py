"""The rig: a launch of its own, ranks that hang, and a GPU that is not there."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from beds import GBIT, needs_namespaces

from autobyte.testbed import LaunchError, TestbedError
from autobyte.testbed.rig import Rig, python

REHEARSAL = Rig(2, GBIT, rehearse=True)


def test_without_a_gpu_there_is_none_to_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TestbedError, match="no GPU on this machine: nvidia-smi does not run"):
        Rig(2, GBIT).find()
    assert REHEARSAL.find() is None


def test_a_gpu_that_is_hidden_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(TestbedError, match="CUDA_VISIBLE_DEVICES is empty, so ranks see no GPU; unset it"):
        Rig(2, GBIT).find()


@needs_namespaces
def test_a_command_runs_on_every_host_and_is_heard() -> None:
    heard: list[tuple[int, str]] = []
    command = [sys.executable, "-c", "import os; print(os.environ['RANK'], os.environ['NCCL_SOCKET_IFNAME'])"]
    finished = REHEARSAL.run(command, limit_s=60, show=lambda rank, line: heard.append((rank, line)))
    assert [one.host for one in finished] == [0, 1]
    assert sorted(heard) == [(0, "0 eth0"), (1, "1 eth0")]


@needs_namespaces
def test_ranks_that_say_nothing_are_ended() -> None:
    began_s = time.monotonic()
    with pytest.raises(TestbedError, match="no rank has said anything for 1 s; ended"):
        REHEARSAL.run(["sleep", "577"], limit_s=60, stall_s=1.0)
    assert time.monotonic() - began_s < 30
    assert subprocess.run(["pgrep", "-f", "^sleep 577"], check=False, capture_output=True).stdout == b""


@needs_namespaces
def test_a_rank_that_fails_is_named() -> None:
    with pytest.raises(LaunchError, match="rank 1 on host 1 ended with status 3: oh no"):
        REHEARSAL.run(["sh", "-c", "[ $RANK = 0 ] && sleep 60; echo oh no; exit 3"], limit_s=60)


def test_modules_are_run_by_this_interpreter() -> None:
    assert python("autobyte.bench.rank", "x") == [sys.executable, "-m", "autobyte.bench.rank", "x"]
