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
#: Where the batches of each rank come from, and how it ends
CASES = {
    "twin": [("tensors", "returns"), ("tensors", "returns")],
    "auto": [("tensors", "raises"), ("fork", "SIGINT"), ("spawn", "SIGTERM")],
}
STATUS = {"returns": 0, "raises": 1, "SIGINT": -2, "SIGTERM": -15}


@pytest.mark.parametrize("chooses", CASES)
def test_processes_leave_no_semaphores_however_they_end(chooses: str, tmp_path: Path) -> None:
    ranks, port = CASES[chooses], free_port()
    files = [tmp_path / str(rank) for rank in range(len(ranks))]
    processes = [_start([chooses, *words], rank, len(ranks), port, files[rank]) for rank, words in enumerate(ranks)]
    said = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [STATUS[end] for _, end in ranks], said
    made = [file.read_text().split() for file in files]
    assert [bool(names) for names in made] == [batches != "tensors" for batches, _ in ranks], made
    until = time.monotonic() + 10  # for workers, and the tracker, which end after the process
    while left := [name for names in made for name in names if Path("/dev/shm", f"sem.{name.lstrip('/')}").exists()]:
        assert time.monotonic() < until, left
        time.sleep(0.1)


def _start(words: list[str], rank: int, size: int, port: int, file: Path) -> subprocess.Popen[str]:
    file.touch()
    settings = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    settings["OMP_NUM_THREADS"] = 1
    environ = {**os.environ, **{name: str(value) for name, value in settings.items()}, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), *words, str(file)]
    return subprocess.Popen(command, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
