"""From a model's parameters to a job and a plan, with one order of blocks for all ranks."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import nn

from autobyte.config import Config, Space
from autobyte.errors import InputError
from autobyte.job import ITEMSIZE, Cluster, Job, Layer, Model, Tensor
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.policies import make_plan, space_of
from autobyte.simulator.simulate import simulate
from autobyte.units import MIB

#: What training begins with: ByteScheduler's sizes, small tensors fused.
DEFAULT = Config(4_000_000, 16_000_000, knobs={"fusion": 1})
SLOWER = (1.0, 0.9, 0.8)  # parts of the measured rate that orders are made for
_ANY = Model("any", (Layer("any", (), 0.0, 0.0),), 1)  # defaults do not depend on the model


class NamedLayer(Protocol):
    """A layer: what its gradients belong to."""

    @property
    def name(self) -> str:
        """Of the layer."""

    @property
    def parameters(self) -> Sequence[tuple[str, torch.Tensor]]:
        """With their names, those whose gradients travel with it."""


def begin_with(policy: str, *, workers: int, servers: bool, space: Space | None = None) -> Config:
    """A policy's default for training on so many workers, or what is next to it in a space."""
    default = _default(policy, workers=workers, servers=servers)
    if space is None or default in (within := replace(space, default=default)):
        return default
    return within.at(within.locate(default))


def _default(policy: str, *, workers: int, servers: bool) -> Config:
    if policy == DEFAULT.policy:
        return DEFAULT
    default = space_of(policy, Job(_ANY, Cluster(workers, workers if servers else 0))).default
    if policy != "usbyte":
        return default
    # gloo's all-reduces share the wire: a sequence keeps its order if little is in flight. The wire is idle while a
    # fused message is packed and unpacked: pieces of 1 MiB were faster on all models in docs/benchmarks.md
    return replace(default, partition_bytes=MIB, credit_bytes=min(default.credit_bytes, MIB))


def unmeasured(name: str, parameters: Iterable[tuple[str, nn.Parameter]], *, batch_size: int = 1) -> Model:
    """A model in the order in which its parameters are registered, a layer per owner, without times.

    Raises:
        InputError: a parameter of a dtype that does not travel.
    """
    owners: dict[str, list[tuple[str, nn.Parameter]]] = {}
    for full, parameter in parameters:
        owners.setdefault(full.rpartition(".")[0], []).append((full, parameter))
    layers = [
        Layer(owner or name, tuple(describe(full, p, index) for full, p in held), 0.0, 0.0)
        for index, (owner, held) in enumerate(owners.items())
    ]
    return Model(name, tuple(layers), batch_size)


def timed(
    shape: Model,
    layers: Iterable[NamedLayer],
    names: Container[str],
    forward_s: Iterable[float],
    backward_s: Iterable[float],
) -> Model:
    """The model in the order of its layers' first calls, with measured times (s); of the named parameters."""
    measured = (
        Layer(layer.name, tuple(describe(n, p, index) for n, p in layer.parameters if n in names), forward, backward)
        for index, (layer, forward, backward) in enumerate(zip(layers, forward_s, backward_s, strict=True))
    )
    return Model(shape.name, tuple(measured), shape.batch_size)


def priced(job: Job, *, bytes_per_s: float, per_block_s: float) -> Job:
    """The job on links that cost what blocks did: a rate (bytes/s), and a time per block (s)."""
    rate = (bytes_per_s,)
    cluster = replace(
        job.cluster, up_bytes_per_s=rate, down_bytes_per_s=rate, latency_s=0.0, overhead_s=(per_block_s, 0.0)
    )
    return replace(job, cluster=cluster)


@dataclass(frozen=True)
class MeasuredPlan:
    """What ranks need to make one plan: for a checkpoint, and for all ranks to switch.

    Args:
        config: policy, partition, credit.
        job: with the times and costs that were measured; None if nothing was.
        order: of the blocks; None where the policy has one, or nothing was measured.
    """

    config: Config
    job: Job | None
    order: Sequence[int] | None

    def to_json(self) -> dict[str, Any]:
        """The plan in plain JSON; what is known of the model without measuring it is left out."""
        measured = None if self.job is None else _measurements(self.job)
        return {"config": self.config.to_json(), "measured": measured, "order": self.order}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], job: Job) -> Self:
        """Read what `to_json` wrote.

        Args:
            data: with other keys beside, perhaps.
            job: of which it was measured.

        Raises:
            InputError: the config is none.
        """
        measured = data.get("measured")
        config = Config.from_json(data["config"])
        return cls(config, None if measured is None else _as_measured(job, measured), data.get("order"))


def _measurements(job: Job) -> dict[str, Any]:
    """What was measured of a job."""
    return {
        "layers": [
            [layer.name, [tensor.name for tensor in layer.tensors], layer.forward_s, layer.backward_s]
            for layer in job.model.layers
        ],
        "bytes_per_s": job.cluster.up_bytes_per_s[0],
        "per_block_s": job.cluster.overhead_s[0],
    }


def _as_measured(job: Job, measured: Mapping[str, Any]) -> Job:
    """The job with the times and costs that were measured."""
    tensors = {tensor.name: tensor for tensor in job.model.tensors}
    layers = tuple(
        Layer(name, tuple(replace(tensors[each], layer=index) for each in names), forward_s, backward_s)
        for index, (name, names, forward_s, backward_s) in enumerate(measured["layers"])
    )
    job = replace(job, model=replace(job.model, layers=layers))
    return priced(job, bytes_per_s=measured["bytes_per_s"], per_block_s=measured["per_block_s"])


def describe(name: str, parameter: torch.Tensor, layer: int) -> Tensor:
    """A parameter's gradient as the scheduler knows it."""
    dtype = str(parameter.dtype).removeprefix("torch.")
    if dtype not in ITEMSIZE:
        raise InputError(f"parameter '{name}' is {dtype}; gradients travel as {', '.join(ITEMSIZE)}")
    return Tensor(name, parameter.numel(), dtype, layer)


def agreed_plan(job: Job, config: Config, order: Sequence[int] | None = None, *, messages: bool = False) -> Plan:
    """A policy's plan with a fixed order of its blocks, as engines need it that match by order of issue.

    Without an order, and without one of the policy's own, blocks go as gradients appear if layers run in the order in
    which they are registered.

    Args:
        job: what is trained, and on what.
        config: policy, partition, credit.
        order: of the blocks.
        messages: halves travel as messages, which need no order. Where gradients are clipped they have none: an
            all-gather then fills whatever time a late gradient leaves.
    """
    plan = make_plan(job, config)
    if plan.sequence is not None or (messages and plan.barrier and bool(plan.tiling.halves.all())):
        return plan
    if order is not None:
        return plan.with_sequence(order)
    first = np.array([min(s.tensor for s in block.segments) for block in plan.tiling.blocks], dtype=np.int64)
    gathers = plan.tiling.halves & (plan.tiling.follower < 0)  # they go last, as the forward pass needs them
    return plan.with_sequence(np.lexsort((np.where(gathers, first, -first), gathers)))


def planned_order(job: Job, config: Config, *, beside: Job | None = None) -> list[int] | None:
    """The order in which blocks start on the measured job; None if the policy has one.

    In virtual time the core starts the most urgent block that is there. The order it makes is then kept, and waits
    for a block that is late: what is best to do now need not be best to have agreed on. On a slower link urgent
    blocks overtake later, so orders are made for such links as well; the one that is fastest on this link stays.

    Args:
        job: as it was measured, on links that cost what blocks did (`priced`).
        config: whose order it is.
        beside: the same job, on links that cost what blocks did beside others; None is `job`.
    """
    plan = make_plan(job, config)  # how some policies cut depends on what blocks cost
    if plan.sequence is not None:
        return None
    job = beside or job
    plan = replace(plan, job=job)
    rate, per_block_s = job.cluster.up_bytes_per_s[0], job.cluster.overhead_s[0]
    links = [priced(job, bytes_per_s=rate * part, per_block_s=per_block_s) for part in SLOWER]
    orders: list[tuple[int, ...]] = [tuple(simulate(replace(plan, job=link)).order.tolist()) for link in links]
    best = min(dict.fromkeys(orders), key=lambda order: float(simulate(plan.with_sequence(order)).step_s[-1]))
    return list(best)
