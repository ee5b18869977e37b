"""What processes leave in shared memory when they end: nothing, however they end.

AutoByte makes no semaphores, with tuners neither. PyTorch's data loaders do. Those of the `spawn` method
have a name until the loader is gone; Python's resource tracker removes it if the process was killed.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks import free_port

SCRIPT = Path(__file__).parent.parent / "leaving.py"
ROOT = SCRIPT.parent.parent
CASES = [("twin", "returns"), ("auto", "raises"), ("loader-fork", "SIGINT"), ("loader-spawn", "SIGTERM")]
STATUS = {"returns": 0, "raises": 1, "SIGINT": -2, "SIGTERM": -15}


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_processes_leave_no_semaphores_however_they_end(case: tuple[str, str], tmp_path: Path) -> None:
    way, end = case
    port = free_port()
    processes = [_start(rank, way, end, port, tmp_path) for rank in (0, 1)]
    said = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [STATUS[end]] * 2, said
    names = [name for rank in (0, 1) for name in _file(tmp_path, rank, way).read_text().split()]
    assert bool(names) == way.startswith("loader"), names
    until = time.monotonic() + 10  # for workers, and the tracker, which end after the process
    while left := [name for name in names if Path("/dev/shm", f"sem.{name.lstrip('/')}").exists()]:
        assert time.monotonic() < until, left
        time.sleep(0.1)


def _file(folder: Path, rank: int, way: str) -> Path:
    return folder / f"{way}{rank}"


def _start(rank: int, way: str, end: str, port: int, folder: Path) -> subprocess.Popen[str]:
    _file(folder, rank, way).touch()
    settings = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    environ = {**os.environ, **{name: str(value) for name, value in settings.items()}, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), way, end, str(_file(folder, rank, way))]
    return subprocess.Popen(command, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
