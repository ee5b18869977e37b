"""What happens to gradients between backward and step, and after it: each beside DDP."""

from typing import Any

import pytest
import torch
from ranks import RankError, on_ranks
from stories import STEPS, assert_equal, make_mlp, parameters_of, rows, sgd, train, with_ab, with_ddp
from torch import Tensor, nn


@pytest.mark.parametrize("engine", ["allreduce", "ps", "ordered"])
def test_accumulation_by_no_sync_and_by_count_are_the_same(engine: str) -> None:
    on_ranks(_accumulation, 2, engine)


def _accumulation(rank: int, engine: str) -> None:
    def by_no_sync(wrap: Any, **keywords: Any) -> list[Tensor]:
        model, optimizer = wrap(module := make_mlp(), sgd(module), **keywords)
        no_sync = model.no_sync if wrap is with_ddp else optimizer.no_sync
        for step in range(STEPS):
            optimizer.zero_grad()
            with no_sync():
                for part in range(3):
                    model(rows(rank, 100 * step + part, 5, 12)).square().mean().backward()
            model(rows(rank, 100 * step + 3, 5, 12)).square().mean().backward()
            optimizer.step()
        return parameters_of(module, optimizer)

    def by_count() -> list[Tensor]:
        model, optimizer = with_ab(module := make_mlp(), sgd(module), accumulation=4, engine=engine)
        for step in range(STEPS):
            optimizer.zero_grad()
            for part in range(4):
                model(rows(rank, 100 * step + part, 5, 12)).square().mean().backward()
            optimizer.step()
        return parameters_of(module, optimizer)

    expected = by_no_sync(with_ddp)
    assert_equal(by_no_sync(with_ab, engine=engine), expected)
    assert_equal(by_count(), expected)


def test_what_only_no_sync_saw_is_sent_at_the_step() -> None:
    """The last batches of an epoch: fewer passes than the count, or all of them under `no_sync`."""
    on_ranks(_short_accumulation, 2)


def _short_accumulation(rank: int) -> None:
    inputs = [rows(other, 0, 5, 12) for other in range(2)]
    alone = make_mlp()
    sum(alone(each).square().mean() for each in inputs).mul(0.5).backward()
    for short in ("count", "no_sync"):
        model, optimizer = with_ab(module := make_mlp(), sgd(module), accumulation=2 if short == "count" else 1)
        if short == "count":
            model(inputs[rank]).square().mean().backward()
        else:
            with optimizer.no_sync():
                model(inputs[rank]).square().mean().backward()
        optimizer.synchronize()
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
        optimizer.step()
        optimizer.close()


def test_more_passes_than_the_count_are_refused_by_name() -> None:
    with pytest.raises(
        RankError, match=r"parameter '4.bias' got 2 backward passes in a step of 1: say accumulation="
    ):
        on_ranks(_too_many_passes, 2)


def _too_many_passes(rank: int) -> None:
    model, _ = with_ab(module := make_mlp(), sgd(module))
    for _ in range(2):
        model(rows(rank, 0, 5, 12)).sum().backward()


def test_gradients_are_clipped_after_synchronize() -> None:
    on_ranks(_clipping, 2)


def _clipping(rank: int) -> None:
    def story(wrap: Any) -> tuple[list[Tensor], list[float]]:
        model, optimizer = wrap(module := make_mlp(), sgd(module))
        norms = []
        for step in range(STEPS):
            optimizer.zero_grad()
            model(rows(rank, step, 5, 12)).square().sum().backward()
            if wrap is with_ab:
                optimizer.synchronize()
            norms.append(float(nn.utils.clip_grad_norm_(module.parameters(), 0.5)))
            optimizer.step()
        return parameters_of(module, optimizer), norms

    (ours, our_norms), (theirs, their_norms) = story(with_ab), story(with_ddp)
    assert_equal(ours, theirs)
    assert our_norms == their_norms


@pytest.mark.parametrize("what", ["clipping", "replacing"])
def test_changing_a_gradient_that_travels_is_refused(what: str) -> None:
    with pytest.raises(RankError, match=r"gradient of '\S+' was changed between backward\(\) and step\(\)"):
        on_ranks(_meddling, 2, what)


def _meddling(rank: int, what: str) -> None:
    model, optimizer = with_ab(module := make_mlp(), sgd(module))
    train(model, optimizer, rank)
    optimizer.zero_grad()
    model(rows(rank, 0, 5, 12)).square().sum().backward()
    if what == "clipping":
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
    else:
        module[0].weight.grad = torch.zeros_like(module[0].weight)
    optimizer.step()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("calls", ["step", "unscale, step", "synchronize, unscale, step"])
def test_gradscaler_skips_the_same_steps(calls: str, fused: bool) -> None:
    on_ranks(_scaling, 2, calls, fused)


def _scaling(rank: int, calls: str, fused: bool) -> None:
    def story(wrap: Any) -> tuple[list[Tensor], list[float]]:
        module = make_mlp()
        model, optimizer = wrap(module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, fused=fused))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        scales = []
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = model(rows(rank, step, 5, 12)).square().mean()
            if step in (2, 5) and rank == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            if "synchronize" in calls and wrap is with_ab:
                optimizer.synchronize()
            if "unscale" in calls:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return parameters_of(module, optimizer), scales

    (ours, our_scales), (theirs, their_scales) = story(with_ab), story(with_ddp)
    assert our_scales == their_scales
    assert min(our_scales) < 1024 < max(our_scales) * 2
    assert all(torch.isfinite(each).all() for each in ours)
    if not fused:  # the fused kernel of plain training unscales by itself, which rounds otherwise
        assert_equal(ours, theirs)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("whose", ["optimizer", "model", "after backward"])
def test_zero_grad_loses_nothing_that_is_in_transit(whose: str, to_none: bool) -> None:
    on_ranks(_clearing, 2, whose, to_none)


def _clearing(rank: int, whose: str, to_none: bool) -> None:
    def story(wrap: Any) -> list[Tensor]:
        model, optimizer = wrap(module := make_mlp(), sgd(module))
        for step in range(STEPS):
            model(rows(rank, step, 5, 12)).square().mean().backward()
            optimizer.step()
            (module if whose == "model" else optimizer).zero_grad(set_to_none=to_none)
            if whose == "after backward":
                model(rows(rank, step + 50, 5, 12)).square().mean().backward()
                optimizer.zero_grad(set_to_none=to_none)
        return parameters_of(module, optimizer)

    assert_equal(story(with_ab), story(with_ddp))


def test_steps_without_a_backward_pass() -> None:
    on_ranks(_idle_steps, 2)


def _idle_steps(rank: int) -> None:
    def story(wrap: Any) -> list[Tensor]:
        model, optimizer = wrap(module := make_mlp(), sgd(module))
        train(model, optimizer, rank)
        for _ in range(3):
            optimizer.zero_grad()
            optimizer.step()
        train(model, optimizer, rank)
        return parameters_of(module, optimizer)

    assert_equal(story(with_ab), story(with_ddp))


@pytest.mark.parametrize("dense", [False, True])
def test_sparse_gradients_are_refused_by_name(dense: bool) -> None:
    if dense:
        on_ranks(_sparse, 2, dense)
        return
    with pytest.raises(RankError, match=r"'0' makes sparse gradients, which cannot be cut into blocks"):
        on_ranks(_sparse, 2, dense)


def _sparse(rank: int, dense: bool) -> None:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=not dense), nn.Linear(4, 1))
    model, optimizer = with_ab(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.step()


def test_a_sparse_gradient_that_nobody_announced() -> None:
    with pytest.raises(RankError, match=r"parameter 'weight': sparse gradients cannot be cut into blocks"):
        on_ranks(_functional_sparse, 2)


def _functional_sparse(rank: int) -> None:
    model = nn.Embedding(10, 4)
    model, optimizer = with_ab(model, torch.optim.SGD(model.parameters(), lr=0.1))
    nn.functional.embedding(torch.tensor([1, 2]), model.weight, sparse=True).sum().backward()
    optimizer.step()
