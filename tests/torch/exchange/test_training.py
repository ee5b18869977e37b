"""Which parameters travel, and which cannot."""

import pytest
import torch
from ranks import on_ranks
from stories import (
    make_mlp,
    sgd,
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab
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


def test_refuses_models_whose_gradients_another_wrapper_moves() -> None:
    on_ranks(_wrapped_otherwise, 2)


def _wrapped_otherwise(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    cut = make_mlp()
    cut[0].weight = nn.Parameter(distribute_tensor(cut[0].weight.detach(), mesh, [Shard(0)]))
    sharded = make_mlp()
    fully_shard(sharded, mesh=mesh)
    for module, message in (
        (DistributedDataParallel(make_mlp()), "wrapped by DistributedDataParallel, which moves gradients itself"),
        (nn.Sequential(sharded), "wrapped by FSDPModule, which moves gradients itself"),
        (cut, "parameter '0.weight' is a DTensor"),
    ):
        with pytest.raises(InputError) as caught:
            ab.DistributedOptimizer(sgd(module), module)
        assert message in str(caught.value)
