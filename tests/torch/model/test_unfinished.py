"""Steps that a device has not finished are undone, back to the first that is not whole."""

from typing import Any

import pytest
import torch
from torch import nn

from autobyte.torch.model.unfinished import KEPT, Unfinished


class Steps:
    """A model that is trained; which of its steps are whole is said here."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.unfinished = Unfinished(self.optimizer)
        self.whole: list[bool] = []
        self.before: list[list[Any]] = []

    @torch.no_grad()
    def step(self, *, copy: bool = True) -> None:
        number = len(self.whole)
        self.before.append(self.now())
        self.whole.append(False)
        self.unfinished.keep([{"lr": 0.1 + number}], lambda: self.whole[number], copy=copy)
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1.0 + number)
        self.optimizer.step()

    def now(self) -> list[Any]:
        state = self.optimizer.state
        return [[parameter.tolist(), *[v.tolist() for v in state.get(parameter, {}).values()]] for parameter in self]

    def __iter__(self) -> Any:
        return iter(self.model.parameters())

    @torch.no_grad()
    def undo(self) -> Any:
        return self.unfinished.undo()


def test_all_steps_from_the_first_that_is_not_whole_are_undone() -> None:
    steps = Steps()
    for _ in range(4):
        steps.step()
        steps.whole[-1] = True
    steps.whole[-1] = False
    steps.step()
    assert steps.undo() == (2, [{"lr": 3.1}])
    assert steps.now() == steps.before[3]
    assert steps.undo() == (0, [])  # once is enough
    assert steps.now() == steps.before[3]


def test_a_step_is_whole_whatever_follows() -> None:
    steps = Steps()
    steps.step()
    steps.whole[0] = True
    after = steps.now()
    assert steps.undo() == (0, [])
    assert steps.now() == after


def test_steps_beyond_the_copies_are_undone_with_those_before_them() -> None:
    steps = Steps()
    for _ in range(KEPT + 2):
        steps.step()
    assert steps.undo() == (KEPT + 2, [{"lr": 0.1}])
    assert steps.now() == steps.before[0]


@pytest.mark.parametrize("copy", [True, False])
def test_a_step_without_copies_cannot_be_undone(copy: bool) -> None:
    """Because the host was too far ahead when it began, or because it had begun before."""
    steps = Steps()
    for number in range(KEPT + 1):
        steps.step(copy=copy or number < KEPT)
    steps.whole[:KEPT] = [True] * KEPT
    assert steps.undo() is None
    assert steps.undo() is None
    steps.whole[KEPT] = True  # it was only late
    steps.step()
    assert steps.undo() == (1, [{"lr": 0.1 + KEPT + 1}])
    assert steps.now() == steps.before[-1]
