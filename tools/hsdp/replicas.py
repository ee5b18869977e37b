"""Hybrid sharding whose sums between replicas travel in blocks: a prototype on FSDP2, for CPUs and gloo.

FSDP2 reduce-scatters within a replica. Its all-reduce hook then hands a unit's sums to AutoByte's core, which sends
them to the other replicas. A *unit* is a module that FSDP2 gathers and reduces as a whole. The model is sharded over
the ranks of one replica, or over a mesh on which FSDP2's own all-reduce does nothing (`mesh_with_replicas`).

    model = shard(make_model(), layers, mesh["shard"])
    replicas = Replicas(units(model), mesh, plan_of, optimizer, crosses=True)
    loss.backward()
    replicas.step()

What this cannot do yet stands in docs/research/2026-11-27-hsdp.md.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from autobyte.internals import own_gloo
from autobyte.job import Cluster, Job, Model
from autobyte.scheduler.block import Block
from autobyte.scheduler.engines.allreduce import AllReduce
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.runner import Runner

BACKEND = "left_to_hook"
TIMEOUT = timedelta(seconds=60)
_numbers = count()


@dataclass(frozen=True)
class Unit:
    """A module that FSDP2 gathers and reduces as a whole, and the parameters that it holds itself."""

    name: str
    module: FSDPModule
    parameters: tuple[nn.Parameter, ...]

    def shard_numel(self, ranks: int) -> int:
        """Elements of the flat tensor that the all-reduce hook is given: rows are padded to a multiple of `ranks`."""
        return sum(-(-p.shape[0] // ranks) * (p.numel() // p.shape[0]) for p in self.parameters)


def shard(model: nn.Module, layers: Iterable[nn.Module], mesh: DeviceMesh, **options: Any) -> nn.Module:
    """Shard layers as units of their own, and whatever else the model holds as one more."""
    for layer in layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def units(model: nn.Module) -> list[Unit]:
    """Units with parameters to train, in the order in which modules are registered."""
    modules = {name: module for name, module in model.named_modules() if isinstance(module, FSDPModule)}
    held: dict[str, list[nn.Parameter]] = {name: [] for name in modules}
    for full, parameter in model.named_parameters():
        owners = [name for name in modules if not name or full.startswith(f"{name}.")]
        if parameter.requires_grad and owners:
            held[max(owners, key=len)].append(parameter)
    return [Unit(name or "the root", modules[name], tuple(own)) for name, own in held.items() if own]


def check(unit: Unit, sums: Tensor) -> None:
    """Refuse sums with which FSDP2 does more after the hook than to make views of them: it would not wait for them.

    Raises:
        RuntimeError: it would divide, convert or add them.
    """
    kept = unit.parameters[0].dtype  # of all: FSDP2 sees to that
    if sums.dtype is not kept or kept is torch.float16:
        raise RuntimeError(
            f"unit '{unit.name}': FSDP2 divides or converts sums of {sums.dtype} for parameters of {kept}"
        )
    if any(parameter.grad is not None for parameter in unit.parameters):
        raise RuntimeError(f"unit '{unit.name}' has gradients: FSDP2 would add to them what has not arrived")


class LeftToHook(dist.ProcessGroup):
    """A group whose all-reduces do nothing: FSDP2 calls its hook after them, with the same tensor.

    So a model can be sharded over a mesh with a dimension for replicas, and its parameters know of it.
    """

    def allreduce(self, _tensors: list[Tensor], _options: Any = None) -> dist.distributed_c10d.Work:
        """Say that it is done."""
        return _Done()

    def getBackendName(self) -> str:  # noqa: N802, torch's name
        """The name of the backend."""
        return BACKEND

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        """The name by which torch finds the group."""
        return self._name


class _Done(dist.distributed_c10d.Work):
    """Work that is over."""

    def wait(self, _timeout: timedelta | None = None) -> bool:
        return True


def mesh_with_replicas(replicas: int, shards: int) -> DeviceMesh:
    """A mesh on whose dimension `replicate` FSDP2's own all-reduces do nothing."""
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(
            BACKEND, lambda _store, rank, size, _timeout: LeftToHook(rank, size), devices=["cpu"]
        )
    names, override = ("replicate", "shard"), {"replicate": BACKEND}
    return init_device_mesh("cpu", (replicas, shards), mesh_dim_names=names, backend_override=override)


class Replicas:
    """Averages gradients over replicas in blocks, and updates units when their averages have arrived.

    Args:
        held: what travels, in the order of the forward pass.
        mesh: of two dimensions, `replicate` and `shard`.
        plan: of a job that has one tensor per unit.
        optimizer: makes the optimizer of a unit's parameters.
        crosses: whether a unit is updated before its next forward pass instead of in `step`.
    """

    def __init__(
        self,
        held: Sequence[Unit],
        mesh: DeviceMesh,
        plan: Plan,
        optimizer: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer],
        *,
        crosses: bool,
    ) -> None:
        self._units = list(held)
        self._crosses = crosses
        self._optimizers = [optimizer(unit.parameters) for unit in held]
        self._reduced = [False] * len(held)  # FSDP2 has reduced its gradients in this step
        self._arrived = [False] * len(held)
        self._pending = [False] * len(held)  # the backward pass is over, the update is not done
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self.waited_s = 0.0  # by this thread, for averages
        size = mesh["replicate"].size()
        self._buffers = Buffers(tensors=len(held), scale=1 / size)  # FSDP2 has averaged over the shards
        name = f"hsdp/{next(_numbers)}/{mesh['shard'].get_local_rank()}"
        backend = own_gloo(name, rank=mesh["replicate"].get_local_rank(), size=size, timeout=TIMEOUT)
        self._engine = AllReduce(self._buffers, backend)
        self._runner = Runner(
            plan, self._engine, clock=time.perf_counter, arrived=self._on_arrived, failed=self._on_failed
        )
        self._hooks = []
        for index, unit in enumerate(held):
            unit.module.set_all_reduce_hook(self._send(index))
            unit.module.set_reduce_scatter_unused_params(True, recurse=False)  # every step has the same sizes
            self._hooks.append(unit.module.register_forward_pre_hook(self._take(index), prepend=True))

    def step(self) -> None:
        """Say that the backward pass is over; without `crosses`, also wait for all averages and update all units.

        Raises:
            RuntimeError: a unit had no gradient, or replicas cannot be reached.
        """
        missing = [unit.name for unit, reduced in zip(self._units, self._reduced, strict=True) if not reduced]
        if missing:
            raise RuntimeError(f"units without a gradient in this step: {', '.join(missing)}")
        self._reduced = [False] * len(self._units)
        self._runner.end_step()
        self._pending = [True] * len(self._units)
        if not self._crosses:
            self.flush()

    def flush(self) -> None:
        """Update what is not updated yet: before parameters are read outside the forward pass."""
        for index in range(len(self._units)):
            self._update(index)

    def close(self) -> None:
        """Update all units and part from the other replicas."""
        self.flush()
        for hook in self._hooks:
            hook.remove()
        self._engine.close()

    def _send(self, index: int) -> Callable[[Tensor], None]:
        def hook(sums: Tensor) -> None:
            check(self._units[index], sums)
            self._reduced[index], self._arrived[index] = True, False
            self._buffers.put(index, sums)
            self._runner.ready(index)

        return hook

    def _take(self, index: int) -> Callable[[nn.Module, Any], None]:
        def before_forward(_module: nn.Module, _inputs: Any) -> None:
            if self._pending[index]:
                self._update(index)
                # on a GPU the gather must follow the update: FSDP2's own streams wait only where the root begins
                self._units[index].module.unshard(async_op=True)

        return before_forward

    def _update(self, index: int) -> None:
        if not self._pending[index]:
            return
        self._wait(index)
        self._pending[index] = False
        self._optimizers[index].step()
        self._optimizers[index].zero_grad()

    def _wait(self, index: int) -> None:
        began = time.perf_counter()
        with self._changed:
            over = self._changed.wait_for(lambda: self._arrived[index] or self._error, TIMEOUT.total_seconds())
        self.waited_s += time.perf_counter() - began
        if self._error is not None:
            raise RuntimeError(f"unit '{self._units[index].name}' has not arrived: {self._error}") from self._error
        if not over:
            raise RuntimeError(
                f"unit '{self._units[index].name}' did not arrive within {TIMEOUT.total_seconds():g} s"
            )

    def _on_arrived(self, indices: Collection[int]) -> None:
        with self._changed:
            for index in indices:
                self._arrived[index] = True
            self._changed.notify_all()

    def _on_failed(self, _block: Block, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()


def job_of(held: Sequence[Unit], mesh: DeviceMesh, *, times: Sequence[tuple[float, float]] | None = None) -> Job:
    """What the replicas of a shard exchange: a layer per unit, with its times of forward and backward pass (s)."""
    ranks = mesh["shard"].size()
    times = times or [(0.0, 0.0)] * len(held)
    rows = [
        (unit.name, [(unit.name, unit.shard_numel(ranks))], *both) for unit, both in zip(held, times, strict=True)
    ]
    return Job(Model.build("shard", rows, batch_size=1), Cluster(mesh["replicate"].size()))
