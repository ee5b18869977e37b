"""A parameter whose update is due: reading or writing it takes the update first, looking at it does not."""

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import get_total_norm, parameters_to_vector, vector_to_parameters

from autobyte.torch.model.pending import LOOKS, Pending, PendingClasses, PendingOptimizer


class Due:
    """A parameter of threes; its update makes ones of them, once."""

    def __init__(self) -> None:
        self.parameter = nn.Parameter(torch.full((3,), 3.0))
        self.taken = 0
        self._classes = PendingClasses([self.parameter], self._take)
        self._classes.set()

    def _take(self) -> None:
        self._classes.restore()
        self.taken += 1
        with torch.no_grad():
            self.parameter.fill_(1.0)


def prelu(parameter: nn.Parameter) -> nn.PReLU:
    module = nn.PReLU(3)
    module.weight = parameter
    return module


def saved(parameter: nn.Parameter) -> Tensor:
    file = io.BytesIO()
    torch.save(parameter, file)
    file.seek(0)
    loaded: Tensor = torch.load(file)
    return loaded


def moving_average(parameter: nn.Parameter) -> Tensor:
    average = torch.zeros(3)
    torch._foreach_lerp_([average], [parameter.detach()], 1.0)
    return average


def through_vector(parameter: nn.Parameter) -> Tensor:
    vector_to_parameters(parameters_to_vector([parameter]), [parameter])
    return parameter


READS: dict[str, Callable[[nn.Parameter], Tensor]] = {
    "data": lambda p: p.data,
    "detach": lambda p: p.detach(),
    "clone": lambda p: p.clone(),
    "numpy": lambda p: torch.from_numpy(p.detach().numpy()),
    "array": lambda p: torch.from_numpy(np.asarray(p.detach())),
    "tolist": lambda p: torch.tensor(p.tolist()),
    "item": lambda p: p[:1].item() * torch.ones(3),
    "dlpack": lambda p: torch.from_dlpack(p.detach()),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda p: pickle.loads(pickle.dumps(p)),
    "save": saved,
    "copied into": lambda p: torch.zeros(3).copy_(p.detach()),
    "foreach": lambda p: torch._foreach_add([p], 0.0)[0],
    "moving average": moving_average,
    "averaged model": lambda p: torch.optim.swa_utils.AveragedModel(prelu(p)).module.weight,
    "stack": lambda p: torch.stack([p, p])[0],
    "in a dict": lambda p: torch.func.functional_call(nn.PReLU(3), {"weight": p}, -torch.ones(1, 3))[0].neg(),
    "norm": lambda p: get_total_norm([p]) / 3**0.5 * torch.ones(3),
    "vector": through_vector,
    "state_dict": lambda p: prelu(p).state_dict()["weight"],
    "module copy": lambda p: copy.deepcopy(prelu(p)).weight,
    "vmap": torch.vmap(torch.abs),
    "storage": lambda p: torch.tensor(p.untyped_storage().tolist()[:0] + p.tolist()),
    "inference": torch.inference_mode()(lambda p: p * 1),
}


@pytest.mark.parametrize("how", READS)
def test_whoever_reads_a_parameter_gets_its_update(how: str) -> None:
    due = Due()
    read = READS[how](due.parameter)
    assert due.taken == 1
    assert type(due.parameter) is nn.Parameter
    assert not isinstance(read, Pending)
    assert read.tolist() == pytest.approx([1.0] * 3)


WRITES: dict[str, Callable[[nn.Parameter], object]] = {
    "mul_": torch.no_grad()(lambda p: p.mul_(5)),
    "data": lambda p: p.data.mul_(5),
    "data set": lambda p: setattr(p, "data", p.data * 5),
    "foreach": torch.no_grad()(lambda p: torch._foreach_mul_([p], 5.0)),
    "item": torch.no_grad()(lambda p: p.__setitem__(slice(None), p * 5)),
    "init": lambda p: nn.init.constant_(p, 5.0),
    "numpy": lambda p: np.multiply(p.detach().numpy(), 5, out=p.detach().numpy()),
}


@pytest.mark.parametrize("how", WRITES)
def test_whoever_writes_a_parameter_writes_over_its_update(how: str) -> None:
    due = Due()
    WRITES[how](due.parameter)
    assert due.taken == 1
    assert due.parameter.tolist() == [5.0] * 3


def test_looking_at_a_parameter_takes_no_update() -> None:
    due = Due()
    parameter = due.parameter
    assert isinstance(parameter, nn.Parameter)
    assert (parameter.shape, parameter.dtype, parameter.numel(), len(parameter)) == ((3,), torch.float32, 3, 3)
    assert {parameter: 1}[parameter] == 1
    parameter.grad = torch.ones(3)
    parameter.grad = None
    assert due.taken == 0
    assert all(callable(look) for look in LOOKS)


def test_a_gradient_is_read_once_it_is_an_average_but_not_to_let_go_of_it() -> None:
    due, layer = Due(), nn.Module()
    layer.register_parameter("weight", due.parameter)
    for each in (layer, torch.optim.SGD([due.parameter], lr=0.1)):
        due.parameter.grad = torch.ones(3)
        each.zero_grad()
        assert due.taken == 0
    assert due.parameter.grad is None
    assert due.taken == 1


def test_a_parameter_that_is_frozen_meanwhile_is_updated_before() -> None:
    due = Due()
    due.parameter.requires_grad_(False)
    assert due.taken == 1


def test_reading_one_layer_leaves_the_others() -> None:
    first, second = Due(), Due()
    assert first.parameter.sum() == 3
    assert (first.taken, second.taken) == (1, 0)
    assert torch.dot(first.parameter, second.parameter) == 3
    assert (first.taken, second.taken) == (1, 1)


def test_a_subclass_of_parameter_stays_what_it_is() -> None:
    class Special(nn.Parameter):
        pass

    parameter = Special(torch.zeros(2))
    classes = PendingClasses([parameter], lambda: None)
    classes.set()
    assert isinstance(parameter, Special)
    assert isinstance(parameter, Pending)
    classes.restore()
    assert type(parameter) is Special


def test_fake_tensors_of_a_parameter() -> None:
    due = Due()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(due.parameter)
    assert fake.shape == (3,)


BEGUN: dict[str, Callable[[nn.Parameter], Callable[[], object]]] = {
    "deepcopy": lambda p: partial(p.__deepcopy__, {}),
    "pickle": lambda p: partial(p.__reduce_ex__, 4),
}


@pytest.mark.parametrize("how", BEGUN)
def test_another_thread_restores_the_class_while_a_read_begins(how: str) -> None:
    due = Due()
    read = BEGUN[how](due.parameter)  # looked up while the update was due
    due.parameter.__class__ = nn.Parameter
    read()
    assert due.taken == 1  # that is, it asks for the update, which waits for a thread that is taking it


def test_another_thread_restores_an_optimizers_class_while_its_state_is_read() -> None:
    optimizer, taken = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1, momentum=0.9), list[str]()
    pending = PendingOptimizer(optimizer, lambda: taken.append("all"))
    pending.set()
    kind: Any = type(optimizer)
    reduce, set_state = optimizer.__reduce_ex__, optimizer.__setstate__
    pending.restore()
    assert kind.state.__get__(optimizer) is optimizer.state
    kind.state.__set__(optimizer, optimizer.state)
    set_state(optimizer.__getstate__())
    reduce(4)
    assert taken == ["all"] * 4
