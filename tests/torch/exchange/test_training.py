"""Which parameters travel, and which cannot."""

import contextlib
import gc
import importlib
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from faulty import make_model, train, wrapped
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
from autobyte.torch.exchange.admission import travelling


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
    with pytest.raises(InputError, match=r"trains 2 parameters .* of 'Linear': hand in torch.nn.ModuleList"):
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


#: What can fail while a wrapper is made, in the order in which it is made: module, name, and with which engine.
STAGES = [
    ("exchange.training", "broadcast_state", "ps"),
    ("exchange.ways", "Buffers", "allreduce"),
    ("exchange.ways", "Buffers", "ordered"),
    ("exchange.ways", "connector", "ps"),
    ("exchange.training", "own_address", "dear"),
    ("exchange.training", "led", "leader"),
    ("exchange.training", "Session", "allreduce"),
    ("exchange.training", "Session", "ps"),
    ("exchange.training", "Session", "leader"),
    ("exchange.training", "Session", "dear"),
    ("exchange.training", "Session", "ordered"),
    ("exchange.training", "Lookout", "ordered"),
    ("exchange.ways", "Mirrors", "ordered"),
    ("exchange.training", "Exchange", "ps"),
    ("on", "Verification", "ps"),
    ("on", "Updates", "allreduce"),
    ("on", "Hook", "ordered"),
]


ALONE = [("exchange.ways", "connector", "ps"), ("exchange.training", "led", "leader"), ("on", "Updates", "ps")]


def test_what_fails_while_a_wrapper_is_made_leaves_nothing_open() -> None:
    on_ranks(_fails, 2, STAGES, False, timeout_s=100)


def test_what_fails_on_one_rank_while_a_wrapper_is_made_ends_the_others_at_once() -> None:
    on_ranks(_fails, 2, ALONE, True)


def _fails(rank: int, stages: list[tuple[str, str, str]], alone: bool) -> None:
    dist.barrier()
    before = _open()
    for module, name, engine in stages:
        where = importlib.import_module(f"autobyte.torch.{module}")
        real = getattr(where, name)
        if not alone or rank == 1:
            setattr(where, name, _broken(name, real))
        model = make_model()
        began = time.monotonic()
        with pytest.raises((RuntimeError, InputError)) as caught, contextlib.ExitStack() as user:
            optimizer = wrapped(model, engine, timedelta(seconds=20))
            user.callback(optimizer.close)  # the other rank may fail later
            train(model, optimizer, rank)
        assert time.monotonic() - began < 12, (name, engine)
        setattr(where, name, real)
        assert "out of order" in str(caught.value) or (alone and rank == 0), caught.value
        assert not model[0].weight._post_accumulate_grad_hooks
        assert not any(module._forward_pre_hooks or module._state_dict_pre_hooks for module in model.modules())
        del model, caught
        gc.collect()
        dist.barrier()
        if not alone:  # who waits for another has calls under way, which end later
            _wait_until(lambda: _open() == before, f"{module}.{name} with {engine}: {_open()}, not {before}")


def _broken(name: str, real: Any) -> Any:
    """It fails, after it was made where it is what makes engines."""

    def fail(*arguments: Any, **keywords: Any) -> Any:
        if name == "connector" and not arguments[1:]:
            made = real(*arguments)
            return lambda *known: made if not known else fail(*known, "")
        raise RuntimeError("out of order")

    return fail


def _open() -> tuple[int, list[str]]:
    """Sockets and threads of ours."""
    sockets = [entry for entry in Path("/proc/self/fd").iterdir() if _target(entry).startswith("socket:")]
    return len(sockets), sorted(thread.name for thread in threading.enumerate() if "autobyte" in thread.name)


def _target(entry: Path) -> str:
    with contextlib.suppress(OSError):
        return str(entry.readlink())
    return ""


def _wait_until(holds: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.05)
