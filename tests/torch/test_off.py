"""Where AutoByte is off, the user's optimizer does it all."""

import copy
import logging
import os

import pytest
import torch
from ranks import RankError, on_ranks
from stories import (
    assert_equal,
    make_mlp,
    sgd,
    train,
    with_ab,
)
from torch import nn

import autobyte.torch as ab


@pytest.mark.parametrize("why", ["one rank", "enabled", "environment", "no group"])
def test_a_bypass_changes_nothing(why: str) -> None:
    """Where there is nothing to do, the user's optimizer does it all."""
    size = 1 if why in ("one rank", "no group") else 2
    on_ranks(_bypass, size, why, init=why != "no group")


def _bypass(rank: int, why: str) -> None:
    if why == "environment":
        os.environ["AUTOBYTE_DISABLE"] = "1"
    ours, theirs = make_mlp(), make_mlp()
    said: list[logging.LogRecord] = []
    logging.getLogger("autobyte").addFilter(lambda record: bool(said.append(record)))
    logging.getLogger("autobyte").setLevel(logging.INFO)
    optimizer = ab.DistributedOptimizer(sgd(ours), ours, enabled=why != "enabled")
    assert optimizer.training is None
    warned = [record.getMessage() for record in said if record.levelno >= logging.WARNING]
    assert len(said) == 1 and all("nothing is averaged" in text for text in warned)
    assert bool(warned) == (why in ("enabled", "environment"))  # several ranks, and each for itself
    plain = sgd(theirs)
    for stepping in (optimizer, plain):
        scheduler = torch.optim.lr_scheduler.ExponentialLR(stepping, 0.9)
        train(ours if stepping is optimizer else theirs, stepping, rank)
        scheduler.step()
    with optimizer.no_sync():
        optimizer.synchronize()
    optimizer.flush()
    optimizer.broadcast_buffers()
    assert_equal(list(ours.parameters()), list(theirs.parameters()))
    assert optimizer.state_dict().keys() - plain.state_dict().keys() == {"autobyte"}
    assert optimizer.state_dict()["autobyte"] == {"steps": optimizer.steps}
    plain.load_state_dict(optimizer.state_dict())  # it does not mind
    optimizer.load_state_dict(plain.state_dict())
    assert optimizer.state_dict()["autobyte"] == {"steps": optimizer.steps}
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    assert not [m for m in ours.modules() if m._forward_pre_hooks]
    optimizer.close()


def test_parameter_groups_come_before_wrapping() -> None:
    with pytest.raises(RankError, match=r"before DistributedOptimizer is made: close\(\) it, add"):
        on_ranks(_late_group, 2)


def _late_group(rank: int) -> None:
    _, optimizer = with_ab(module := make_mlp(), sgd(module))
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


def test_after_close_it_is_off() -> None:
    on_ranks(_closed, 2)


def _closed(rank: int) -> None:
    model, optimizer = with_ab(module := make_mlp(), sgd(module))
    train(model, optimizer, rank, range(3))
    optimizer.close()
    assert optimizer.training is None
    report = optimizer.report()
    assert report is not None and report.workers == 2  # of the training that is over
    again = sgd(twin := make_mlp())
    twin.load_state_dict(module.state_dict())
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert optimizer.state_dict()["autobyte"] == {"steps": 3}
    train(model, optimizer, rank, range(3, 6))  # each rank for itself
    train(twin, again, rank, range(3, 6))
    assert_equal(list(module.parameters()), list(twin.parameters()))
    optimizer.close()
    assert optimizer.report() is report


def test_a_report_of_one_rank_says_why_it_is_empty(caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Linear(2, 2)
    ab.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    assert ab.report() == []
    assert "nothing to report" in caplog.text
    assert "start the script with torchrun" in caplog.text
