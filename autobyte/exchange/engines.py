"""What connects the engines: one function each, and the table of their names."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import entry_points
from typing import Any, Protocol

from torch import Tensor

from autobyte.errors import InputError, unknown
from autobyte.exchange.arguments import AUTO
from autobyte.exchange.clusters import byteps, kvstore
from autobyte.exchange.connect import connect
from autobyte.exchange.control import Control
from autobyte.exchange.deadline import Deadline
from autobyte.exchange.pacing import Pace
from autobyte.internals import own_gloo, own_nccl
from autobyte.job import Job
from autobyte.scheduler.engines.allreduce import AllReduce
from autobyte.scheduler.engines.base import Engine
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.cuda import CudaStreams
from autobyte.scheduler.engines.frames import Connection
from autobyte.scheduler.engines.leader import Led
from autobyte.scheduler.engines.ordered import Ordered
from autobyte.scheduler.engines.server import ParameterServer
from autobyte.scheduler.engines.streams import HostStreams, Streams


class Connecting(Protocol):
    """What an engine is told of the training that it connects."""

    name: str
    engine: str
    job: Job
    rank: int
    size: int
    ranks: list[int]
    servers: list[int]
    largest: int
    buffers: Buffers
    control: Control
    pace: Pace | None


def _all_reduce(training: Connecting, timeout: timedelta) -> Engine:
    def make() -> Any:
        return own_gloo(f"{training.name}/blocks", rank=training.rank, size=training.size, timeout=timeout)

    return AllReduce(training.buffers, training.control.meet(make))


def _servers(training: Connecting, timeout: timedelta) -> Engine:
    rank, workers, servers = training.control.global_rank, training.ranks, training.servers

    def paced() -> dict[tuple[int, str], Connection]:
        made = _reach(training, training.name, servers, timeout, largest=training.largest)
        if training.pace is not None:
            socks = [connection.sock for connection in made.values()]
            try:
                training.pace(socks)
            except BaseException:
                for sock in socks:
                    sock.close()
                raise
        return made

    return ParameterServer(training.buffers, rank=rank, workers=workers, servers=servers, connect=paced)


def led(training: Connecting, engine: Engine, timeout: timedelta) -> Engine:
    """An engine that starts blocks as rank 0 picks them."""
    connections = _reach(training, f"{training.name}/order", training.ranks[:1], timeout, largest=0)
    return Led(engine, list(connections.values()), leads=training.rank == 0)


def _reach(
    training: Connecting, name: str, servers: Sequence[int], timeout: timedelta, *, largest: int
) -> dict[tuple[int, str], Connection]:
    """Connect workers with servers, unless another rank says meanwhile that it has failed."""
    control, alarms = training.control, list[str]()
    control.rollcall.listen(alarms.append)
    try:
        return connect(
            name, rank=control.global_rank, workers=training.ranks, servers=servers, timeout=timeout, largest=largest,
            diagnostics=control.diagnostics, refused=lambda: "".join(alarms),
        )  # fmt: skip
    finally:
        control.rollcall.ignore()


def _ordered(training: Connecting, timeout: timedelta) -> Engine:
    def make() -> Any:
        return own_gloo(f"{training.name}/blocks", rank=training.rank, size=training.size, timeout=timeout)

    return Ordered(training.buffers, training.control.meet(make))


def _nccl(training: Connecting, timeout: timedelta) -> Engine:
    streams = training.buffers.streams
    assert isinstance(streams, CudaStreams)
    name, device, rank, size = f"{training.name}/nccl", streams.device, training.rank, training.size
    backend = training.control.meet(lambda: own_nccl(name, device=device, rank=rank, size=size, timeout=timeout))

    def part() -> None:
        with suppress(TimeoutError):  # its ranks may be gone since
            Deadline(timeout).run(backend.shutdown)

    return Ordered(training.buffers, backend, abort=backend.abort, part=part)


HOST_MEMORY = "allreduce"  # the engine that moves gradients of every device, by way of host memory

Connect = Callable[[Connecting, timedelta], Engine]

ENGINES: dict[str, Connect] = {"allreduce": _all_reduce, "ps": _servers, "ordered": _ordered, "nccl": _nccl}

#: Engines of other libraries, whose processes are started for each training.
CLUSTERS: dict[str, Connect] = {"kvstore": kvstore, "byteps": byteps}

GROUP = "autobyte.engines"  # of entry points: name = "package.module:connect"

#: Engines that are ordered on a device, and its streams.
STREAMS: dict[str, Callable[[Mapping[str, Tensor], timedelta], Streams]] = {
    "ordered": lambda _parameters, timeout: HostStreams(timeout_s=timeout.total_seconds()),
    "nccl": lambda parameters, _timeout: CudaStreams(next(iter(parameters.values())).device),
}


def connector(engine: str) -> Connect:
    """What connects an engine: of the table, or of another package.

    Raises:
        InputError: no such engine, or it cannot be loaded.
    """
    if engine in ENGINES or engine in CLUSTERS:
        return ENGINES.get(engine) or CLUSTERS[engine]
    others = {point.name: point for point in entry_points(group=GROUP)}
    if engine not in others:
        raise unknown("engine", engine, [AUTO, *ENGINES, *CLUSTERS, *others])
    try:
        found: Connect = others[engine].load()
    except (ImportError, AttributeError) as error:
        raise InputError(f"engine '{engine}' cannot be loaded from {others[engine].value}: {error}") from error
    return found
