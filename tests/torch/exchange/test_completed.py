"""Gradients that backward passes have completed: what is missing, what was changed, and who may change it."""

from typing import Any

import pytest
import torch
from torch import nn

from autobyte.errors import InputError
from autobyte.exchange.progress import Progress
from autobyte.torch.exchange.completed import Completed


def make(**frozen: nn.Parameter) -> tuple[Completed, list[nn.Parameter]]:
    parameters = {name: nn.Parameter(torch.zeros(2)) for name in "abc"}
    for parameter in parameters.values():
        parameter.grad = torch.ones(2)
    return Completed(parameters, frozen, Progress(), lambda _: None, lambda: None), list(parameters.values())


def complete(completed: Completed, *places: int) -> None:
    completed.begin()
    for place in places:
        gradient: Any = completed.parameters[place].grad
        completed.gradients.append((place, gradient, gradient._version))


def test_what_is_missing_is_named() -> None:
    completed, _ = make()
    complete(completed, 2, 0)
    assert completed.missing() == ["b"]
    complete(completed, 1)
    assert completed.missing() == []


def test_what_travels_once_does_not_travel_again() -> None:
    completed, parameters = make()
    complete(completed, 0, 1)
    own = torch.ones(2)
    completed.send(lambda rows: [(place, own, own._version) for place, _, _ in rows])
    parameters[0].grad = parameters[1].grad = own
    complete(completed, 2)
    sent: list[int] = []
    completed.send(lambda rows: [sent.append(place) or (place, gradient, v) for place, gradient, v in rows])
    assert sent == [2]
    completed.check(ahead=False)
    assert completed.gradients == []


@pytest.mark.parametrize("change", [lambda p: p.grad.mul_(2), lambda p: setattr(p, "grad", torch.ones(2))])
def test_a_change_is_borne_once_the_average_was_read(change: Any) -> None:
    for bears, read, norm_known, refused in (
        (False, True, False, True),
        (True, False, False, True),
        (True, True, True, True),  # it would be another
        (True, True, False, False),
    ):
        completed, parameters = make()
        completed.bears_changes = bears
        complete(completed, 0, 1, 2)
        if read:
            completed.note_read(1)
        change(parameters[1])
        if refused:
            with pytest.raises(InputError, match="the gradient of 'b' was changed between backward"):
                completed.check(ahead=True, norm_known=norm_known)
        else:
            completed.check(ahead=True, norm_known=norm_known)
            completed.check(ahead=False)  # what was borne is what travels
        assert completed.has_changed() is not refused
        assert not completed.has_changed()


def test_a_read_counts_in_its_own_step_only() -> None:
    completed, parameters = make()
    completed.bears_changes = True
    complete(completed, 0)
    completed.note_read(0)
    completed.check(ahead=False)
    complete(completed, 0)
    parameters[0].grad = torch.ones(2)
    with pytest.raises(InputError, match="was changed"):
        completed.check(ahead=False)


def test_a_frozen_parameter_with_a_gradient_is_refused() -> None:
    thawed = nn.Parameter(torch.zeros(2))
    completed, _ = make(d=thawed)
    completed.check(ahead=False)
    thawed.grad = torch.ones(2)
    with pytest.raises(InputError, match="'d' was frozen"):
        completed.check(ahead=False)
