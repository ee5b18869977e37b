"""How fast the engines move blocks of given sizes, in the terms of nccl-tests.

    torchrun --nproc-per-node 2 -m autobyte.torch.profiling.probe SPEC.json

measures what the spec says; rank 0 appends a line of JSON per row to the spec's `out`, as soon as it is measured.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autobyte.errors import InputError, unknown
from autobyte.exchange.connect import connect
from autobyte.exchange.control import CommunicationError, Control, first_line
from autobyte.internals import own_gloo, own_nccl
from autobyte.job import ITEMSIZE
from autobyte.scheduler.block import Block, Segment
from autobyte.scheduler.engines.allreduce import AllReduce
from autobyte.scheduler.engines.base import Engine
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.cuda import CudaStreams
from autobyte.scheduler.engines.ordered import Ordered
from autobyte.scheduler.engines.server import ParameterServer
from autobyte.scheduler.engines.streams import Event, HostStreams, Streams

TIMEOUT = timedelta(seconds=120)
POLL_S = 2e-5  # until a device is looked at again


@dataclass(frozen=True)
class Row:
    """One size on one engine, as nccl-tests has it.

    `time_s` per block, the mean over iterations and ranks; `algbw_bytes_per_s` is size over time, `busbw_bytes_per_s`
    what the busiest direction of a link carried: 2(n-1)/n of it. `wrong` counts elements that were not the sum.
    """

    engine: str
    size_bytes: int
    count: int
    type: str
    time_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    wrong: int


@dataclass(frozen=True)
class Spec:
    """What is measured.

    Args:
        engines: names; a parameter server stands beside every rank.
        sizes: of blocks, in bytes.
        dtype: of the elements.
        iterations: that count.
        warmup: iterations before them.
        in_flight: blocks that are under way at a time.
        device: where blocks lie, for engines that are ordered on a device; the others move host memory.

    Raises:
        InputError: an engine or dtype that there is not, or a number that cannot be.
    """

    engines: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: str = "float32"
    iterations: int = 20
    warmup: int = 3
    in_flight: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        for engine in self.engines:
            if engine not in PROBED:
                raise unknown("engine", engine, PROBED)
            if engine == "nccl" and not self.device.startswith("cuda"):
                raise InputError("the engine nccl moves blocks from GPU to GPU: say --gpu")
        if self.dtype not in ITEMSIZE:
            raise unknown("dtype", self.dtype, ITEMSIZE)
        for name, low in (("iterations", 1), ("warmup", 1), ("in_flight", 1)):
            if getattr(self, name) < low:
                raise InputError(f"{name} must be at least {low}, got {getattr(self, name)}")
        for size in self.sizes:
            if size % ITEMSIZE[self.dtype]:
                raise InputError(
                    f"a block of {self.dtype} has a multiple of {ITEMSIZE[self.dtype]} bytes, not {size}"
                )


def probe(spec: Spec) -> Iterator[Row]:
    """Measure engines; the same rows on every rank. Collective, and needs torch.distributed initialised.

    Raises:
        CommunicationError: an engine failed, naming rank, engine and size.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    control = Control("probe", rank=rank, ranks=range(ranks), timeout=TIMEOUT)
    for name in spec.engines:
        device = torch.device(spec.device if name in STREAMS else "cpu")
        streams = STREAMS[name](device) if name in STREAMS else None
        buffers = Buffers(tensors=len(spec.sizes) * spec.in_flight, scale=None, streams=streams)
        engine = PROBED[name](buffers, rank, ranks, max(spec.sizes))
        for place, size in enumerate(spec.sizes):
            count = size // ITEMSIZE[spec.dtype]
            blocks, tensors = [], []
            for index in range(place * spec.in_flight, (place + 1) * spec.in_flight):
                tensors.append(torch.full((count,), rank + 1, dtype=getattr(torch, spec.dtype), device=device))
                buffers.put(index, tensors[-1])
                blocks.append(Block(index, (Segment(index, 0, count),), size))
            _move(engine, blocks, len(blocks), f"rank {rank}, {name}, {size} bytes")
            wrong = sum(int((tensor != ranks * (ranks + 1) // 2).sum()) for tensor in tensors)
            for block, tensor in zip(blocks, tensors, strict=True):
                buffers.put(block.index, tensor.zero_())  # sums of sums would overflow
            _move(engine, blocks, spec.warmup, f"rank {rank}, {name}, {size} bytes")
            control.gather(torch.zeros(1))  # nobody begins before all are here
            took_s = _move(engine, blocks, spec.iterations, f"rank {rank}, {name}, {size} bytes")
            seen = control.gather(torch.tensor([took_s / spec.iterations, wrong], dtype=torch.float64))
            seconds = float(seen[:, 0].mean())
            bus = 2 * (ranks - 1) / ranks * size / seconds
            yield Row(name, size, count, spec.dtype, seconds, size / seconds, bus, int(seen[:, 1].sum()))
        engine.close()


def _move(engine: Engine, blocks: Sequence[Block], times: int, what: str) -> float:
    """Move blocks in turn, each again when it is there; how long it took (s)."""
    free = {block.index: threading.Semaphore() for block in blocks}
    errors: list[Exception] = []

    def done(block: Block, error: Exception | None) -> None:
        if error is not None:
            errors.append(error)
        free[block.index].release()

    def await_(block: Block) -> None:
        if not free[block.index].acquire(timeout=TIMEOUT.total_seconds()):
            raise CommunicationError(f"{what}: not there after {TIMEOUT.total_seconds():g} s")
        if errors:
            raise CommunicationError(f"{what}: {first_line(errors[0])}")

    began = time.perf_counter()
    for index in range(times):
        block = blocks[index % len(blocks)]
        await_(block)
        engine.start(block, _ignore, done)
    for block in blocks:
        await_(block)
    while isinstance(engine, Ordered) and _late(engine, what) is not None:
        if time.perf_counter() - began > TIMEOUT.total_seconds():
            raise CommunicationError(f"{what}: not there after {TIMEOUT.total_seconds():g} s")
        time.sleep(POLL_S)
    return time.perf_counter() - began


def _late(engine: Ordered, what: str) -> tuple[Block, Event] | None:
    """What of an engine's blocks is not over on its device."""
    try:
        return engine.late()
    except Exception as error:
        raise CommunicationError(f"{what}: {first_line(error)}") from error


def _ignore(block: Block) -> None:
    """Credit does not matter here."""


def _all_reduce(buffers: Buffers, rank: int, ranks: int, _largest: int) -> Engine:
    return AllReduce(buffers, own_gloo("probe/allreduce", rank=rank, size=ranks, timeout=TIMEOUT))


def _servers(buffers: Buffers, rank: int, ranks: int, largest: int) -> Engine:
    everybody = range(ranks)
    return ParameterServer(
        buffers,
        rank=rank,
        workers=everybody,
        servers=everybody,
        connect=lambda: connect(
            "probe/ps", rank=rank, workers=everybody, servers=everybody, timeout=TIMEOUT, largest=largest
        ),
    )


def _ordered(buffers: Buffers, rank: int, ranks: int, _largest: int) -> Engine:
    return Ordered(buffers, own_gloo("probe/ordered", rank=rank, size=ranks, timeout=TIMEOUT))


def _nccl(buffers: Buffers, rank: int, ranks: int, _largest: int) -> Engine:
    streams = buffers.streams
    assert isinstance(streams, CudaStreams)
    backend = own_nccl("probe/nccl", device=streams.device, rank=rank, size=ranks, timeout=TIMEOUT)
    return Ordered(buffers, backend, abort=backend.abort, part=backend.shutdown)


PROBED: dict[str, Callable[[Buffers, int, int, int], Engine]] = {
    "allreduce": _all_reduce,
    "ps": _servers,
    "ordered": _ordered,
    "nccl": _nccl,
}

#: Streams of engines that are ordered on a device.
STREAMS: dict[str, Callable[[torch.device], Streams]] = {
    "ordered": lambda _device: HostStreams(timeout_s=TIMEOUT.total_seconds()),
    "nccl": CudaStreams,
}


def main(path: str) -> None:
    """Measure what a file says, as one rank of a launch."""
    torch.set_num_threads(1)
    settings: dict[str, Any] = json.loads(Path(path).read_text())
    out = Path(settings.pop("out"))
    spec = Spec(**settings)
    on_gpu = spec.device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(spec.device)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    for row in probe(spec):
        if dist.get_rank() == 0:
            with out.open("a") as lines:
                lines.write(json.dumps(asdict(row)) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
