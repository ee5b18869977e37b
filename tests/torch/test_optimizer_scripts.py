"""Whole scripts, as users start them: how they end, with and without `close()`, and after an exception."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks import free_port

ROOT = Path(__file__).parent.parent.parent

SCRIPT = """
import signal, sys, time
import torch, torch.distributed as dist
from datetime import timedelta
import autobyte.torch as ab

dist.init_process_group("gloo")
rank, how = dist.get_rank(), "{how}"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(50, 50), torch.nn.Tanh(), torch.nn.Linear(50, 50))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
limit = timedelta(seconds=120)
optimizer = ab.DistributedOptimizer(optimizer, model, policy="bytescheduler", engine="{engine}", timeout=limit)


def fail(*_):
    raise RuntimeError("out of luck")


for step in range(10):
    if step == 7 and rank == 1 and how == "forward":
        model[1].register_forward_hook(fail)
    if step == 7 and rank == 1 and how == "backward":
        model[0].weight.register_hook(fail)
    if step == 9 and rank == 1:
        time.sleep(1)  # the other one is about to end
    optimizer.zero_grad()
    model(torch.ones(2, 50)).square().mean().backward()
    optimizer.step()
if how == "close":
    optimizer.close()
print(f"rank {{rank}} done")
if how == "destroy":
    dist.destroy_process_group()
"""


def run(how: str, engine: str, folder: Path, *, ranks: int = 2) -> list[tuple[int, str]]:
    """Exit status and output of every rank."""
    file = folder / "script.py"
    file.write_text(SCRIPT.format(how=how, engine=engine))
    environ = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
               "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}  # fmt: skip
    started = [
        subprocess.Popen(
            [sys.executable, str(file)],
            env={**environ, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=100)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, output) for process, output in zip(started, outputs, strict=True)]


@pytest.mark.parametrize(("how", "engine"), [("nothing", "ps"), ("destroy", "allreduce")])
def test_a_script_ends_well(how: str, engine: str, tmp_path: Path) -> None:
    for rank, (status, output) in enumerate(run(how, engine, tmp_path)):
        assert status == 0, output
        assert f"rank {rank} done" in output
        assert "Error" not in output, output


@pytest.mark.parametrize(("where", "engine"), [("backward", "ps")])
def test_a_script_that_fails_ends_all_ranks(where: str, engine: str, tmp_path: Path) -> None:
    began = time.monotonic()
    (status, output), (failed, told) = run(where, engine, tmp_path)
    assert time.monotonic() - began < 60  # half of the timeout
    assert failed == 1, told
    assert "RuntimeError: out of luck" in told
    assert status == 1, output
    assert re.search(r"CommunicationError: rank 0, step 7: .* tensor '\S+'.*no word from rank 1", output), output
