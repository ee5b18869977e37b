"""What a loop holds of parameters and gradients is found, and what it does not hold is not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autobyte.torch.model.aliases import held


def trained() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = nn.Parameter(model[0].weight.detach().clone())
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()


def test_a_plain_loop_holds_nothing() -> None:
    model, optimizer = trained()
    loss = model(torch.ones(3, 4)).sum()
    loss.backward()
    optimizer.step()
    assert held(dict(model.named_parameters())) == ""
    optimizer.zero_grad()
    assert held(dict(model.named_parameters())) == ""
    tied = nn.Linear(4, 4)
    tied.weight = model[0].weight
    assert held(dict(model.named_parameters())) == ""


HOLD: list[Callable[[nn.Parameter], Any]] = [
    lambda weight: weight.detach(),
    lambda weight: weight.data,
    lambda weight: weight.detach().numpy(),
    lambda weight: weight[0],
    lambda weight: weight.grad,
    lambda weight: weight.grad.data,  # type: ignore[union-attr]
    lambda weight: weight.grad.view(-1),  # type: ignore[union-attr]
]


@pytest.mark.parametrize("hold", HOLD)
def test_whatever_shares_memory_is_found(hold: Callable[[nn.Parameter], Any]) -> None:
    model, _ = trained()
    kept = hold(model[2].weight)
    assert held(dict(model.named_parameters())) == "2.weight"
    del kept
    assert held(dict(model.named_parameters())) == ""


def test_a_gradient_in_a_buffer_of_the_users_is_found() -> None:
    model, _ = trained()
    buffer = torch.zeros(2, 4)
    model[0].bias.grad = buffer[0]
    assert held(dict(model.named_parameters())) == "0.bias"
