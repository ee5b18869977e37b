"""One rank of a section: what blocks cost, whether training is DDP's, whether the host waits, how long a step takes.

python tools/gpu/rank.py SPEC.json, as run.py starts it on every host
"""

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

import autobyte.torch as ab
from autobyte.bench.methods import COMPUTE, TIMEOUT, Method, finish, training
from autobyte.bench.networks import SMALL, Network, make
from autobyte.bench.rank import SECTIONS, Rank, take_part
from autobyte.errors import AutoByteError, InputError
from autobyte.scheduler.alpha_beta import AlphaBeta
from autobyte.torch.profiling.probe import Spec, probe

SETTLED = 40  # steps, after which AutoByte has planned
STEP = "one step"  # its name in a trace

#: Calls of CUDA's in which the host waits for the device.
WAITING = frozenset(
    {
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize",
        "cudaEventSynchronize",
        "cudaMemcpy",
        "cuCtxSynchronize",
        "cuStreamSynchronize",
        "cuEventSynchronize",
    }
)


def blocks(rank: Rank) -> None:
    """All-reduces one after the other, of two ranks and of all, and by AutoByte's engine; a line through the times.

    PyTorch's are on the default group. The engine's have its streams, events and callbacks beside them.
    """
    store = _get_default_store()
    pair = dist.new_group([0, 1])
    if rank.number < 2:
        _blocks(rank, 2, pair)
        store.set(f"done{rank.number}", "yes")
    else:  # no collective: its kernel would wait on the GPU that is measured
        store.wait(["done0", "done1"], TIMEOUT)
    if rank.size > 2:
        _blocks(rank, rank.size, dist.group.WORLD)
    _engine_blocks(rank)


def _blocks(rank: Rank, ranks: int, group: Any) -> None:
    times = {}
    common = {"by": "PyTorch", "ranks": ranks, "rate": rank.spec["rate"]}
    for nbytes in rank.spec["sizes"]:
        block = torch.ones(nbytes // 4, device=rank.device)
        taken = [_block_s(rank, block, group, count) for count in (3, 10, 10, 10)][1:]  # the first warms up
        times[nbytes] = statistics.median(taken)
        busbw = 2 * (ranks - 1) / ranks * nbytes / times[nbytes]
        rank.add(**common, nbytes=nbytes, block_s=times[nbytes], repeats_s=taken, busbw_bytes_per_s=busbw)
    _add_line(rank, times, common)
    rank.say(f"blocks of {ranks} ranks")


def _engine_blocks(rank: Rank) -> None:
    """What blocks cost with AutoByte's engine."""
    engine, times = rank.spec["engine"], {}
    common = {"by": f"AutoByte, {engine}", "ranks": rank.size, "rate": rank.spec["rate"]}
    for row in probe(Spec((engine,), tuple(rank.spec["sizes"]), iterations=20, device=rank.spec["device"])):
        times[row.size_bytes] = row.time_s
        rank.add(
            **common,
            nbytes=row.size_bytes,
            block_s=row.time_s,
            busbw_bytes_per_s=row.busbw_bytes_per_s,
            wrong=row.wrong,
        )
    _add_line(rank, times, common)
    rank.say(f"blocks of {engine}")


def _add_line(rank: Rank, times: Mapping[int, float], common: Mapping[str, Any]) -> None:
    """The line through the times of all sizes, or why there is none."""
    try:
        line = AlphaBeta.fit(list(times), list(times.values()))
        rank.add(**common, fit=True, start_s=line.start_s, s_per_byte=line.s_per_byte)
    except InputError as error:
        rank.add(**common, fit=True, error=str(error))


def _block_s(rank: Rank, block: torch.Tensor, group: Any, count: int) -> float:
    dist.all_reduce(block, group=group)  # all ranks begin together
    rank.wait()
    began = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(block, group=group)
    rank.wait()
    return (time.perf_counter() - began) / count


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}


#: How a model is trained; other buckets are another order of summing on more than two ranks, and of nothing else.
WAYS = ("DDP", "DDP again", "DDP, small buckets", "AutoByte")
SMALL_MIB = 0.01


def parity(rank: Rank) -> None:
    """Parameters after training with DDP, and the largest difference from those of other ways to train.

    Raises:
        AutoByteError: two ranks have other bits than with DDP, though DDP has the same bits twice.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    unlike = []
    for name in SMALL:
        for kind in OPTIMIZERS:
            rank.say(f"parity: {name}, {kind}")
            first, *others = (_trained(rank, name, kind, way) for way in WAYS)
            largest = max(float(a.abs().max()) for a in first)
            apart = {
                way: rank.largest(max(float((a - b).abs().max()) for a, b in zip(first, other, strict=True)))
                for way, other in zip(WAYS[1:], others, strict=True)
            }
            for way, difference in apart.items():
                rank.add(
                    model=name,
                    optimizer=kind,
                    compared=way,
                    engine=rank.spec["engine"],
                    steps=rank.spec["steps"],
                    ranks=rank.size,
                    largest_difference=difference,
                    largest_parameter=largest,
                )
            if rank.size == 2 and apart["AutoByte"] and not apart["DDP again"]:
                unlike.append(f"{name} with {kind}")
    if unlike:
        raise AutoByteError(f"on two ranks parameters are not DDP's bit for bit: {', '.join(unlike)}")


def _trained(rank: Rank, name: str, kind: str, way: str) -> list[torch.Tensor]:
    """Parameters after some steps; each rank has inputs of its own."""
    network = make(name, rank.device)
    optimizer: Any = OPTIMIZERS[kind](network.model.parameters())
    trained: nn.Module = network.model
    if way == "AutoByte":
        engine = rank.spec["engine"]
        optimizer = ab.DistributedOptimizer(
            optimizer, network.model, policy="bytescheduler", keep=None, engine=engine, timeout=TIMEOUT
        )
    else:
        size = {"bucket_cap_mb": SMALL_MIB} if way == "DDP, small buckets" else {}
        trained = DistributedDataParallel(network.model, **size)
    for step in range(rank.spec["steps"]):
        passes = network.of(network.batch, seed=rank.size * step + rank.number).passes(trained)
        optimizer.zero_grad()
        passes.backward(passes.forward())
        optimizer.step()
        rank.wait()
    if way == "AutoByte":
        optimizer.close()
    return [parameter.detach().clone() for parameter in network.model.parameters()]


def waits(rank: Rank) -> None:
    """Calls in which a step waits for the device, as the profiler sees them: computing alone, DDP, AutoByte.

    The models are small. A step of theirs fits the launch queue, so nothing has to be waited for within it.

    Raises:
        AutoByteError: AutoByte waits more often than a step without communication does.
    """
    waiting = []
    ours = Method("AutoByte", "autobyte", engine=rank.spec["engine"])
    for name in SMALL:
        network, calls = make(name, rank.device), dict[str, int]()
        for method in (COMPUTE, Method("DDP default", "ddp"), ours):
            rank.say(f"waits: {name}, {method.name}")
            found = waited(network, method, steps=rank.spec["steps"])
            rank.add(model=name, arm=method.name, **method.to_json(), ranks=rank.size, **found)
            calls[method.name] = sum(found["waiting_calls"].values())
        if calls[ours.name] > calls[COMPUTE.name]:
            waiting.append(f"{name} {calls[ours.name]} times, alone {calls[COMPUTE.name]} times")
    if waiting:
        raise AutoByteError(f"AutoByte waits for the device within steps: {'; '.join(waiting)}")


def waited(network: Network, method: Method, *, steps: int) -> dict[str, Any]:
    """What waiting calls the profiler sees in some steps, by name, once AutoByte has planned.

    Raises:
        AutoByteError: it sees no call of CUDA's at all.
    """
    device = network.device
    with training(network, method) as (step, _):
        for _ in range(SETTLED):
            step()
        cuda = [ProfilerActivity.CUDA] if device.type == "cuda" else []
        with profile(activities=[ProfilerActivity.CPU, *cuda]) as seen:
            for _ in range(steps):
                with record_function(STEP):
                    step.enqueue()
                finish(device)
        events = seen.events()
    if cuda and not any(event.name.startswith("cuda") for event in events):
        raise AutoByteError("the profiler has seen no call of CUDA's, so it says nothing about waits")
    spans = [(event.time_range.start, event.time_range.end) for event in events if event.name == STEP]
    calls = waiting_calls(((event.name, event.time_range.start) for event in events), spans)
    return {"steps": len(spans), "waiting_calls": calls}


def waiting_calls(events: Iterable[tuple[str, float]], spans: Iterable[tuple[float, float]]) -> dict[str, int]:
    """How many calls began within a step, by name, in which the host waits.

    Args:
        events: names and beginnings.
        spans: beginnings and ends of steps.
    """
    within = list(spans)
    names = (name for name, began in events if name in WAITING and any(a <= began < b for a, b in within))
    return dict(Counter(names))


if __name__ == "__main__":
    take_part(sys.argv[1], {**SECTIONS, "blocks": blocks, "parity": parity, "waits": waits})
