"""The prototype of hybrid sharding: the same parameters as FSDP2's own, whatever crosses the step."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from ranks import on_ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from autobyte.config import Config
from autobyte.torch.model.planning import agreed_plan

STEPS = 4
TOOL = Path(__file__).parent.parent / "tools" / "hsdp" / "replicas.py"
SIZES = [(5, 7), (7, 4), (4, 9), (9, 3)]  # rows that two ranks cannot halve are among them


def prototype() -> ModuleType:
    """The script as a module."""
    if "replicas" not in sys.modules:
        spec = importlib.util.spec_from_file_location("replicas", TOOL)
        assert spec is not None and spec.loader is not None
        sys.modules["replicas"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["replicas"]


class Tailed(nn.Module):
    """Layers that are units of their own, and a last one that the root holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(*size) for size in SIZES))
        self.tail = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.tail(self.layers(inputs))


def make(mesh: DeviceMesh) -> nn.Module:
    torch.manual_seed(0)
    model = Tailed()
    return prototype().shard(model, model.layers, mesh)


def train(model: nn.Module, rank: int, step: object) -> None:
    for number in range(STEPS):
        generator = torch.Generator().manual_seed(10 * number + rank)
        model(torch.randn(6, 5, generator=generator)).pow(2).mean().backward()
        step()


def sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def whole(model: nn.Module) -> list[Any]:
    return [parameter.full_tensor().tolist() for parameter in model.parameters()]


def mesh_of(shape: tuple[int, int]) -> DeviceMesh:
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))


def own(rank: int, shape: tuple[int, int]) -> list[Any]:
    """Train with FSDP2's own all-reduce."""
    model = make(mesh_of(shape))
    optimizer = sgd(model.parameters())

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    train(model, rank, step)
    return whole(model)


def in_blocks(rank: int, shape: tuple[int, int], crosses: bool) -> list[Any]:
    """Train with blocks of at most 10 elements, three in flight."""
    mesh, module = mesh_of(shape), prototype()
    model = make(mesh["shard"])
    held = module.units(model)
    plan = agreed_plan(module.job_of(held, mesh), Config(40, 120))
    assert len(plan.tiling) > 2 * len(held)
    replicas = module.Replicas(held, mesh, plan, sgd, crosses=crosses)
    train(model, rank, replicas.step)
    replicas.close()
    return whole(model)


@pytest.mark.parametrize("crosses", [False, True])
def test_parameters_are_those_of_fsdp2_to_the_bit(crosses: bool) -> None:
    expected = on_ranks(own, 4, (2, 2))[0]
    assert on_ranks(in_blocks, 4, (2, 2), crosses) == 4 * [expected]
