"""Ranks whose inputs end early keep the others company."""

from datetime import timedelta
from typing import Any

import pytest
import torch
from ranks import on_ranks
from stories import (
    assert_equal,
    from_rank_0,
    make_mlp,
    parameters_of,
    rows,
    sgd,
    train,
    with_ab,
    with_ddp,
)
from torch import Tensor
from torch.distributed.algorithms.join import Join


@pytest.mark.parametrize("engine", ["allreduce", "ps", "ordered"])
def test_inputs_that_end_early(engine: str) -> None:
    on_ranks(_uneven, 3, engine)


def _uneven(rank: int, engine: str) -> None:
    """Two epochs: after the first, DDP's optimizers have drifted apart, so it is compared over one."""

    def story(wrap: Any, epochs: int, **keywords: Any) -> list[Tensor]:
        model, optimizer = wrap(module := make_mlp(seed=rank), sgd(module), **keywords)
        for epoch in range(epochs):
            with Join([optimizer if wrap is with_ab else model]):
                train(model, optimizer, rank, range(100 * epoch, 100 * epoch + 14 + 5 * rank))
        return parameters_of(module, optimizer)

    def by_hand(epochs: int) -> list[Tensor]:
        """All ranks' batches in one process."""
        model, optimizer = make_mlp(), sgd(module := make_mlp())
        model = module
        for epoch in range(epochs):
            for step in range(14 + 5 * 2):
                optimizer.zero_grad()
                for other in range(3):
                    if step < 14 + 5 * other:
                        loss = model(rows(other, 100 * epoch + step, 5, 12)).square().mean()
                        (loss / 3).backward()
                optimizer.step()
        return parameters_of(model, optimizer)

    one, two = story(with_ab, 1, engine=engine), story(with_ab, 2, engine=engine)
    for ours, theirs in zip(one, story(with_ddp, 1), strict=True):
        torch.testing.assert_close(ours, theirs)
    for ours, theirs in zip(two, by_hand(2), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert_equal(two, [from_rank_0(tensor) for tensor in two])


def test_updates_left_out_while_some_ranks_have_no_inputs() -> None:
    on_ranks(_left_out, 2)


def _left_out(rank: int) -> None:
    """The last step of the rank whose inputs end first is left out by all, as a scaler would; later ones, too."""
    model = make_mlp()
    model, optimizer = with_ab(model, sgd(model))
    for epoch in range(2):
        with Join([optimizer]):
            for step in range(6 + 20 * rank):
                optimizer.zero_grad()
                model(rows(rank, 100 * epoch + step, 5, 12)).square().mean().backward()
                optimizer.synchronize()
                if step not in (5, 12, 13):
                    optimizer.step()
    train(model, optimizer, rank, range(300, 330))
    parameters = parameters_of(model, optimizer)
    assert_equal(parameters, [from_rank_0(tensor) for tensor in parameters])


def same_on_all(tensors: list[Tensor]) -> None:
    assert_equal(tensors, [from_rank_0(tensor) for tensor in tensors])


def test_learning_rates_are_the_same_after_uneven_inputs() -> None:
    on_ranks(_scheduled, 2)


def _scheduled(rank: int) -> None:
    model = make_mlp()
    _, optimizer = with_ab(model, sgd(model))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    with Join([optimizer]):
        for step in range(4 + 2 * rank):
            train(model, optimizer, rank, range(step, step + 1))
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.9**6)
    assert optimizer.steps == 6  # which the parameters have taken, on the rank that did four of its own, too
    train(model, optimizer, rank, range(20, 25))
    same_on_all(parameters_of(model, optimizer))


def test_a_rank_without_any_input() -> None:
    on_ranks(_no_input, 2)


def _no_input(rank: int) -> None:
    """Others find out what the layers are when all have inputs again, and do not wait for this rank before."""
    model = make_mlp()
    _, optimizer = with_ab(model, sgd(model), timeout=timedelta(seconds=10))
    for epoch in range(2):
        with Join([optimizer]):
            for step in range(4 * (rank + epoch)):
                optimizer.zero_grad()
                model(rows(rank, 100 * epoch + step, 5, 12)).square().mean().backward()
                optimizer.clip_grad_norm_(0.05)
                optimizer.step()
    same_on_all(parameters_of(model, optimizer))
    assert optimizer.training.exchange.halved
    optimizer.close()


def test_a_closure_after_loading_while_some_ranks_have_no_inputs() -> None:
    """That ranks have loaded is heard two steps later, when the inputs of one of them have ended."""
    on_ranks(_loaded, 2)


def _loaded(rank: int) -> None:
    model = make_mlp()
    model, optimizer = with_ab(model, sgd(model), timeout=timedelta(seconds=10))
    train(model, optimizer, rank, range(3))
    optimizer.load_state_dict(optimizer.state_dict())
    with Join([optimizer]):
        for step in range(2 + 4 * rank):

            def closure(step: int = step) -> Tensor:
                optimizer.zero_grad()
                loss = model(rows(rank, step, 5, 12)).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
    parameters = parameters_of(model, optimizer)
    assert_equal(parameters, [from_rank_0(tensor) for tensor in parameters])
