"""Parameters whose gradients travel: reads of `.grad` are seen, and nothing else is different."""

import copy
import pickle
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from autobyte.torch.model.awaited import Awaited, Awaiting


class Doubled(nn.Parameter):
    """A parameter with operations of its own."""

    asked: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Iterable[type], args: Any = (), kwargs: Any = None) -> Any:
        cls.asked.append(func)
        if func is torch.neg:
            assert set(types) <= {Doubled, nn.Parameter, Tensor}
            return "doubled"
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def make(kind: type = nn.Parameter) -> tuple[Any, Awaited, list[Any]]:
    parameter, read = kind(torch.arange(3.0)), []
    parameter.grad = torch.ones(3)
    awaited = Awaited([parameter], read.append)
    awaited.set()
    return parameter, awaited, read


def test_reads_of_gradients_are_seen_until_the_class_is_restored() -> None:
    parameter, awaited, read = make()
    assert isinstance(parameter, nn.Parameter)
    assert torch.equal(parameter.grad, torch.ones(3))
    assert read == [parameter]
    assert parameter.grad.norm() > 0
    assert len(read) == 2
    awaited.restore()
    assert type(parameter) is nn.Parameter
    assert parameter.grad is not None
    assert len(read) == 2


def test_anything_else_is_as_it_was() -> None:
    parameter, _, read = make()
    assert type(parameter * 2) is Tensor
    assert type(parameter.detach()) is Tensor
    assert parameter.shape == (3,)
    with torch.no_grad():
        parameter.add_(1)
    parameter.grad = None
    assert not read
    assert torch.equal(parameter.detach(), torch.arange(3.0) + 1)


def test_functions_take_parameters_beside_plain_tensors() -> None:
    """Some name every tensor that they take, buffers, too."""
    norm = nn.BatchNorm1d(2)
    awaited = Awaited(norm.parameters(), lambda _: None)
    plain = norm(torch.ones(3, 2))
    awaited.set()
    assert torch.equal(norm(torch.ones(3, 2)), plain)


def test_zeroing_reads_nothing() -> None:
    module = nn.Linear(2, 2)
    read: list[Any] = []
    awaited = Awaited(module.parameters(), read.append)
    awaited.set()
    module.zero_grad()
    torch.optim.SGD(module.parameters()).zero_grad()
    assert not read


def test_copies_are_of_the_parameters_own_class() -> None:
    for kind in (nn.Parameter, Doubled):
        parameter, _, _ = make(kind)
        for other in (copy.deepcopy(parameter), pickle.loads(pickle.dumps(parameter))):
            assert not isinstance(other, Awaiting)
            assert torch.equal(other.detach(), parameter.detach())
        assert isinstance(parameter, Awaiting)


def test_a_class_of_the_users_goes_on_as_it_does() -> None:
    parameter, awaited, read = make(Doubled)
    assert torch.neg(parameter) == "doubled"
    plain, _, _ = make()
    plain.grad = None
    assert type(plain + parameter) is type(parameter + plain) is Tensor
    assert [Tensor.add in Doubled.asked, Doubled.asked.count(Tensor.add)] == [True, 2], "whoever stands first"
    assert not read
    assert parameter.grad is not None
    assert read == [parameter]
    awaited.restore()
    assert type(parameter) is Doubled
    assert torch.neg(parameter) == "doubled"
