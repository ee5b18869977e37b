"""The prototype of hybrid sharding: the same parameters as FSDP2's own, whether updates cross the step or not."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from ranks import on_ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

from autobyte.config import Config
from autobyte.exchange.planning import agreed_plan

STEPS = 4
SIZES = [(5, 7), (7, 4), (4, 9), (9, 3)]  # rows that two ranks cannot halve are among them
TOOL = Path(__file__).parent.parent / "tools" / "hsdp" / "replicas.py"


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
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(nn.Linear(*size) for size in SIZES))
        self.tail = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.tail(self.layers(inputs))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def sharded(mesh: DeviceMesh, **options: Any) -> nn.Module:
    model = Tailed()
    return prototype().shard(model, model.layers, mesh, **options)


def backward(model: nn.Module, rank: int, step: int) -> None:
    inputs = torch.randn(6, 5, generator=torch.Generator().manual_seed(10 * step + rank))
    model(inputs).pow(2).mean().backward()


def whole(model: nn.Module) -> list[Any]:
    return [parameter.full_tensor().tolist() for parameter in model.parameters()]


def replicas_of(model: nn.Module, mesh: DeviceMesh, *, crosses: bool) -> Any:
    """Blocks of at most 10 elements, three in flight."""
    module = prototype()
    held = module.units(model)
    plan = agreed_plan(module.job_of(held, mesh), Config(40, 120))
    assert len(plan.tiling) > 2 * len(held)
    return module.Replicas(held, mesh, plan, sgd, crosses=crosses)


def by_fsdp2(rank: int, mesh: DeviceMesh) -> list[Any]:
    """Parameters after a training with FSDP2's own all-reduce."""
    model = sharded(mesh)
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        backward(model, rank, step)
        optimizer.step()
        optimizer.zero_grad()
    return whole(model)


def in_blocks(rank: int, mesh: DeviceMesh, sharding: DeviceMesh, *, crosses: bool) -> list[Any]:
    """Parameters after the same training in blocks; on the way, whether they change in `step` or after it."""
    model = sharded(sharding)
    replicas = replicas_of(model, mesh, crosses=crosses)
    for step in range(STEPS):
        backward(model, rank, step)
        before = whole(model)
        replicas.step()
        assert (whole(model) == before) is crosses
    replicas.close()
    assert all(parameter.device_mesh == sharding for parameter in model.parameters())
    return whole(model)


def ways(rank: int) -> list[Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    idle = prototype().mesh_with_replicas(2, 2)
    return [
        by_fsdp2(rank, mesh),
        in_blocks(rank, mesh, mesh["shard"], crosses=False),
        in_blocks(rank, mesh, mesh["shard"], crosses=True),
        in_blocks(rank, mesh, idle, crosses=True),
    ]


def test_parameters_are_those_of_fsdp2_to_the_bit() -> None:
    ranks = on_ranks(ways, 4)
    assert ranks == 4 * [4 * [ranks[0][0]]]


def refusals(rank: int) -> list[str]:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    inputs, said = torch.ones(1, 5), []

    model = sharded(mesh["shard"])
    replicas = replicas_of(model, mesh, crosses=True)
    model.layers(inputs).sum().backward()
    with pytest.raises(RuntimeError) as error:
        replicas.step()
    said.append(str(error.value))

    with pytest.raises(RuntimeError) as error:
        model.layers(inputs).sum().backward()
    said.append(str(error.value))

    model = sharded(mesh["shard"], mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
    replicas_of(model, mesh, crosses=True)
    with pytest.raises(RuntimeError) as error:
        model(inputs).sum().backward()
    said.append(str(error.value))
    return said


def test_what_would_use_sums_before_they_are_there_is_refused() -> None:
    missing, added, converted = on_ranks(refusals, 2)[0]
    assert missing == "units without a gradient in this step: the root"
    assert added == "unit 'layers.3' has gradients: FSDP2 would add to them what has not arrived"
    assert (
        converted
        == "unit 'layers.3': FSDP2 divides or converts sums of torch.bfloat16 for parameters of torch.float32"
    )


def test_the_notes_table_is_that_of_the_data(tmp_path: Path) -> None:
    docs = TOOL.parent.parent.parent / "docs"
    data = shutil.copy(docs / "data" / "hsdp" / "steps.json", tmp_path)
    command = [sys.executable, str(TOOL.parent / "run.py"), "--table", "--out", data]
    made = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert f"<!-- table hsdp -->\n\n{made}<!-- end -->" in (docs / "research" / "2026-11-27-hsdp.md").read_text()
