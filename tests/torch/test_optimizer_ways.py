"""Ways through models and scripts on which updates that wait and gradients that travel could go wrong; beside DDP."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from ranks import on_ranks
from stories import (
    STEPS,
    make_mlp,
    parameters_of,
    rows,
    sgd,
    told_twice,
    train,
    with_ab,
    with_ddp,
)
from torch import Tensor, nn


class Tasks(nn.Module):
    """A stem for each task, the same for all ranks, and a trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.stems = nn.ModuleList([nn.Linear(12, 16), nn.Sequential(nn.Linear(12, 16), nn.Tanh())])
        self.trunk = nn.Linear(16, 4)

    def forward(self, inputs: Tensor, task: int) -> Tensor:
        return self.trunk(self.stems[task](inputs))


class Tied(nn.Module):
    """A weight that is used at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.head = (nn.Linear(12, 12, bias=False) for _ in range(3))
        self.head.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.middle(self.first(inputs)).tanh())


class Places(nn.Module):
    """Parameters whose gradient is a view of one that is still needed, where a batch is one row.

    With several that are added, passes cannot be accumulated: torch adds to all gradients in one place.
    """

    def __init__(self, *, pair: bool) -> None:
        super().__init__()
        self.pair = pair
        self.words, self.last = nn.Linear(4, 64), nn.Linear(64, 2)
        self.place, self.one, self.other = (
            nn.Parameter(torch.randn(shape)) for shape in ((30, 64), (1920,), (1920,))
        )

    def forward(self, inputs: Tensor) -> Tensor:
        one, other = self.one.view(1, 30, 64), self.other.view(1, 30, 64)
        both = one + other if self.pair else 2 * one + 3 * other
        return self.last((self.words(inputs.view(1, 30, 4)) + self.place.unsqueeze(0) + both).tanh())


def tasks(rank: int, taken: list[int], zeroed: str) -> None:
    """The parameters of `Tasks`, a task each step; who clears the gradients."""

    def story(wrap: Any, **keywords: Any) -> list[Tensor]:
        torch.manual_seed(0)
        module = Tasks()
        model, optimizer = wrap(module, sgd(module), **keywords)
        for step, task in enumerate(taken):
            if zeroed == "parameters":
                for parameter in module.parameters():
                    parameter.grad = None
            else:
                (optimizer if zeroed == "optimizer" else module).zero_grad()
            model(rows(rank, step, 5, 12), task).square().mean().backward()
            optimizer.step()
        return parameters_of(module, optimizer)

    told_twice(story, find_unused_parameters=True)


def test_a_branch_that_was_not_taken_in_the_first_step() -> None:
    on_ranks(_branch, 2)


def _branch(rank: int) -> None:
    tasks(rank, [0, 1, 1, 1, 0, 0, 1, 0, 1, 1], "optimizer")


def test_each_owner_of_a_tied_weight_may_be_called_first() -> None:
    on_ranks(_tied, 2)


def _tied(rank: int) -> None:
    def story(wrap: Any) -> list[Tensor]:
        torch.manual_seed(0)
        module = Tied()
        model, optimizer = wrap(module, sgd(module))
        seen = []
        for step in range(STEPS):
            train(model, optimizer, rank, range(step, step + 1))
            with torch.no_grad():
                seen.append(module.head(torch.ones(2, 12)))
        return seen

    told_twice(story)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_gradients_that_share_memory(accumulation: int) -> None:
    on_ranks(_shared, 2, accumulation)


def _shared(rank: int, accumulation: int) -> None:
    def story(wrap: Any) -> list[Tensor]:
        torch.manual_seed(0)
        module = Places(pair=accumulation == 1)
        model, optimizer = wrap(module, sgd(module), **({"accumulation": accumulation} if wrap is with_ab else {}))
        for step in range(STEPS):
            optimizer.zero_grad()
            for part in range(accumulation):
                last = wrap is with_ab or part == accumulation - 1
                with nullcontext() if last else model.no_sync():
                    model(rows(rank, step + 100 * part, 1, 120)).square().mean().backward()
            optimizer.step()
        return parameters_of(module, optimizer)

    told_twice(story)


@pytest.mark.parametrize("zeroed", ["model", "parameters"])
def test_gradients_dropped_without_the_optimizer_where_only_another_rank_had_one(zeroed: str) -> None:
    on_ranks(_dropped, 2, zeroed)


def _dropped(rank: int, zeroed: str) -> None:
    tasks(rank, [int(step % 3 == rank) for step in range(12)], zeroed)


def test_layers_that_are_frozen_after_wrapping_and_thawed_again() -> None:
    on_ranks(_frozen, 2)


def _frozen(rank: int) -> None:
    def story(wrap: Any, **keywords: Any) -> list[Tensor]:
        module = make_mlp()
        model, optimizer = wrap(module, sgd(module), **keywords)
        module[0].requires_grad_(False)
        train(model, optimizer, rank, range(20))
        module[0].requires_grad_(True)
        train(model, optimizer, rank, range(20, 30))
        return parameters_of(module, optimizer)

    told_twice(story, find_unused_parameters=True)


def test_a_scaler_waits_for_passes_that_are_left_over() -> None:
    """Two of four when inputs end; one rank's overflow is every rank's."""
    on_ranks(_left_over, 2)


def _left_over(rank: int) -> None:
    def story(wrap: Any) -> list[Tensor]:
        module = make_mlp()
        model, optimizer = wrap(module, sgd(module), **({"accumulation": 4} if wrap is with_ab else {}))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        for step in range(STEPS):
            optimizer.zero_grad()
            for part in range(2):
                with model.no_sync() if part == 0 and wrap is with_ddp else nullcontext():
                    loss = model(rows(rank, step + 100 * part, 5, 12)).square().mean()
                    scaler.scale(loss * (torch.inf if (step, rank, part) == (2, 0, 1) else 1)).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        return [*parameters_of(module, optimizer), torch.tensor(scaler.get_scale())]

    told_twice(story)
