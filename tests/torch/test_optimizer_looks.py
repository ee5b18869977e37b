"""Gradients that are read between backward and step: averages, on any rank, and nobody else notices."""

from typing import Any

import pytest
import torch
from ranks import on_ranks
from stories import assert_equal, make_mlp, parameters_of, rows, sgd, with_ddp
from torch import Tensor, nn

import autobyte.torch as ab
from autobyte.errors import InputError

ENGINES = ["allreduce", "ps", "ordered"]


def wrapped(model: nn.Module, **keywords: Any) -> ab.DistributedOptimizer:
    return ab.DistributedOptimizer(sgd(model), model, **{"policy": "bytescheduler", "keep": None} | keywords)


def backward(model: nn.Module, optimizer: Any, rank: int, step: int) -> None:
    optimizer.zero_grad()
    model(rows(rank, step, 5, 12)).square().mean().backward()


@pytest.mark.parametrize("engine", ENGINES)
def test_one_rank_looks_at_clipped_averages_and_steps_are_given_up(engine: str) -> None:
    """What the others do with the step is what the one does that has looked, windows included."""
    on_ranks(_given_up, 2, engine)


def _given_up(rank: int, engine: str) -> None:
    model, twin = make_mlp(), make_mlp()
    optimizer, (module, theirs) = wrapped(model, engine=engine), with_ddp(twin, sgd(twin))
    for step in range(45):
        backward(model, optimizer, rank, step)
        backward(module, theirs, rank, step)
        if step % 2:
            optimizer.clip_grad_norm_(0.1)
            nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
        else:
            optimizer.clip_grad_value_(0.01)
            nn.utils.clip_grad_value_(twin.parameters(), 0.01)
        if rank == 0:
            for ours, other in zip(model.parameters(), twin.parameters(), strict=True):
                torch.testing.assert_close(ours.grad, other.grad)
        if step % 5 != 3:
            optimizer.step()
            theirs.step()
    for ours, other in zip(parameters_of(model, optimizer), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, other)
    optimizer.close()


class Shares(nn.Module):
    """Two parameters whose gradients autograd lays in one memory, and a layer that is not used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = nn.Parameter(torch.zeros(1, 12)), nn.Parameter(torch.zeros(1, 12))
        self.last, self.unused = nn.Linear(12, 4), nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.last(inputs + (self.one.view(1, 12) + self.other.view(1, 12)))
        return output


@pytest.mark.parametrize("policy", ["ddp", "bytescheduler", None])
def test_nobody_looks_where_gradients_share_memory_and_one_is_missing(policy: str | None) -> None:
    on_ranks(_shares, 2, policy)


def _shares(rank: int, policy: str | None) -> None:
    model, twin = Shares(), Shares()
    optimizer = wrapped(model, policy=policy)
    module, theirs = with_ddp(twin, sgd(twin), find_unused_parameters=True)
    for step in range(4):
        for each, update in ((model, optimizer), (module, theirs)):
            update.zero_grad()
            each(rows(rank, step, 1, 12)).square().mean().backward()
            update.step()
    assert_equal(parameters_of(model, optimizer), parameters_of(twin, theirs))
    optimizer.close()


@pytest.mark.parametrize("what", ["missing", "view"])
def test_what_is_averaged_in_the_step_only_is_refused_before(what: str) -> None:
    words = {
        "missing": "'unused.weight' has had no backward pass in this step",
        "view": "lies in a buffer of your own",
    }
    for said in on_ranks(_refused, 2, what):
        assert words[what] in said
        assert "call this optimizer's synchronize() before, on all ranks" in said


def _refused(rank: int, what: str) -> str:
    model = Shares()
    if what == "view":
        model.unused.requires_grad_(False)
    optimizer = wrapped(model)
    if what == "view":
        buffer = torch.zeros(sum(parameter.numel() for parameter in model.last.parameters()))
        for parameter in model.last.parameters():
            parameter.grad, buffer = buffer[: parameter.numel()].view_as(parameter), buffer[parameter.numel() :]
    model(rows(rank, 0, 1, 12)).square().mean().backward()
    with pytest.raises(InputError) as refused:
        model.last.weight.grad.norm()
    optimizer.synchronize()
    assert model.last.weight.grad is not None
    optimizer.step()
    optimizer.close()
    return str(refused.value)


def test_by_default_changes_before_our_own_clipping_are_borne_from_the_first_step_on() -> None:
    on_ranks(_changed, 2)


def _changed(rank: int) -> None:
    model, twin = make_mlp(), make_mlp()
    optimizer, (module, theirs) = ab.DistributedOptimizer(sgd(model), model), with_ddp(twin, sgd(twin))
    for step in range(20):
        for each, update in ((model, optimizer), (module, theirs)):
            backward(each, update, rank, step)
            for parameter in each.parameters():
                parameter.grad.nan_to_num_().mul_(0.5)
        clipped = optimizer.clip_grad_norm_(0.1), nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
        torch.testing.assert_close(*clipped)
        optimizer.step()
        theirs.step()
    for ours, other in zip(parameters_of(model, optimizer), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, other)
    optimizer.close()


def test_a_step_within_the_backward_pass_leaves_gradients_as_they_are() -> None:
    on_ranks(_within, 2)


def _within(rank: int) -> None:
    model = make_mlp()
    optimizer = wrapped(model)
    first = next(model.parameters())  # the last gradient to be complete
    hook = first.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    for step in range(3):
        model(rows(rank, step, 5, 12)).square().mean().backward()
        assert first.grad is not None
        optimizer.zero_grad()
    hook.remove()
    optimizer.close()


def test_after_a_pass_that_raised_gradients_of_the_next_are_averages() -> None:
    on_ranks(_raised, 2)


def _raised(rank: int) -> None:
    model = nn.ModuleDict({"first": nn.Linear(12, 4), "second": nn.Linear(12, 4)})
    optimizer = wrapped(model, config=ab.Config(4, 1024))
    inputs = torch.full((2, 12), rank + 1.0)
    failing = inputs.clone().requires_grad_()
    failing.register_hook(_fail)
    with pytest.raises(RuntimeError, match="no gradient"):
        model["first"](failing * 1).sum().backward()
    model["second"](inputs).sum().backward()
    assert model["second"].weight.grad.unique().tolist() == [3.0]
    optimizer.step()
    optimizer.close()


def _fail(_gradient: Tensor) -> None:
    raise RuntimeError("no gradient")
