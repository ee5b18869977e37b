"""Ways for gradients to travel: which an engine's name stands for, and between which a training can change."""

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from autobyte.errors import InputError
from autobyte.exchange.arguments import AUTO
from autobyte.exchange.engines import HOST_MEMORY, STREAMS, Connecting, connector
from autobyte.internals import cuda_backend
from autobyte.scheduler.block import Block
from autobyte.scheduler.engines.base import Done, Engine, Moments, Sent, Timed
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.torch.exchange.mirrors import Mirrors


class Way(NamedTuple):
    """How gradients travel.

    Args:
        engine: moves the blocks.
        buffers: where it finds gradients.
        mirrors: makes the copies in host memory from which they travel, if they do.
    """

    engine: Engine
    buffers: Buffers
    mirrors: Callable[[], Mirrors]


class Ways(Engine):
    """Engines, of which one at a time moves blocks; one is connected when it is needed first.

    >>> ways = Ways(["nccl", "allreduce"], connect, tensors=list)
    >>> ways.take(ways.reach("allreduce"))     # when nothing is under way: blocks go there from now on

    Args:
        engines: their names; training begins with the first.
        connect: makes the way of an engine. Collective.
        tensors: names of what travels, for a profiler.
    """

    def __init__(
        self, engines: Sequence[str], connect: Callable[[str], Way], *, tensors: Callable[[], Sequence[str]]
    ) -> None:
        self._known, self._tensors = tuple(engines), tensors
        self._connect = connect
        self._made: dict[str, Way] = {}
        self.own = self.reach("")
        self._now = self.own.engine

    @property
    def engine(self) -> Engine:
        """What moves blocks: the only engine, or whichever is in force."""
        return self if len(self._known) > 1 else self._now

    def reach(self, name: str) -> Way:
        """The way of an engine. Collective where it is not connected yet.

        Args:
            name: of the engine; empty is the one to begin with.

        Raises:
            InputError: gradients cannot change to it.
        """
        name = name or self._known[0]
        if name not in self._known:
            raise InputError(f"gradients travel by engine '{self._known[0]}' here, and cannot change to '{name}'")
        if name not in self._made:
            way = self._made[name] = self._connect(name)
            way.engine.names = self._tensors
        return self._made[name]

    def take(self, way: Way) -> Way:
        """Give blocks to another engine; nothing is under way. It has another way's buffers and mirrors."""
        self._now.tell()
        self._now = way.engine
        return way

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        """Start a block on the engine in force."""
        self._now.start(block, sent, done)

    def unfinished(self) -> list[Block]:
        """What the engine in force has not finished."""
        return self._now.unfinished()

    def time(self, block: Block, seen: Moments, timed: Timed) -> None:
        """Tell what the engine in force knows."""
        self._now.time(block, seen, timed)

    def tell(self) -> None:
        """Have the engine in force tell what it knows by now."""
        self._now.tell()

    def close(self) -> None:
        """Close all engines."""
        for way in self._made.values():
            way.engine.close()


def way_of(
    training: Connecting,
    parameters: dict[str, nn.Parameter],
    timeout: timedelta,
    engine: str,
    *,
    scale: float | None,
    failed: Callable[[Exception], None],
) -> Way:
    """Connect an engine, with buffers of its own. Collective.

    Args:
        training: it is for, and whose other engines are connected already.
        parameters: whose gradients travel.
        timeout: of every wait.
        engine: its name.
        scale: what gradients are multiplied by before they are added up.
        failed: told if a copy from a GPU fails.
    """
    streams = STREAMS[engine](parameters, timeout) if engine in STREAMS else None
    told = copy.copy(training)
    if engine != training.engine:
        told.name = f"{training.name}/{engine}"
    try:
        wire_dtype = training.job.wire_dtype
        told.buffers = Buffers(tensors=len(parameters), scale=scale, wire_dtype=wire_dtype, streams=streams)
        connected = connector(engine)(told, timeout)
    except BaseException:
        if streams is not None:
            streams.close()
        raise
    return Way(connected, told.buffers, partial(Mirrors, {} if streams else parameters, failed=failed))


def resolve(engine: str, parameters: Mapping[str, nn.Parameter], group: dist.ProcessGroup | None) -> str:
    """The engine that a name stands for: `auto` is `nccl` where that can be used, else `allreduce`.

    Args:
        engine: as the user named it.
        parameters: whose gradients travel.
        group: the ranks; None is the default group.

    Raises:
        InputError: `nccl` is asked for, and cannot be used.
    """
    if engine not in (AUTO, "nccl"):
        return engine
    why = not_nccl_because(parameters, group)
    if engine == AUTO:
        return HOST_MEMORY if why else "nccl"
    if why:
        raise InputError(f"engine='nccl' cannot be used: {why}; engine='{AUTO}' takes what can be")
    return engine


def ways_of(asked: str, engine: str) -> tuple[str, ...]:
    """The engines between which a training can change, its own first.

    Args:
        asked: as the user named it: who names `nccl` keeps to it.
        engine: that this name stands for; `ordered` stands for `nccl` on streams in host memory.
    """
    return (engine, HOST_MEMORY) if engine in STREAMS and asked != "nccl" else (engine,)


def not_nccl_because(parameters: Mapping[str, nn.Parameter], group: dist.ProcessGroup | None) -> str:
    """Why gradients cannot travel over NCCL; empty if they can."""
    if not dist.is_nccl_available():
        return f"PyTorch {torch.__version__} has no NCCL; install a build with CUDA"
    if not torch.cuda.is_available():
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        return "PyTorch sees no GPU" + ("" if hidden is None else f", and CUDA_VISIBLE_DEVICES is '{hidden}'")
    first: dict[torch.device, str] = {}
    for name, parameter in parameters.items():
        first.setdefault(parameter.device, name)
    for device, name in first.items():
        if device.type != "cuda":
            return f"parameter '{name}' is on {device}; move the model to a GPU before wrapping it"
    if len(first) > 1:
        places = " and ".join(f"'{name}' on {device}" for device, name in list(first.items())[:2])
        return f"parameters are on {len(first)} GPUs ({places}), and a rank has one"
    backend = cuda_backend(group)
    if backend != "nccl":
        return f"the group has {repr(backend) if backend else 'nothing'} for GPUs; call init_process_group('nccl')"
    return ""
