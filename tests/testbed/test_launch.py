"""A command on every host: what ranks are told, what comes back, and that nothing is left when something fails."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from beds import alive

from autobyte.errors import InputError
from autobyte.testbed.launch import Finished, Launch, LaunchError, Seat, exit_status


def launch(command: list[str], *, ranks: int = 3, env: dict[str, str] | None = None) -> Launch:
    """Ranks on this machine, two on each host."""
    return Launch(command, [Seat(rank // 2, nullcontext) for rank in range(ranks)], master="127.0.0.1", env=env)


def run(script: str, *, ranks: int = 3, **how: float | bool) -> list[Finished]:
    with launch(["sh", "-c", script], ranks=ranks) as started:
        return started.wait(**how)  # type: ignore[arg-type]


def written(folder: Path) -> list[int]:
    """What ranks have written; one that was ended before it could is left out."""
    return [int(text) for file in folder.glob("*.pid") if (text := file.read_text())]


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    """A folder where ranks write the processes they start; in the end none of them runs."""
    yield tmp_path
    started = written(tmp_path)
    assert started
    deadline = time.monotonic() + 5
    while left := [pid for pid in started if alive(pid)]:
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.02)


def test_ranks_are_told_what_torchrun_tells_them() -> None:
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT"
    finished = run("echo " + " ".join(f"${name}" for name in names.split()))
    assert [one.output.split() for one in finished] == [
        ["0", "3", "0", "2", "0", "2", "127.0.0.1", "29500"],
        ["1", "3", "1", "2", "0", "2", "127.0.0.1", "29500"],
        ["2", "3", "0", "1", "1", "2", "127.0.0.1", "29500"],
    ]
    assert [(one.rank, one.host, one.returncode, one.stopped) for one in finished] == [
        (0, 0, 0, False),
        (1, 0, 0, False),
        (2, 1, 0, False),
    ]


def test_sockets_are_sent_to_the_interface_and_variables_are_added() -> None:
    with launch(["sh", "-c", "echo $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME $MINE"], env={"MINE": "x"}) as started:
        assert [one.output.split() for one in started.wait()] == [["lo", "lo", "x"]] * 3


def test_python_is_the_one_that_runs_the_launcher() -> None:
    with launch(["python", "-c", "import sys; print(sys.prefix)"], ranks=1) as started:
        assert started.wait()[0].output.strip() == sys.prefix


def test_lines_are_shown_as_they_are_written() -> None:
    seen: dict[int, list[str]] = {}
    lock = threading.Event()

    def show(rank: int, line: str) -> None:
        seen.setdefault(rank, []).append(line)
        lock.set()

    seats = [Seat(rank, nullcontext) for rank in range(2)]
    script = "echo early; echo wrong >&2; sleep 60"
    with Launch(["sh", "-c", script], seats, master="127.0.0.1", show=show) as started:
        assert lock.wait(10)
        assert started.running == [0, 1]
        while any(len(lines) < 2 for lines in (seen.get(0, []), seen.get(1, []))):
            time.sleep(0.01)
    assert seen == {0: ["early", "wrong"], 1: ["early", "wrong"]}


def test_much_output_does_not_block_a_rank() -> None:
    code = "import sys; sys.stdout.write('x' * 79 + '\\n'); [print('y' * 79) for _ in range(20_000)]"
    with launch(["python", "-c", code], ranks=2) as started:
        time.sleep(0.3)  # nobody waits yet
        assert [len(one.output) for one in started.wait(timeout_s=30)] == [80 * 20_001] * 2


def test_the_first_failure_ends_the_others(pids: Path) -> None:
    script = f"echo $$ > {pids}/$RANK.pid; [ $RANK = 1 ] && {{ echo broken; exit 7; }}; sleep 600"
    began = time.monotonic()
    with pytest.raises(LaunchError, match=r"^rank 1 on host 0 ended with status 7: broken$") as caught:
        run(script)
    assert time.monotonic() - began < 10
    assert caught.value.status == 7
    assert [(one.returncode, one.stopped) for one in caught.value.finished] == [
        (-signal.SIGTERM, True),
        (7, False),
        (-signal.SIGTERM, True),
    ]


def test_others_may_have_time_to_say_what_they_saw() -> None:
    seen = [(0, "seen\n"), (7, ""), (0, "seen\n")]
    script = "[ $RANK = 1 ] && exit 7; sleep 0.3; echo seen"
    with pytest.raises(LaunchError, match="rank 1") as caught:
        run(script, grace_s=10)
    assert [(one.returncode, one.output) for one in caught.value.finished] == seen
    assert [(one.returncode, one.output) for one in run(script, check=False)] == seen


def test_a_failure_that_was_seen_before_the_wait_counts() -> None:
    with launch(["sh", "-c", "[ $RANK = 1 ] && exit 7; sleep 600"]) as started:
        while len(started.running) == 3:
            time.sleep(0.01)
        with pytest.raises(LaunchError, match=r"^rank 1 on host 0 ended with status 7$"):
            started.wait()


def test_something_is_done_meanwhile() -> None:
    ticks: list[float] = []
    with launch(["sleep", "0.5"]) as started:
        started.wait(meanwhile=lambda: ticks.append(time.monotonic()))
    assert 3 <= len(ticks) <= 8


def test_a_timeout_names_the_ranks(pids: Path) -> None:
    script = f"echo $$ > {pids}/$RANK.pid; [ $RANK = 1 ] || sleep 600"
    with pytest.raises(
        LaunchError, match=r"^after 0.5 s still running, and ended: rank 0 on host 0, rank 2 on host 1"
    ):
        run(script, timeout_s=0.5)


def test_ranks_that_do_not_listen_are_killed(pids: Path) -> None:
    deaf = (
        f"import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('{pids}/'+os.environ['RANK']"
    )
    deaf += "+'.pid', 'w').write(str(os.getpid())); time.sleep(600)"
    with launch(["python", "-c", deaf], ranks=1) as started:
        while not written(pids):
            time.sleep(0.01)
        with pytest.raises(LaunchError, match="still running"):
            started.wait(timeout_s=0.1)


def test_what_a_rank_has_started_goes_with_it(pids: Path) -> None:
    run(f"sleep 600 & echo $! > {pids}/$RANK.pid")


def test_a_halted_rank_is_ended(pids: Path) -> None:
    with launch(["sh", "-c", f"echo $$ > {pids}/$RANK.pid; sleep 600"], ranks=2) as started:
        while len(written(pids)) < 2:
            time.sleep(0.01)
        started.kill(1, signal.SIGSTOP)


def test_a_killed_rank_is_named() -> None:
    with launch(["sleep", "600"]) as started:
        started.kill(2)
        with pytest.raises(LaunchError, match=r"^rank 2 on host 1 was killed by SIGKILL$") as caught:
            started.wait(timeout_s=30)
        assert caught.value.status == 128 + signal.SIGKILL == exit_status(-signal.SIGKILL)


def test_a_command_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match=r"^cannot start 'no_such_command': No such file or directory$"):
        launch(["no_such_command"])
    with pytest.raises(InputError, match="nothing to start"):
        launch([])


RUNNER = """
import subprocess, sys, time
from contextlib import nullcontext
from autobyte.testbed.launch import Launch, Seat

class Slow(subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        time.sleep({slow_s})

subprocess.Popen = Slow
with Launch(sys.argv[1:], [Seat(0, nullcontext), Seat(1, nullcontext)], master="127.0.0.1") as started:
    started.wait()
"""


@pytest.mark.parametrize(("slow_s", "times"), [(0, 1), (0.5, 2)])
def test_nothing_is_left_after_ctrl_c(pids: Path, slow_s: float, times: int) -> None:
    """It comes while ranks train, or twice while the last one is being started."""
    script = f"sleep 600 & echo $! > {pids}/$RANK.pid; wait"
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER.format(slow_s=slow_s), "sh", "-c", script],
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    while len(written(pids)) < 2:
        time.sleep(0.02)
    for _ in range(times):
        runner.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert runner.wait(20) != 0
