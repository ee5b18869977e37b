"""Hosts in network namespaces: who reaches whom, and that nothing is left. Skips where they are forbidden."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from beds import GBIT, alive, needs_namespaces

from autobyte.errors import InputError
from autobyte.testbed import LaunchError, Testbed, TestbedError, namespaces

pytestmark = needs_namespaces

MEET = """
import os, socket, sys
rank, port, master = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"]), os.environ["MASTER_ADDR"]
size = int(os.environ["WORLD_SIZE"])
if rank == 0:
    listener = socket.create_server((master, port), backlog=size)
    print(*sorted(listener.accept()[1][0] for _ in range(size - 1)))
else:
    while True:
        try:
            socket.create_connection((master, port), 10).recv(1)
            break
        except ConnectionRefusedError:
            pass
"""


def spaces(owner: int) -> list[str]:
    folder = Path("/run/netns")
    return sorted(entry.name for entry in folder.glob(f"autobyte-{owner}-*")) if folder.exists() else []


def own_space() -> int:
    return Path("/proc/thread-self/ns/net").stat().st_ino


def test_ranks_meet_at_the_first_host() -> None:
    with Testbed(3, rate=GBIT) as testbed:
        finished = testbed.run(["python", "-c", MEET], timeout_s=30)
        assert finished[0].output == "10.77.0.2 10.77.0.3\n"
        assert [one.host for one in finished] == [0, 1, 2]
        chosen = testbed.run(["python", "-c", MEET], hosts=[2, 0], per_host=2, timeout_s=30)
        assert [one.host for one in chosen] == [2, 2, 0, 0]
        assert chosen[0].output == "10.77.0.1 10.77.0.1 10.77.0.3\n"


def test_two_jobs_share_the_hosts() -> None:
    slow = f"import time; time.sleep(0.5)\n{MEET}"
    with Testbed(2, rate=GBIT) as testbed, testbed.start(["python", "-c", slow], port=29501) as second:
        first = testbed.run(["python", "-c", MEET], timeout_s=30)
        assert first[0].output == second.wait(timeout_s=30)[0].output == "10.77.0.2\n"


def test_hosts_have_nothing_but_their_own_interface_and_cubic() -> None:
    with Testbed(2, rate=GBIT) as testbed:
        finished = testbed.run(
            ["sh", "-c", "ls /sys/class/net >/dev/null; cat /proc/net/dev; ip route"], timeout_s=30
        )
        for one in finished:
            interfaces = [line.split(":")[0].strip() for line in one.output.splitlines() if ":" in line]
            assert sorted(interfaces) == ["eth0", "lo"]
            assert "10.77.0.0/24 dev eth0" in one.output
            assert "congctl cubic" in one.output


def test_a_host_that_is_cut_off_is_not_reached_and_comes_back() -> None:
    ask = "import socket, sys; socket.create_connection(('10.77.0.254', 9), 0.5)"
    with Testbed(2, rate=GBIT) as testbed:

        def answers() -> list[str]:
            finished = testbed.run(["python", "-c", ask], check=False, timeout_s=30)
            return [one.output.strip().splitlines()[-1] for one in finished]

        with pytest.raises(LaunchError, match="refused"):  # nobody listens, but the answer came
            testbed.run(["python", "-c", ask], hosts=[1])
        testbed.cut(1)
        assert "refused" not in answers()[1]
        testbed.join(1)
        deadline = time.monotonic() + 10
        while "refused" not in answers()[1]:
            assert time.monotonic() < deadline


def test_everything_is_removed() -> None:
    with Testbed(2, rate=GBIT) as testbed:
        own = testbed.name(0).rpartition("-")[0]
        assert [name for name in spaces(os.getpid()) if name.startswith(own)] == [
            f"{own}-h0",
            f"{own}-h1",
            f"{own}-switch",
        ]
    assert spaces(os.getpid()) == []
    with pytest.raises(RuntimeError, match="mine"), Testbed(2, rate=GBIT):
        raise RuntimeError("mine")
    assert spaces(os.getpid()) == []


def test_two_testbeds_do_not_meet() -> None:
    with Testbed(2, rate=GBIT) as one, Testbed(2, rate=GBIT) as other:
        assert one.name(0) != other.name(0)
        with one.inside(0):
            inside_one = own_space()
        with other.inside(0):
            assert own_space() != inside_one


def test_a_thread_comes_back_from_a_host_that_raises() -> None:
    before = own_space()
    with Testbed(2, rate=GBIT) as testbed, pytest.raises(RuntimeError), testbed.inside(1):
        assert own_space() != before
        raise RuntimeError
    assert own_space() == before


RUNNER = """
import sys
from autobyte.testbed import Testbed
with Testbed(2, rate=1.25e8) as testbed:
    with testbed.start(["sh", "-c", "sleep 600"]) as started:
        print("ready", flush=True)
        started.wait()
"""


@contextmanager
def runner() -> Iterator[subprocess.Popen[str]]:
    """A process that runs something long on a testbed."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert len(spaces(process.pid)) == 3
            yield process
        finally:
            process.terminate()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 128 + 15), (signal.SIGHUP, 128 + 1)])
def test_a_runner_that_is_ended_leaves_nothing(number: int, status: int) -> None:
    with runner() as process:
        hosted = namespaces.processes_in(spaces(process.pid)[0])
        assert hosted
        process.send_signal(number)
        assert process.wait(20) == status
    assert spaces(process.pid) == []
    assert not any(alive(pid) for pid in hosted)


def test_what_a_killed_runner_left_is_removed_by_the_next_and_nothing_else() -> None:
    with runner() as living, runner() as process:
        process.kill()
        process.wait(20)
        left = spaces(process.pid)
        hosted = [pid for name in left for pid in namespaces.processes_in(name)]
        assert len(left) == 3
        assert len(hosted) >= 2
        with Testbed(2, rate=GBIT):
            assert spaces(process.pid) == []
            assert len(spaces(living.pid)) == 3
        assert not any(alive(pid) for pid in hosted)
        assert living.poll() is None


def test_a_process_that_got_the_number_of_a_dead_runner_does_not_keep_its_namespaces() -> None:
    stale = f"autobyte-{os.getpid()}-1-0-h0"  # this number, but of a process that started at boot
    namespaces.create(stale)
    assert stale in spaces(os.getpid())
    namespaces.clean_up()
    assert spaces(os.getpid()) == []


def test_a_kernel_without_netem_is_told_so() -> None:
    try:
        with Testbed(2, rate=GBIT, delay_s=0.02) as testbed, testbed.inside(0):
            began = time.perf_counter()
            finished = testbed.run(["python", "-c", MEET], timeout_s=30)
            assert finished[0].output == "10.77.0.2\n"
            assert time.perf_counter() - began > 0.04
    except TestbedError as error:
        assert str(error) == "the testbed cannot delay or lose packets: this kernel has no netem (module sch_netem)"
    assert spaces(os.getpid()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hosts": 1, "rate": GBIT}, "a testbed has 2 to 200 hosts, got 1"),
        ({"hosts": 2, "rate": 1.0}, "rate must be between 80 kbit/s and 33.6 Gbit/s, got 8 bit/s"),
        ({"hosts": 2, "rate": GBIT, "loss": 1.0}, "loss must be a share from 0 to 1, got 1"),
        ({"hosts": 2, "rate": GBIT, "delay_s": -1.0}, "delay must be between 0 and 10 s, got -1 s"),
        ({"hosts": 2, "rate": GBIT, "congestion": "nonsense"}, "the testbed cannot make network namespaces here|no "),
    ],
)
def test_what_cannot_be_is_named(arguments: dict[str, float], message: str) -> None:
    with pytest.raises((InputError, TestbedError), match=message), Testbed(**arguments):  # type: ignore[arg-type]
        pass
    assert spaces(os.getpid()) == []


def test_a_host_that_is_not_there_is_named() -> None:
    with Testbed(2, rate=GBIT) as testbed:
        for wrong in (testbed.cut, testbed.join, testbed.address, testbed.rates, testbed.shape):
            with pytest.raises(InputError, match=r"^no host 2: a testbed of 2 has 0 to 1$"):
                wrong(2)
        with pytest.raises(InputError, match="no host 5"):
            testbed.run(["true"], hosts=[0, 5])
