"""torchelastic starts ranks anew after a crash: on both engines, whatever the default group can do."""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from elastic import EVERY, KILLED, STEPS
from faulty import make_model, rows

SCRIPT = Path(__file__).parent.parent / "elastic.py"
ROOT = SCRIPT.parent.parent


@pytest.mark.parametrize(("group", "engine"), [("gloo", "ps"), ("devices", "allreduce")])
def test_training_goes_on_after_a_crash_under_torchelastic(group: str, engine: str, tmp_path: Path) -> None:
    agent = _launch(group, engine, tmp_path)
    assert agent.returncode == 0, agent.stderr[-3000:]
    began = [int((tmp_path / f"began{attempt}.{rank}").read_text()) for attempt, rank in product((0, 1), (0, 1))]
    assert began == [0, 0, EVERY * (KILLED // EVERY), EVERY * (KILLED // EVERY)]
    ours = [torch.load(tmp_path / f"parameters{rank}") for rank in (0, 1)]
    for first, second, theirs in zip(*ours, _by_one_process(), strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(first, theirs, rtol=0, atol=1e-6)


def _launch(group: str, engine: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{ROOT}{os.pathsep}{SCRIPT.parent}"
    environ = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    if group == "gloo":  # else the group itself fails in the second attempt, with or without AutoByte
        environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    options = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(SCRIPT), group, engine, str(folder)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=250, check=False)


def _by_one_process() -> list[torch.Tensor]:
    """Parameters after as many steps with the batches of both ranks."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in (0, 1):
            (model(rows(rank, step)).square().mean() / 2).backward()
        optimizer.step()
    return list(model.state_dict().values())
