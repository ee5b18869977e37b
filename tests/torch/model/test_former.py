"""What is brought back is what was kept, bit by bit: parameters, and all that optimizers keep for them."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, Optimizer

from autobyte.torch.model.former import Former

MAKE: list[Callable[[Any], Optimizer]] = [
    lambda parameters: SGD(parameters, lr=0.1),
    lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
    lambda parameters: Adam(parameters, lr=0.1, amsgrad=True),
    lambda parameters: LBFGS(parameters, lr=0.1, history_size=2, max_iter=3),
]


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("before", [0, 4])
def test_it_is_as_if_nothing_had_happened(make: Callable[[Any], Optimizer], before: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = make(model.parameters())
    inputs = torch.randn(before + 2, 5, 3)
    for step in range(before):
        train(model, optimizer, inputs[step])
    kept = copy.deepcopy(everything(model, optimizer))
    former = Former(optimizer)
    with torch.no_grad():
        former.keep(model.parameters())
    assert len(former) == 4
    for step in range(before, before + 2):
        train(model, optimizer, inputs[step])
    assert not alike(everything(model, optimizer), kept)
    with torch.no_grad():
        former.bring_back()
    assert alike(everything(model, optimizer), kept)
    assert len(former) == 0


def train(model: nn.Module, optimizer: Optimizer, inputs: Tensor) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)


def everything(model: nn.Module, optimizer: Optimizer) -> list[Any]:
    return [model.state_dict(), optimizer.state_dict()]


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def test_the_memory_of_copies_is_used_again_from_step_to_step() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, torch.ones(5, 3))
    former = Former(optimizer)
    places = []
    for _ in range(3):
        keep(former, model.parameters())
        places.append(rooms(former))
        former.forget()
        train(model, optimizer, torch.ones(5, 3))
    assert len(places[0]) == 8  # four parameters, and their momentum
    assert places[0] == places[1] == places[2]
    former.release()
    assert rooms(former) == set()


def test_what_was_brought_back_is_no_memory_for_copies() -> None:
    """The optimizer has it as its state: to copy into it would change that."""
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, torch.ones(5, 3))
    former = Former(optimizer)
    keep(former, model.parameters())
    train(model, optimizer, torch.ones(5, 3))
    with torch.no_grad():
        former.bring_back()
    state = copy.deepcopy(optimizer.state_dict())
    own = {value["momentum_buffer"].data_ptr() for value in optimizer.state.values()}
    keep(former, model.parameters())
    assert not own & rooms(former)
    assert alike(optimizer.state_dict(), state)


def test_a_tensor_that_came_in_the_place_of_another_is_not_copied_into_its_memory() -> None:
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, torch.ones(5, 3))
    former = Former(optimizer)
    keep(former, model.parameters())
    former.forget()
    buffers = [value["momentum_buffer"] for value in optimizer.state.values()]
    for value in optimizer.state.values():
        value["momentum_buffer"] = value["momentum_buffer"].double() / 3
    kept = copy.deepcopy(everything(model, optimizer))
    keep(former, model.parameters())
    for value in optimizer.state.values():
        value["momentum_buffer"].zero_()
    with torch.no_grad():
        former.bring_back()
    assert alike(everything(model, optimizer), kept)
    assert all(value["momentum_buffer"].dtype is torch.float64 for value in optimizer.state.values())
    assert all(buffer.dtype is torch.float32 for buffer in buffers)


def keep(former: Former, parameters: Iterable[nn.Parameter]) -> None:
    with torch.no_grad():
        former.keep(parameters)


def rooms(former: Former) -> set[int]:
    """Addresses of memory that is kept for copies."""
    return {kept.tensor.data_ptr() for copies in former._copies.values() for kept in copies.values()}
