"""What is brought back is what was kept, bit by bit: parameters, and all that optimizers keep for them."""

import copy
from collections.abc import Callable
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
