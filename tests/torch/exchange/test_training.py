"""Which parameters travel, and which cannot."""

import pytest
import torch
from torch import nn

from autobyte.errors import InputError
from autobyte.torch.exchange.training import travelling


def test_every_trained_parameter_travels_once() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight  # tied
    model[0].bias.requires_grad_(False)
    assert list(travelling(torch.optim.SGD(model.parameters(), lr=1), model)) == ["0.weight", "1.bias"]


def test_parameters_that_are_nowhere_are_refused() -> None:
    model = nn.Linear(2, 2, device="meta")
    with pytest.raises(InputError, match="parameter 'weight' is on meta: gradients travel from CPUs and CUDA"):
        travelling(torch.optim.SGD(model.parameters(), lr=1), model)


def test_parameters_of_another_model_are_refused() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    with pytest.raises(InputError, match="trains 2 parameters that are not of 'Linear'"):
        travelling(torch.optim.SGD([*model.parameters(), *other.parameters()], lr=1), model)
    with pytest.raises(InputError, match="trains no parameter of 'Linear'"):
        travelling(torch.optim.SGD(other.parameters(), lr=1), model)
