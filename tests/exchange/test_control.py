"""Ranks that do not agree end at once, and say what differs."""

import re
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from faulty import (
    ENGINES,
    at_once,
    make_model,
    said,
    wrapped,
)
from ranks import on_ranks
from torch import nn

from autobyte.exchange.control import Control, first_line
from autobyte.internals import own_gloo
from autobyte.scheduler.engines.abandoned import abandoned


def test_of_a_message_its_first_sentence_is_said() -> None:
    gloo = RuntimeError("[/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer. This may mean much")
    assert first_line(gloo) == "Connection closed by peer"
    assert first_line(RuntimeError("broken\nat line 3")) == "broken"
    nccl = "NCCL error in: NCCLUtils.cpp:94, invalid usage\nncclInvalidUsage: see below.\nLast error:\n"
    assert first_line(RuntimeError(f"{nccl}Duplicate GPU detected : ranks 1 and 0")) == (
        "Duplicate GPU detected : ranks 1 and 0"
    )
    assert first_line(TimeoutError()) == "TimeoutError"


def test_a_loss_that_still_has_its_graph_is_averaged_without_a_warning() -> None:
    """Closures return such a loss, skorch's for every optimizer."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        alone: Any = SimpleNamespace(gather=lambda numbers: torch.stack([numbers, numbers + 2]))
        mean = Control.mean(alone, torch.tensor(3.0, requires_grad=True))
    finally:
        torch.set_warn_always(before)
    assert mean == 4
    assert not mean.requires_grad


def test_ranks_with_different_models_end_at_once() -> None:
    told = {
        "shapes": (
            r"0.weight \(30, 12\) torch.float32 stride \(12, 1\)$",
            r"0.weight \(31, 12\) torch.float32 stride \(12, 1\) where rank 0 has 0.weight \(30, 12\)",
        ),
        "number": ("nothing$", r"5.weight \(4, 4\) torch.float32 stride \(4, 1\) where rank 0 has nothing$"),
    }
    for how, ranks in zip([*told] * len(ENGINES), at_once(_different, 3, tuple(told), timeout_s=20), strict=True):
        for rank, outcome in enumerate(ranks.outcomes()):
            why = f"CommunicationError: ranks \\[2\\] have a model unlike rank 0's; rank {rank} has "
            assert re.match(why + told[how][rank == 2], said(outcome)), said(outcome)


def _different(rank: int, engine: str, how: str) -> None:
    model = make_model(width=31 if rank == 2 and how == "shapes" else 30)
    if rank == 2 and how == "number":
        model.append(nn.Linear(4, 4))
    wrapped(model, engine)


@pytest.mark.parametrize("refuses", [0, 1])
def test_a_model_that_one_rank_refuses_ends_all_at_once(refuses: int) -> None:
    for ranks in at_once(_refused, 2, (refuses,), timeout_s=20):
        outcomes = [said(outcome) for outcome in ranks.outcomes()]
        assert outcomes[refuses] == "InputError: the optimizer trains no parameter of 'Sequential'"
        assert outcomes[1 - refuses].startswith("CommunicationError: ranks [1] have a model unlike rank 0's; ")


def _refused(rank: int, engine: str, refuses: int) -> None:
    model = make_model()
    wrapped(model.requires_grad_(rank != refuses), engine)


def test_ranks_with_different_plans_do_not_begin() -> None:
    """As if one planned otherwise than the others: another version, or a bug."""
    for ranks in at_once(_plans_otherwise, 3, timeout_s=20):
        for rank, outcome in enumerate(ranks.outcomes()):
            why = rf"CommunicationError: ranks \[1\] have a plan for .* unlike rank 0's; rank {rank} has [0-9a-f]+"
            assert re.match(why + (" where rank 0 has [0-9a-f]+$" if rank == 1 else "$"), said(outcome)), said(
                outcome
            )


def _plans_otherwise(rank: int, engine: str) -> None:
    from autobyte.torch.exchange import training  # noqa: PLC0415

    as_it_is = training.agreed_plan

    def otherwise(job: Any, config: Any, order: Any, **how: Any) -> Any:
        plan = as_it_is(job, config, order, **how)
        return plan.with_sequence(np.roll(np.arange(len(plan.tiling)), 1)) if rank == 1 else plan

    training.agreed_plan = otherwise
    wrapped(make_model(), engine)


def test_calls_that_are_under_way_keep_their_tensors_though_nobody_else_does() -> None:
    """gloo's thread would let go of the last one when the process ends, and it needs Python for that."""
    assert on_ranks(_counts_alone, 2) == [1, 0]


def _counts_alone(rank: int) -> int:
    control = Control("alone", rank=rank, ranks=[0, 1], timeout=timedelta(seconds=20))
    control.gather(torch.ones(1))
    if rank == 0:
        control.tally(torch.ones(3))  # the other rank does not
        control.close(idle=False)
    left = sum(not work.is_completed() for _, calls in abandoned for work, _tensors in calls)
    dist.barrier()
    control.close(idle=True)
    return left


def test_tensors_of_any_kind_are_sent_few_messages_together() -> None:
    messages, *_ = on_ranks(_sends_each, 3)
    assert messages == 5  # float32, bfloat16, float32 twice, for the last is large, and bool


def _sends_each(rank: int) -> int:
    torch.manual_seed(rank)
    backend = own_gloo("sends", rank=rank, size=3, timeout=timedelta(seconds=20))
    control = Control("sends", rank=rank, ranks=range(3), timeout=timedelta(seconds=20))
    tensors = [
        torch.randn(3),
        torch.randn(()),
        torch.empty(0),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(5).to(torch.bfloat16),
        torch.randn(4, 4).T,
        torch.randn(2, 600_000)[1],
        torch.randn(1_100_000),
        torch.rand(7) > 0.5,
    ]
    expected = [tensor.clone() for tensor in tensors]
    for tensor in expected:
        if tensor.numel():
            sent = tensor.float().contiguous()
            backend.broadcast([sent], _from_rank_1()).wait()
            tensor.copy_(sent)
    messages, broadcast = 0, control.broadcast

    def counted(tensor: torch.Tensor, **keywords: Any) -> None:
        nonlocal messages
        messages += 1
        broadcast(tensor, **keywords)

    control.broadcast = counted  # type: ignore[method-assign]
    control.send_each((("a tensor", tensor) for tensor in tensors), source=1)
    for tensor, value in zip(tensors, expected, strict=True):
        assert torch.equal(tensor, value), tensor.shape
    return messages


def _from_rank_1() -> Any:
    options = dist.BroadcastOptions()
    options.rootRank = 1
    return options
