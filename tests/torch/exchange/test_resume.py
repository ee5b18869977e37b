"""What is loaded while training: on all ranks, or on one alone, with or without a broadcast of the user's."""

import copy
import re
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from faulty import SMALL, STEPS, at_once, by_ddp, make_model, rows, said, state, train, wrapped
from ranks import Ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autobyte.config import Config
from autobyte.torch.exchange.resume import Resumption

OTHER = Config(4096, 4096)


def broadcast(model: nn.Module, inner: torch.optim.Optimizer) -> None:
    """What scripts do once rank 0 has loaded."""
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
        dist.broadcast(inner.state[parameter]["momentum_buffer"], 0)


@pytest.mark.parametrize("loader", [0, 1])
def test_one_rank_loads_and_the_others_get_it_by_broadcast(loader: int) -> None:
    for ranks in at_once(_broadcast, 2, (loader,)):
        configs = ranks.results()
        assert configs == [OTHER if loader == 0 else SMALL] * 2  # rank 0 proposes the plan


def _broadcast(rank: int, engine: str, loader: int) -> Config:
    model, theirs = make_model(), make_model()
    optimizer = wrapped(model, engine, timedelta(seconds=10))
    reference = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    ddp = DistributedDataParallel(theirs)
    for each, inner in ((model, optimizer), (ddp, reference)):
        train(each, inner, rank, range(5))
        kept = copy.deepcopy((each.state_dict(), inner.state_dict()))
        train(each, inner, rank, range(50, 53))
        if "autobyte" in kept[1]:
            kept[1]["autobyte"]["config"] = OTHER.to_json()
        if rank == loader:
            each.load_state_dict(kept[0])
            inner.load_state_dict(kept[1])
        broadcast_from = optimizer._optimizer if inner is optimizer else reference
        if loader == 0:
            broadcast(each, broadcast_from)
        else:  # the others load, too, but as plain tensors
            each.load_state_dict(kept[0])
            broadcast_from.load_state_dict({key: kept[1][key] for key in ("state", "param_groups")})
        train(each, inner, rank, range(5, STEPS))
    ours = state(model, optimizer)
    assert all(map(torch.equal, ours, [*theirs.parameters()]))
    assert optimizer.steps == (STEPS if loader == 0 else STEPS + 3)  # as rank 0 counts
    optimizer.close()
    return optimizer_config(optimizer)


def optimizer_config(optimizer: Any) -> Config:
    report = optimizer.report()
    assert report is not None
    return report.config


#: What differs two steps later: momentum that is not the same changes parameters, too.
ALONE = {
    "everything": "parameters and optimizer state",
    "model": "parameters",
    "optimizer": "parameters and optimizer state",
}


@pytest.mark.parametrize("what", ALONE)
def test_what_one_rank_loads_alone_is_refused_on_all_at_once(what: str) -> None:
    began = time.monotonic()
    for ranks in at_once(_alone, 3, (what,)):
        for rank, outcome in enumerate(ranks.outcomes()):
            where = rf"CommunicationError: rank {rank}, step (9|11): "  # on streams, ranks hear two steps later
            who = r"ranks \[0\] have loaded a checkpoint, ranks \[1, 2\] have not, and "
            way_out = "differ now: load the same one on every rank; details in "
            assert re.match(f"{where}{who}their {ALONE[what]} {way_out}", said(outcome)), outcome
    assert time.monotonic() - began < 25  # of a timeout of 60 s


def _alone(rank: int, engine: str, what: str) -> None:
    model = make_model()
    optimizer = wrapped(model, engine, timedelta(seconds=60))
    train(model, optimizer, rank, range(5))
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, rank, range(5, 7))
    if rank == 0 and what != "optimizer":
        model.load_state_dict(kept[0])
    if rank == 0 and what != "model":
        optimizer.load_state_dict(kept[1])
    train(model, optimizer, rank, range(7, STEPS))


def test_another_checkpoint_on_one_rank_is_refused() -> None:
    for ranks in at_once(_another, 2):
        for outcome in ranks.outcomes():
            assert "ranks [1] have loaded another checkpoint than rank 0, and their hyper-par" in said(outcome)


def _another(rank: int, engine: str) -> None:
    model = make_model()
    optimizer = wrapped(model, engine, timedelta(seconds=20))
    train(model, optimizer, rank, range(5))
    kept = copy.deepcopy(optimizer.state_dict())
    kept["param_groups"][0]["lr"] = 0.1 + 0.05 * rank
    optimizer.load_state_dict(kept)
    train(model, optimizer, rank)


def test_state_that_one_rank_has_when_it_is_wrapped_is_refused() -> None:
    """Parameters are sent from rank 0 then; an optimizer's state is not."""
    ranks = Ranks(_wrapped_with_state, 2)
    for outcome in ranks.outcomes():
        assert (
            "ranks [0] have loaded a checkpoint, ranks [1] have not, and their parameters and optimizer state"
            in said(outcome)
        )


def _wrapped_with_state(rank: int) -> None:
    model = make_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if rank == 0:
        train(model, inner, rank, range(3))
    import autobyte.torch as ab  # noqa: PLC0415

    train(model, ab.DistributedOptimizer(inner, model, config=SMALL, timeout=timedelta(seconds=20)), rank)


def test_all_load_after_one_rank_has_left_a_backward_pass() -> None:
    for ranks in at_once(_left, 2):
        assert ranks.results() == [True, True]


def _left(rank: int, engine: str) -> bool:
    """The others have taken that step, and wait for nobody."""
    model = make_model()
    optimizer = wrapped(model, engine, timedelta(seconds=20))
    train(model, optimizer, rank, range(5))
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    optimizer.zero_grad()
    model(rows(rank, 99)).square().mean().backward()
    if rank == 0:
        optimizer.step()
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    train(model, optimizer, rank, range(5, STEPS))
    return all(map(torch.equal, state(model, optimizer), by_ddp(rank)))


def _resumption(kind: type[torch.optim.Optimizer] = torch.optim.Adam, **keywords: Any) -> Resumption:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3, dtype=torch.bfloat16), nn.Linear(3, 3, dtype=torch.complex64))
    optimizer = kind(model.parameters(), lr=0.1, **keywords)

    def loss() -> Any:
        optimizer.zero_grad()
        total = sum(parameter.abs().float().square().sum() for parameter in model.parameters())
        total.backward()
        return total

    optimizer.step(loss)
    return Resumption(model.parameters(), optimizer)


def test_fingerprints_tell_states_apart() -> None:
    ours, same, other = _resumption(), _resumption(), _resumption(betas=(0.9, 0.99))
    assert torch.equal(ours.fingerprint(), same.fingerprint())
    assert (ours.fingerprint() == other.fingerprint()).tolist() == [False, False, False]
    with torch.no_grad():
        weight = same._parameters[0]
        weight.copy_(weight.flip(0))
    assert (ours.fingerprint() == same.fingerprint())[1:].all()
    assert torch.equal(ours.fingerprint(), ours.fingerprint())


def test_only_who_has_loaded_makes_a_note() -> None:
    ours = _resumption()
    assert ours.note() is not None  # the optimizer has learned before
    assert ours.note() is None
    ours.load()
    assert ours.note() is not None
    assert Resumption([nn.Parameter(torch.ones(2))], torch.optim.Adam([nn.Parameter(torch.ones(2))])).note() is None
