"""Averages are compared with a plain all-reduce's."""

from typing import Any

import pytest
import torch
from ranks import RankError, on_ranks
from stories import (
    make_mlp,
    rows,
    sgd,
    train,
    with_ab,
)


@pytest.mark.parametrize("engine", ["allreduce", "ps", "ordered"])
def test_verified_steps_pass(engine: str) -> None:
    on_ranks(_verified, 2, engine, None)
    on_ranks(_verified, 2, engine, "bf16")


def _verified(rank: int, engine: str, wire_dtype: str | None) -> None:
    model, optimizer = with_ab(
        module := make_mlp(), sgd(module), engine=engine, verify_steps=4, wire_dtype=wire_dtype
    )
    train(model, optimizer, rank)
    assert optimizer.training is not None
    assert not optimizer._mode._verification.active


def test_verify_steps_names_tensor_and_step() -> None:
    with pytest.raises(RankError, match=r"rank \d, step 2: tensor '2\.weight' differs by .* from a plain all-reduce"):
        on_ranks(_wrong_sum, 2)


def _wrong_sum(rank: int) -> None:
    model, optimizer = with_ab(module := make_mlp(), sgd(module), verify_steps=4)
    training = optimizer.training
    assert training is not None
    give, index = training.buffers.give, training.exchange.plan.job.gradients.names.index("2.weight")

    def wrong(block: Any) -> None:
        give(block)
        if training.session.runner.step == 2:
            for segment in block.segments:
                if segment.tensor == index:
                    module[2].weight.grad.data.view(-1)[segment.start] += 1.0

    training.buffers.give = wrong
    train(model, optimizer, rank)


@pytest.mark.parametrize("wire_dtype", [None, "fp16"])
def test_verification_knows_infinity(wire_dtype: str | None) -> None:
    """A loss scale that is too large overflows in the very steps that are compared."""
    on_ranks(_overflow, 2, wire_dtype)


def _overflow(rank: int, wire_dtype: str | None) -> None:
    model = make_mlp()
    model, optimizer = with_ab(model, sgd(model), verify_steps=3, wire_dtype=wire_dtype)
    for step in range(3):
        optimizer.zero_grad()
        factor = [torch.inf, 1e6, torch.nan][step] if step in (rank, 1) else 1.0
        (factor * model(rows(rank, step, 5, 12)).square().mean()).backward()
        optimizer.synchronize()
