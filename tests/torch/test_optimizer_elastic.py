"""torchelastic starts ranks anew after a crash: on both engines, whatever the default group can do."""

from itertools import product
from pathlib import Path

import elastic
import pytest
import torch
from elastic import EVERY, KILLED, STEPS
from faulty import make_model, rows
from ranks import on_ranks
from torch.distributed.launcher import LaunchConfig, elastic_launch


@pytest.mark.parametrize(("group", "engine"), [("gloo", "ps"), ("devices", "allreduce")])
def test_training_goes_on_after_a_crash_under_torchelastic(group: str, engine: str, tmp_path: Path) -> None:
    # else the group of gloo itself fails in the second attempt, with or without AutoByte
    environ = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if group == "gloo" else {}
    on_ranks(_agent, 1, group, engine, tmp_path, timeout_s=200, environ=environ, init=False, daemon=False)
    began = [int((tmp_path / f"began{attempt}.{rank}").read_text()) for attempt, rank in product((0, 1), (0, 1))]
    assert began == [0, 0, EVERY * (KILLED // EVERY), EVERY * (KILLED // EVERY)]
    ours = [torch.load(tmp_path / f"parameters{rank}") for rank in (0, 1)]
    for first, second, theirs in zip(*ours, _by_one_process(), strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(first, theirs, rtol=0, atol=1e-6)


def _agent(_rank: int, group: str, engine: str, folder: Path) -> None:
    """What `torchrun --standalone` does; but ranks are forked."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        max_restarts=1,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork",
    )
    elastic_launch(config, elastic.main)(group, engine, folder)


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
