"""Gradients between a backward pass and the step: whoever touches one waits for averages, and nothing else does."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from autobyte.torch.model.awaited import Awaited


class Travelling:
    """Gradients of ones; their averages are twos."""

    def __init__(self) -> None:
        self.parameters = {"weight": nn.Parameter(torch.full((3,), 3.0)), "bias": nn.Parameter(torch.zeros(3))}
        self.reduction: object | None = None
        self.complete = True
        self.waited = self.changes = 0
        self.awaited = Awaited(self, self._average, self._note)
        for parameter in self.parameters.values():
            parameter.grad = torch.ones(3)
        self.awaited.set()

    def _average(self) -> None:
        self.waited += 1
        self.awaited.restore()
        for parameter in self.parameters.values():
            assert parameter.grad is not None
            parameter.grad.fill_(2.0)

    def _note(self) -> None:
        self.changes += 1


def gradients(of: Travelling) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in of.parameters.values() if parameter.grad is not None]


def test_reading_one_gradient_waits_for_all_averages_once() -> None:
    travelling = Travelling()
    assert all(torch.equal(each, torch.full((3,), 2.0)) for each in gradients(travelling))
    assert travelling.waited == 1
    assert all(type(parameter) is nn.Parameter for parameter in travelling.parameters.values())
    travelling.awaited.restore()
    assert travelling.changes == 0, "reading is no change"


def test_nobody_waits_while_a_gradient_is_missing() -> None:
    travelling = Travelling()
    travelling.complete = False
    assert torch.equal(gradients(travelling)[0], torch.ones(3))
    assert travelling.waited == 0


def _clip(of: Travelling) -> None:
    nn.utils.clip_grad_norm_(of.parameters.values(), 1.0)


def _replace(of: Travelling) -> None:
    of.parameters["bias"].grad = torch.zeros(3)


def _drop(of: Travelling) -> None:
    del of.parameters["weight"].grad


def _in_place(of: Travelling) -> None:
    gradient = of.parameters["weight"].grad
    assert gradient is not None
    gradient.mul_(2)


@pytest.mark.parametrize("change", [_clip, _replace, _drop, _in_place])
def test_a_change_is_one_of_averages_and_is_told_when_the_step_is_closed(
    change: Callable[[Travelling], None],
) -> None:
    travelling = Travelling()
    change(travelling)
    assert (travelling.waited, travelling.changes) == (1, 0)
    travelling.awaited.restore()
    assert travelling.changes == 1
    travelling.awaited.restore()
    assert travelling.changes == 1, "once"


def test_whatever_is_no_gradient_goes_on_as_it_is() -> None:
    travelling = Travelling()
    weight, bias = travelling.parameters.values()
    total = nn.functional.linear(torch.ones(3), weight.view(1, 3)) + weight.norm() + (weight + bias).sum()
    assert type(total) is Tensor
    assert isinstance(weight, nn.Parameter)
    assert weight.shape == (3,)
    assert (hash(weight), repr(weight.detach()), len(weight)) == (hash(weight), "tensor([3., 3., 3.])", 3)
    total.sum().backward()  # autograd adds to gradients without Python
    with torch.no_grad():
        weight.mul_(2)
    assert travelling.waited == 0
    travelling.awaited.restore()
    assert torch.equal(weight.detach(), torch.full((3,), 6.0))
    assert weight.grad is not None
    assert weight.grad[0] > 1


@pytest.mark.parametrize("complete", [True, False])
def test_a_copy_is_one_of_the_usual_class(complete: bool) -> None:
    travelling = Travelling()
    travelling.complete = complete
    twin = copy.deepcopy(travelling.parameters["weight"])
    assert type(twin) is nn.Parameter
    assert travelling.waited == complete


def test_a_further_pass_of_the_step_has_its_own_gradients_and_classes_are_set_again_behind_it() -> None:
    travelling = Travelling()
    weight = travelling.parameters["weight"]
    seen = []
    hook = weight.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad.clone()))
    weight.sum().backward()
    hook.remove()
    assert torch.equal(seen[0], torch.full((3,), 2.0))  # 1 + 1, as backward passes add
    assert travelling.waited == 0
    assert type(weight) is not nn.Parameter
    assert torch.equal(gradients(travelling)[0], torch.full((3,), 2.0))
    assert travelling.waited == 1


@pytest.mark.parametrize(("reduced", "inside"), [(False, True), (False, False), (True, True)])
def test_classes_are_set_behind_the_pass_that_begins_a_step_of_blocks(reduced: bool, inside: bool) -> None:
    travelling = Travelling()
    travelling.awaited.restore()
    travelling.reduction = object() if reduced else None
    weight = travelling.parameters["weight"]
    weight.register_post_accumulate_grad_hook(lambda _: travelling.awaited.begin() if inside else None)
    weight.sum().backward()
    if not inside:
        travelling.awaited.begin()  # a step without a backward pass
    assert (type(weight) is nn.Parameter) == (reduced or not inside)
