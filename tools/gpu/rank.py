"""One rank of a section: what blocks cost, whether training is DDP's, how long a step takes.

python tools/gpu/rank.py SPEC.json, as run.py starts it on every host
"""

import copy
import gc
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from networks import Network, make
from records import Records, exact, say
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab
from autobyte.errors import InputError
from autobyte.scheduler.alpha_beta import AlphaBeta
from autobyte.tuning import WINDOW

TIMEOUT = timedelta(seconds=30)  # of a collective whose peers died
BUCKETS_MIB = (None, 1, 4, 25, 100)  # None: 25 and a first one of 1, as DDP has it when nothing is said
SETTLING = 6  # steps between two looks at whether AutoByte has planned

Step = Callable[[], None]
SYNCHRONISED = "the stream is waited for after forward and at the end of the step, in all arms"


class Rank:
    """What sections need to know: the device, the spec, and where records go (rank 0's do, the others' do not)."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.device = torch.device(spec["device"])
        self.number, self.size = dist.get_rank(), dist.get_world_size()
        self._records = Records(spec, ranks=self.size)

    def add(self, **row: Any) -> None:
        """Record something, on rank 0."""
        if self.number == 0:
            self._records.add(**row)

    def say(self, text: str) -> None:
        """Tell how far it is, on rank 0."""
        if self.number == 0:
            say(text)

    def wait(self) -> None:
        """Wait for what the current stream has been given."""
        if self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    def largest(self, value: float) -> float:
        """The largest of all ranks' numbers."""
        largest = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return float(largest)

    def free(self) -> None:
        """Give memory back to the device."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @property
    def left_s(self) -> float:
        """Time that the section still has, the same on all ranks."""
        return -self.largest(time.time() - self.spec["until"])


def blocks(rank: Rank) -> None:
    """All-reduces one after the other, of two ranks and of all; the line through their times."""
    store = _get_default_store()
    pair = dist.new_group([0, 1])
    if rank.number < 2:
        _blocks(rank, 2, pair)
        store.set(f"done{rank.number}", "yes")
    else:  # no collective: its kernel would wait on the GPU that is measured
        store.wait(["done0", "done1"], TIMEOUT)
    if rank.size > 2:
        _blocks(rank, rank.size, dist.group.WORLD)


def _blocks(rank: Rank, ranks: int, group: Any) -> None:
    times = {}
    for nbytes in rank.spec["sizes"]:
        block = torch.ones(nbytes // 4, device=rank.device)
        taken = [_block_s(rank, block, group, count) for count in (3, 10, 10, 10)][1:]  # the first warms up
        times[nbytes] = statistics.median(taken)
        busbw = 2 * (ranks - 1) / ranks * nbytes / times[nbytes]
        link = {"ranks": ranks, "rate": rank.spec["rate"]}
        rank.add(**link, nbytes=nbytes, block_s=times[nbytes], repeats_s=taken, busbw_bytes_per_s=busbw)
    try:
        line = AlphaBeta.fit(list(times), list(times.values()))
        rank.add(**link, fit=True, start_s=line.start_s, s_per_byte=line.s_per_byte)
    except InputError as error:
        rank.add(**link, fit=True, error=str(error))
    rank.say(f"blocks of {ranks} ranks")


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


def parity(rank: Rank) -> None:
    """Parameters after training with DDP, with DDP again, and with AutoByte: the largest difference."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    for name in ("small-cnn", "small-transformer"):
        for kind in OPTIMIZERS:
            rank.say(f"parity: {name}, {kind}")
            first, again, ours = (_trained(rank, name, kind, way) for way in ("ddp", "ddp", "autobyte"))
            for what, other in (("DDP again", again), ("AutoByte", ours)):
                apart = max(float((a - b).abs().max()) for a, b in zip(first, other, strict=True))
                largest = max(float(a.abs().max()) for a in first)
                rank.add(
                    model=name,
                    optimizer=kind,
                    compared=what,
                    steps=rank.spec["steps"],
                    ranks=rank.size,
                    largest_difference=rank.largest(apart),
                    largest_parameter=largest,
                )


def _trained(rank: Rank, name: str, kind: str, way: str) -> list[torch.Tensor]:
    """Parameters after some steps; each rank has inputs of its own."""
    network = make(name, rank.device, batch=8)
    optimizer: Any = OPTIMIZERS[kind](network.model.parameters())
    trained: nn.Module = network.model
    if way == "ddp":
        trained = DistributedDataParallel(network.model)
    else:
        optimizer = ab.DistributedOptimizer(optimizer, network.model, keep=None, timeout=TIMEOUT)
    for step in range(rank.spec["steps"]):
        batch = network.batch(8, seed=rank.size * step + rank.number)
        optimizer.zero_grad()
        batch.forward(trained).backward()
        optimizer.step()
        rank.wait()
    if way != "ddp":
        optimizer.close()
    return [parameter.detach().clone() for parameter in network.model.parameters()]


def steps(rank: Rank) -> None:
    """Steps of one model: compute, DDP at every bucket, AutoByte; compute, DDP's default and its best once more."""
    network = make(rank.spec["model"], rank.device, batch=rank.spec["batch"])
    network, facts = _sized(rank, network)
    ddp = {"DDP default" if mib is None else f"DDP {mib} MiB": (_ddp, mib) for mib in BUCKETS_MIB}
    ways: dict[str, tuple[Callable[..., Any], Any]] = {"compute": (_plain, None), **ddp}
    ways |= {"AutoByte": (_autobyte, "bytescheduler"), "AutoByte auto": (_autobyte, "auto")}
    first, *others = ddp
    order = ["compute", first, "AutoByte", *others]
    once = len(order)
    seen: dict[str, float] = {}  # median by arm
    cost_s, place = 0.0, 0
    while place < len(order):
        name = order[place]
        if rank.left_s < max(5.0, 1.5 * cost_s):
            rank.add(**facts, left_out=order[place:], why="no time is left")
            return
        began = time.monotonic()
        rank.say(f"{rank.spec['model']}: {name}")
        measured = _arm(rank, network, *ways[name])
        rank.add(**facts, arm=name, repeat=order[:place].count(name), **measured)
        seen[name] = min(seen.get(name, measured["median_s"]), measured["median_s"])
        cost_s = rank.largest(time.monotonic() - began)
        place += 1
        if place == once:
            order += ["compute", *dict.fromkeys([first, min(ddp, key=seen.__getitem__)])]
            order += ["AutoByte auto"] if rank.spec["auto"] else []


def _arm(rank: Rank, network: Network, way: Callable[..., Any], argument: Any) -> dict[str, Any]:
    """Steps in one way of training, and what memory of it is not given back (bytes)."""
    before = torch.cuda.memory_allocated() if rank.device.type == "cuda" else 0
    with way(rank, network, argument) as (step, facts):
        count = rank.spec["steps"] * facts.pop("rounds", 1)
        measured = _timed(rank, step, warmup=rank.spec["warmup"], count=count)
    del step  # it holds what DDP keeps
    rank.free()
    after = torch.cuda.memory_allocated() if rank.device.type == "cuda" else 0
    return facts | measured | {"kept_bytes": after - before}


def _sized(rank: Rank, network: Network) -> tuple[Network, dict[str, Any]]:
    """The model at a batch whose compute on all ranks together takes as long as the wire, if it fits the card."""
    nbytes = sum(4 * parameter.numel() for parameter in network.model.parameters())
    wire_s = 2 * (rank.size - 1) / rank.size * nbytes / (rank.spec["payload"] * rank.spec["rate"])
    with _plain(rank, network, None) as (step, _):
        first_s = _timed(rank, step, warmup=2, count=3)["median_s"]
    del step
    batch = rank.spec["batch"]
    most = rank.spec["most"]
    if rank.device.type == "cuda":
        room = 0.8 * torch.cuda.mem_get_info()[1] / rank.size
        most = min(most, int(batch * room / torch.cuda.max_memory_reserved()))
    chosen = int(rank.largest(max(1, min(most, round(batch * wire_s / first_s)))))
    rank.free()
    rank.say(f"{rank.spec['model']}: batch {chosen}; {batch} took {first_s:.3g} s, the wire takes {wire_s:.3g} s")
    facts = {"model": rank.spec["model"], "batch": chosen, "ranks": rank.size, "rate": rank.spec["rate"]}
    return network.batch(chosen), facts | {"wire_s": wire_s, "tf32": False, "synchronised": SYNCHRONISED}


def _timed(rank: Rank, step: Step, *, warmup: int, count: int) -> dict[str, Any]:
    """Steps of the slowest rank, the one whose median is largest (s)."""
    for _ in range(warmup):
        step()
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began)
    all_taken = [torch.empty(count, dtype=torch.float64, device=rank.device) for _ in range(rank.size)]
    dist.all_gather(all_taken, torch.tensor(taken, dtype=torch.float64, device=rank.device))
    slowest = max((one.tolist() for one in all_taken), key=statistics.median)
    return {"median_s": statistics.median(slowest), "steps_s": slowest}


def _step(rank: Rank, network: Network, model: nn.Module, optimizer: Any) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        loss = network.forward(model)
        rank.wait()  # a rank that runs ahead fills its launch queue, and then all hang
        loss.backward()
        optimizer.step()
        rank.wait()

    return step


@contextmanager
def _copied(network: Network) -> Iterator[tuple[nn.Module, torch.optim.Optimizer]]:
    """A copy of the model that no other arm has hooks on, and its optimizer; its memory is let go of."""
    model = copy.deepcopy(network.model)
    try:
        yield model, torch.optim.SGD(model.parameters(), lr=1e-3)
    finally:
        for parameter in model.parameters():
            parameter.grad = None
            parameter.data = parameter.data.new_empty(0)


@contextmanager
def _plain(rank: Rank, network: Network, _: None) -> Iterator[tuple[Step, dict[str, Any]]]:
    """Compute alone, on all ranks at once."""
    with _copied(network) as (model, optimizer):
        yield _step(rank, network, model, optimizer), {}


@contextmanager
def _ddp(rank: Rank, network: Network, mib: int | None) -> Iterator[tuple[Step, dict[str, Any]]]:
    with _copied(network) as (model, optimizer):
        wrapped = DistributedDataParallel(model, bucket_cap_mb=mib)
        yield _step(rank, network, wrapped, optimizer), {"bucket_mib": mib}
        del wrapped


@contextmanager
def _autobyte(rank: Rank, network: Network, policy: str) -> Iterator[tuple[Step, dict[str, Any]]]:
    """AutoByte over gloo and pinned host memory, once its plan is from measured times and `auto` has chosen."""
    with _copied(network) as (model, inner):
        optimizer = ab.DistributedOptimizer(inner, model, policy=policy, keep=None, timeout=TIMEOUT)
        step = _step(rank, network, model, optimizer)
        facts: dict[str, Any] = {"policy": policy, "engine": "allreduce over gloo, through pinned host memory"}
        try:
            facts["settled_after"] = _settle(rank, step, optimizer, auto=policy == "auto")
            assert optimizer.training is not None
            facts["config"] = optimizer.training.config.to_json()
            report = optimizer.report()
            facts["report"] = report.to_json() if report is not None else None
            yield step, facts | {"rounds": 2}  # it settles once, and is measured as long as what is repeated
        finally:
            optimizer.close()


def _settle(rank: Rank, step: Step, optimizer: ab.DistributedOptimizer, *, auto: bool) -> int:
    """Train until plans come from measured times, and for `auto` until candidates are heard; how many steps."""
    taken, planned, began = 0, False, time.monotonic()
    longest = rank.spec["audition"] if auto else SETTLING + 2 * WINDOW
    while taken < longest and (auto or not planned):
        for _ in range(SETTLING):
            step()
        taken += SETTLING
        report = optimizer.report()
        heard = report is not None and report.bound_s is not None
        planned = rank.largest(float(rank.number == 0 and heard)) > 0
        each_s = rank.largest(time.monotonic() - began) / taken
        if rank.left_s < 10 + 2 * each_s * (rank.spec["steps"] + WINDOW):
            break
        rank.say(f"{taken} steps, {each_s:.3g} s each")
    for _ in range(WINDOW):
        step()
    return taken + WINDOW


SECTIONS = {"blocks": blocks, "parity": parity, "steps": steps}


def main(path: str) -> None:
    """Take part in a section."""
    spec: dict[str, Any] = json.loads(Path(path).read_text())
    torch.set_num_threads(1)
    exact()
    if spec["backend"] == "nccl":
        torch.cuda.set_device(spec["device"])
    dist.init_process_group(spec["backend"], timeout=TIMEOUT)
    rank = Rank(spec)
    rank.largest(0.0)  # the communicator is made here
    rank.say(f"{spec['section']}: {rank.size} ranks are there")
    SECTIONS[spec["section"].split()[0]](rank)
    rank.largest(0.0)  # nobody leaves before the others


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # a rank whose peers are gone would wait for them
    os._exit(0)
