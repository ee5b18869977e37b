"""`autobyte testbed`, as a user types it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from beds import needs_namespaces

from autobyte.cli import run

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "160"}
QUICK = ("--hosts", "2", "--rate", "1Gbit", "--check", "off")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "autobyte", "testbed", *words]


def say(*words: str) -> tuple[int, str, str]:
    """Run a command; status, stdout and stderr come back."""
    done = subprocess.run(command(*words), capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def test_help_teaches() -> None:
    status, out, _ = say("run", "--help")
    assert status == 0
    assert "autobyte testbed run --hosts 4 --rate 1Gbit -- python train.py" in out
    assert "The exit status is the command's own" in " ".join(out.split())


@needs_namespaces
def test_run_shows_lines_with_ranks_and_passes_the_status_on() -> None:
    status, out, err = say("run", *QUICK, "--per-host", "2", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE")
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == [f"[{rank}] {rank} of 4" for rank in range(4)]
    script = "[ $RANK = 1 ] && { echo oh no; exit 7; }; sleep 60"
    status, out, err = say("run", *QUICK, "sh", "-c", script)  # the dashes can be left out
    assert status == 7
    assert out == "[1] oh no\n"
    assert err.splitlines()[-1] == "autobyte: rank 1 on host 1 ended with status 7: oh no"


@needs_namespaces
def test_run_ends_with_the_time() -> None:
    status, _, err = say("run", *QUICK, "--timeout", "300ms", "--", "sleep", "60")
    assert status == 124
    assert err == "autobyte: after 0.3 s still running, and ended: rank 0 on host 0, rank 1 on host 1\n"


@needs_namespaces
def test_run_prints_json_of_links_and_ranks() -> None:
    words = ("--hosts", "2", "--rate", "1Gbit", "--slow", "1:200Mbit:500Mbit", "--background", "50Mbit", "--json")
    status, out, _ = say("run", *words, "--", "sh", "-c", "echo $RANK; exit $RANK")
    summary = json.loads(out)
    assert (status, summary["status"]) == (1, 1)
    assert [link["rate_bytes_per_s"] for link in summary["links"]] == [1.25e8, 1.25e8, 2.5e7, 6.25e7]
    assert summary["ranks"][1] == {"rank": 1, "host": 1, "returncode": 1, "output": "1\n", "stopped": False}
    assert "emulated" in summary["what"]


@needs_namespaces
def test_check_prints_a_row_for_each_direction() -> None:
    status, out, _ = say("check", "--hosts", "2", "--rate", "500Mbit")
    rows = re.findall(r"host (\d) (up|down) +500 Mbit/s", out)
    assert rows == [("0", "up"), ("0", "down"), ("1", "up"), ("1", "down")]
    assert status == int("NO" in out)


@needs_namespaces
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_it_is_interrupted(number: int, tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/$RANK; sleep 600"
    with subprocess.Popen(command("run", *QUICK, "--", "sh", "-c", script), env=ENVIRONMENT) as running:
        deadline = time.monotonic() + 30
        while len(list(tmp_path.iterdir())) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        running.send_signal(number)
        assert running.wait(20) == 128 + number
    assert not list(Path("/run/netns").glob(f"autobyte-{running.pid}-*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--hosts", "1", "true"), "a testbed has 2 to 200 hosts, got 1"),
        (("run", "--rate", "fast", "true"), "cannot read rate 'fast'; write it like 10Gbit or 1.25GB/s"),
        (
            ("run", "--slow", "2", "true"),
            "cannot read --slow '2'; write it like 2:250Mbit, or 2:250Mbit:1Gbit for up",
        ),
        (("run", "--loss", "much", "true"), "cannot read loss 'much'; write it like 0.1% or 0.001"),
        (("run", "--scenario", "none.toml", "true"), "cannot read scenario none.toml"),
        (("run", "--timeout", "soon", "true"), "cannot read timeout 'soon'; write it like 2ms or 0.6s"),
        (("run",), "Missing argument 'command'"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], message: str) -> None:
    status, out, err = say(*words)
    assert (status, out) == (2, "")
    assert err.startswith(f"autobyte: {message}")
    assert err.count("\n") == 1


@needs_namespaces
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", *QUICK, "--slow", "4:1Mbit", "true"), "no host 4: a testbed of 2 has 0 to 1"),
        (("run", *QUICK, "no_such_command"), "cannot start 'no_such_command': No such file or directory"),
    ],
)
def test_bad_input_on_a_testbed_is_one_line(words: tuple[str, ...], message: str) -> None:
    assert say(*words) == (2, "", f"autobyte: {message}\n")


def test_what_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert run(["testbed", "run", *QUICK, "true"]) == 2
    assert capsys.readouterr().err == (
        "autobyte: the testbed needs root, to make network namespaces: run it with sudo\n"
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setitem(sys.modules, "pyroute2", None)
    assert run(["testbed", "run", *QUICK, "true"]) == 2
    assert capsys.readouterr().err == "autobyte: the testbed needs pyroute2: pip install 'autobyte[testbed]'\n"
