"""One GPU for all ranks: a fake MPS on the PATH shows when it is started and ended, and what is left of it."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from beds import GBIT, alive, needs_namespaces

from autobyte.cli import run
from autobyte.testbed import LaunchError, SharedGpu, Testbed, TestbedError
from autobyte.testbed.gpu import CONTROL, QUERY, SETTINGS

#: -d starts a daemon; without it, commands are read: `quit` ends the daemon, unless it is a stubborn one.
DAEMON = """#!/bin/sh
echo "$1" >> {log}
if [ "$1" = -d ]; then
    sleep 600 & echo $! > "$CUDA_MPS_PIPE_DIRECTORY/pid"; cp "$CUDA_MPS_PIPE_DIRECTORY/pid" {folder}/pid
else
    cat >> {log}
    {quit}
fi
"""
KIND, STUBBORN = 'kill $(cat "$CUDA_MPS_PIPE_DIRECTORY/pid")', "sleep 600"


class Machine:
    """What a machine with a GPU has on its PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"

    def has(self, program: str, script: str) -> None:
        (self.folder / program).write_text(script)
        (self.folder / program).chmod(0o755)

    def has_gpu(self) -> None:
        self.has(QUERY, "#!/bin/sh\necho NVIDIA A, 1.2.3\n")

    def has_mps(self, quitting: str = KIND) -> None:
        self.has(CONTROL, DAEMON.format(log=self.log, folder=self.folder, quit=quitting))

    @property
    def daemon(self) -> int:
        return int((self.folder / "pid").read_text())


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Machine(tmp_path)


def folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"autobyte-{os.getpid()}-*-mps"))


def test_without_a_gpu_it_says_so(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.has(QUERY, "#!/bin/sh\nexit 9\n")
    assert run(["testbed", "run", "--gpu", "--", "true"]) == 2
    assert capsys.readouterr().err == "autobyte: no GPU on this machine: nvidia-smi names none\n"


def test_without_mps_it_says_so(machine: Machine) -> None:
    machine.has_gpu()
    with pytest.raises(TestbedError, match="ranks cannot share the GPU: no nvidia-cuda-mps-control in PATH"):
        SharedGpu().__enter__()


def test_a_daemon_that_does_not_start_is_an_error(machine: Machine) -> None:
    machine.has_gpu()
    machine.has(CONTROL, "#!/bin/sh\necho one; echo An instance is already running; exit 1\n")
    with pytest.raises(TestbedError, match="-d ended with status 1: An instance is already running"):
        SharedGpu().__enter__()
    assert not folders()


@pytest.mark.parametrize("quitting", [KIND, STUBBORN])
def test_the_daemon_ends_with_the_block(machine: Machine, quitting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autobyte.testbed.gpu.QUITTING_S", 0.5)
    machine.has_gpu()
    machine.has_mps(quitting)
    with pytest.raises(KeyError), SharedGpu() as gpu:
        assert (gpu.card, gpu.driver) == ("NVIDIA A", "1.2.3")
        assert alive(machine.daemon)
        raise KeyError
    assert not alive(machine.daemon)
    assert not folders()
    assert "quit" in machine.log.read_text()


def test_what_a_client_left_is_killed_and_nothing_else(machine: Machine) -> None:
    machine.has_gpu()
    machine.has_mps()
    with SharedGpu() as gpu:
        ours = subprocess.Popen(["sleep", "600"], env=os.environ | gpu.environment(3), start_new_session=True)
        other = subprocess.Popen(["sleep", "600"], env=os.environ | {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/another"})
        assert gpu.environment(3)["NCCL_HOSTID"] == "rank3"
        time.sleep(0.1)  # until the program is there, its environment is this one's
    try:
        assert ours.wait(5) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_run_that_was_killed_leaves_no_daemon_behind(machine: Machine) -> None:
    machine.has_gpu()
    machine.has_mps()
    script = "from autobyte.testbed import SharedGpu\nwith SharedGpu():\n    print('on', flush=True)\n    input()\n"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, env=environment) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"on\n"
        killed.kill()
    first = machine.daemon
    assert alive(first)
    with SharedGpu():
        assert not alive(first)


@needs_namespaces
def test_ranks_get_their_settings_and_a_launch_that_fails_ends_the_daemon(machine: Machine) -> None:
    machine.has_gpu()
    machine.has_mps()
    with Testbed(2, rate=GBIT) as testbed:
        script = "env; exit $RANK"
        with (
            pytest.raises(LaunchError) as failed,
            SharedGpu() as gpu,
            testbed.start(["sh", "-c", script], per_host=2, gpu=gpu) as launch,
        ):
            launch.wait(grace_s=5)
    assert failed.value.status in (1, 2, 3)
    assert not alive(machine.daemon)
    for one in failed.value.finished:
        told = dict(line.split("=", 1) for line in one.output.splitlines() if "=" in line)
        assert told["NCCL_HOSTID"] == f"rank{one.rank}"
        assert told["NCCL_SOCKET_IFNAME"] == "eth0"
        assert SETTINGS.items() <= told.items()
        assert told["CUDA_MPS_PIPE_DIRECTORY"] == told["CUDA_MPS_LOG_DIRECTORY"]
