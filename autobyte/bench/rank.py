"""One rank of a measurement of real models: the time of a step under one method after the other.

    python -m autobyte.bench.rank SPEC.json

as `autobyte bench --gpu` starts it on every host. Rank 0 appends records to the spec's `out` as soon as it knows
them.
"""

import copy
import gc
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import autobyte.torch as ab
from autobyte.bench.methods import COMPUTE, TIMEOUT, Method, TimedStep, finish, methods, offered, training
from autobyte.bench.networks import Network, make
from autobyte.bench.records import Records, exact, say
from autobyte.bench.verdict import described
from autobyte.bound import bound_s
from autobyte.exchange.arguments import WIRE
from autobyte.job import Cluster, Job, Model
from autobyte.torch.profiling.doctor import examine
from autobyte.torch.profiling.source import Made
from autobyte.tuning import WINDOW

SETTLING = 6  # steps between two looks at whether AutoByte has planned
GUESSES = 3  # batch sizes that are tried until compute takes as long as it should
NEAR = 0.1  # how far from that it may be
FULL = 0.8  # of the card's memory, for all ranks together
SYNCHRONISED = "the stream is waited for after forward and at the end of the step, in all arms"

Spec = dict[str, Any]


class Rank:
    """What sections need to know: the device, the spec, and where records go (rank 0's do, the others' do not)."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.device = torch.device(spec["device"])
        self.number, self.size = dist.get_rank(), dist.get_world_size()
        common = {"section": spec["section"], **spec["provenance"], "ranks_on_card": self.size}
        self._records = Records(Path(spec["out"]), common)

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
        finish(self.device)

    def largest(self, value: float) -> float:
        """The largest of all ranks' numbers. Collective."""
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
        """Time that the section still has, the same on all ranks. Collective."""
        return -self.largest(time.time() - self.spec["until"])


def rows(rank: Rank) -> None:
    """Steps of one model at every batch size: all methods, what DDP offers beside, and the first of them again."""
    spec = rank.spec
    network = make(spec["model"], rank.device, batch=spec["batch"] or None, inputs=spec.get("input", ""))
    for ratio in spec["ratios"] or [None]:
        sized, facts = of_ratio(rank, network, ratio) if ratio else (network, _facts(rank, network, None))
        Bench(rank, sized, facts).run()
        rank.free()


class Bench:
    """All methods on one model at one batch size.

    Args:
        rank: this one.
        network: the model.
        facts: what all of its records say.
    """

    def __init__(self, rank: Rank, network: Network, facts: Mapping[str, Any]) -> None:
        self._rank, self._network, self._facts = rank, network, dict(facts)
        self._seen: dict[str, float] = {}  # the shortest median, by name (s)
        self._cost_s = 0.0
        spec = rank.spec
        given = {key: spec[key] for key in ("engine", "tuners", "windows", "servers")}
        self._wires: list[str | None] = spec["wires"]
        self._methods = methods(wire_dtypes=self._wires, **given)

    def run(self) -> None:
        """Measure all, and then again what counts; what there is no time for is recorded as left out."""
        rank, arms = self._rank, self._rank.spec.get("arms")
        waiting = [method for method in self._methods if not arms or method.name in arms]
        plain = [method for method in waiting if method.scheduler == "ddp" and method.wire_dtype is None]
        self._add_bounds()
        for repeat in range(rank.spec["repeats"]):
            known: list[Method] = []
            while waiting:
                method = waiting.pop(0)
                if rank.left_s < max(5.0, 1.5 * self._cost_s):
                    names = [each.name for each in (method, *waiting)]
                    rank.add(**self._facts, left_out=names, why="no time is left")
                    return
                known.append(self._measure(method, repeat))
                if repeat == 0 and rank.spec["offered"] and plain and method is plain[-1]:
                    has_buffers = any(True for _ in self._network.model.buffers())
                    waiting[:0] = offered(self._fastest(plain), has_buffers=has_buffers)
            waiting = self._again(known)

    def _again(self, known: Sequence[Method]) -> list[Method]:
        """What is measured once more: of DDP, the default and the fastest, for each dtype on the wire."""
        kept = []
        for wire in self._wires:
            ddp = [method for method in known if method.scheduler == "ddp" and method.wire_dtype == wire]
            kept += [ddp[0], self._fastest(ddp)] if ddp else []
        return [method for method in known if method.scheduler != "ddp" or method in kept]

    def _fastest(self, measured: Sequence[Method]) -> Method:
        return min(measured, key=lambda method: self._seen[method.name])

    def _measure(self, method: Method, repeat: int) -> Method:
        """Measure one method, and give what is measured the next time: what a search has found."""
        rank, began = self._rank, time.monotonic()
        rank.say(f"{self._network.name}, batch {self._network.batch}: {method.name}")
        measured = step_times(rank, self._network, method)
        rank.add(**self._facts, arm=method.name, **method.to_json(), repeat=repeat, **measured)
        self._seen[method.name] = min(self._seen.get(method.name, float("inf")), measured["median_s"])
        self._cost_s = rank.largest(time.monotonic() - began)
        return method.settled(measured.get("config")) if method.searches else method

    def _add_bounds(self) -> None:
        """Record, for each dtype on the wire, the least that a step can take."""
        rank, network = self._rank, self._network
        rank.say(f"{network.name}, batch {network.batch}: layer by layer")
        compute_s = step_times(rank, network, COMPUTE)["median_s"]
        model = self._examined()
        payload = rank.spec["payload"] * rank.spec["rate"]
        for wire in self._wires:
            job = Job(
                model.scaled(time=compute_s / model.compute_s),
                Cluster.uniform(rank.size, payload),
                wire_dtype=WIRE[wire] if wire else None,
            )
            rank.add(**self._facts, bound_s=bound_s(job), wire_dtype=wire, compute_s=compute_s)
        rank.free()

    def _examined(self) -> Model:
        """The model with its layers' times; what doctor goes by is recorded."""
        rank, network = self._rank, self._network
        subject = Made(copy.deepcopy(network.model), network.inputs, network.loss)
        symptoms = examine(subject, network.inputs, device=str(rank.device), steps=rank.spec["steps"])
        symptoms = replace(symptoms, model=replace(symptoms.model, name=network.name))
        rank.add(**self._facts, symptoms=described(symptoms))
        return symptoms.model


def step_times(rank: Rank, network: Network, method: Method) -> dict[str, Any]:
    """Steps of a model under a method, once its search is over. Collective.

    Returns:
        `median_s` and `steps_s` of the slowest rank (s), `host_s` that its training thread spends on a step (s),
        `kept_bytes` of the device's memory that are not given back; for AutoByte also `config`, `settled_after` so
        many steps, and its `report`.
    """
    before = torch.cuda.memory_allocated() if rank.device.type == "cuda" else 0
    with training(network, method) as (step, optimizer):
        count, facts = rank.spec["steps"], dict[str, Any]()
        if optimizer is not None:
            count *= 2  # it settles once, and is measured as long as what is repeated
            facts["settled_after"] = _settle(rank, step, optimizer, method)
            assert optimizer.training is not None
            facts["config"] = optimizer.training.config.to_json()
            report = optimizer.report()
            facts["report"] = report.to_json() if report is not None else None
        facts |= timed(rank, step, warmup=rank.spec["warmup"], count=count)
    del step, optimizer  # they hold what DDP keeps
    rank.free()
    after = torch.cuda.memory_allocated() if rank.device.type == "cuda" else 0
    return facts | {"kept_bytes": after - before}


def timed(rank: Rank, step: TimedStep, *, warmup: int, count: int) -> dict[str, Any]:
    """Steps of the slowest rank, the one whose median is largest (s). Collective."""
    for _ in range(warmup):
        step()
    taken, host = [], []
    for _ in range(count):
        began = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began)
        host.append(step.host_s)
    all_taken = [torch.empty(2 * count, dtype=torch.float64, device=rank.device) for _ in range(rank.size)]
    dist.all_gather(all_taken, torch.tensor(taken + host, dtype=torch.float64, device=rank.device))
    slowest = max((one.tolist() for one in all_taken), key=lambda one: statistics.median(one[:count]))
    steps, hosts = slowest[:count], slowest[count:]
    return {"median_s": statistics.median(steps), "host_s": statistics.median(hosts), "steps_s": steps}


def of_ratio(rank: Rank, network: Network, ratio: float) -> tuple[Network, dict[str, Any]]:
    """The model at a batch size at which the wire takes `ratio` × compute, if it fits the card. Collective."""
    wanted_s = _wire_s(rank, network) / ratio
    most, batch, took = rank.spec["most"], network.batch, dict[int, float]()
    for _ in range(GUESSES):
        took[batch] = _compute_s(rank, network.of(batch))
        rank.say(f"{network.name}: batch {batch} takes {took[batch]:.3g} s, {wanted_s:.3g} s are wanted")
        if rank.device.type == "cuda":
            room = FULL * torch.cuda.mem_get_info()[1] / rank.size
            most = min(most, int(batch * room / torch.cuda.max_memory_reserved()))
        guess = int(rank.largest(max(1, min(most, round(_guess(took, wanted_s))))))
        if guess in took or abs(took[batch] / wanted_s - 1) < NEAR:
            break
        batch = guess
    chosen = network.of(min(took, key=lambda each: abs(took[each] - wanted_s)))
    rank.free()
    return chosen, _facts(rank, chosen, ratio)


def _guess(took: Mapping[int, float], wanted_s: float) -> float:
    """The batch size that takes so long, by the last two that were measured: a line, or through zero by one."""
    (one, one_s), *more = list(took.items())[-2:]
    if not more or more[0][1] == one_s:
        return one * wanted_s / one_s
    other, other_s = more[0]
    return one + (other - one) * (wanted_s - one_s) / (other_s - one_s)


def _compute_s(rank: Rank, network: Network) -> float:
    with training(network, COMPUTE) as (step, _):
        median_s: float = timed(rank, step, warmup=2, count=3)["median_s"]
    del step
    rank.free()
    return median_s


def _wire_s(rank: Rank, network: Network) -> float:
    """What all gradients need on the links of a ring, in their own dtypes (s)."""
    nbytes = sum(p.numel() * p.element_size() for p in network.model.parameters() if p.requires_grad)
    return float(2 * (rank.size - 1) / rank.size * nbytes / (rank.spec["payload"] * rank.spec["rate"]))


def _facts(rank: Rank, network: Network, ratio: float | None) -> dict[str, Any]:
    return {
        "model": network.name,
        "batch": network.batch,
        "ranks": rank.size,
        "rate": rank.spec["rate"],
        "ratio": ratio,
        "wire_s": _wire_s(rank, network),
        "tf32": False,
        "synchronised": SYNCHRONISED,
    }


def _settle(rank: Rank, step: TimedStep, optimizer: ab.DistributedOptimizer, method: Method) -> int:
    """Train until plans come from measured times, and until a search is over; how many steps."""
    taken, began = 0, time.monotonic()
    longest = rank.spec["audition"] if method.searches else SETTLING + 2 * WINDOW
    over = False
    while taken < longest and not over:
        for _ in range(SETTLING):
            step()
        taken += SETTLING
        over = rank.largest(float(rank.number == 0 and _is_over(optimizer, method))) > 0
        each_s = rank.largest(time.monotonic() - began) / taken
        if rank.left_s < 10 + 2 * each_s * (rank.spec["steps"] + WINDOW):
            break
        rank.say(f"{taken} steps, {each_s:.3g} s each")
    for _ in range(WINDOW):
        step()
    return taken + WINDOW


def _is_over(optimizer: ab.DistributedOptimizer, method: Method) -> bool:
    """Whether rank 0 has found what it looked for."""
    report = optimizer.report()
    if report is None:
        return False
    if method.searches:
        return report.state == "settled" or bool(report.failure and not report.trials)
    return report.bound_s is not None


SECTIONS: dict[str, Callable[[Rank], None]] = {"rows": rows, "steps": rows}


def take_part(path: str, sections: Mapping[str, Callable[[Rank], None]] = SECTIONS) -> None:
    """Run the section that a spec names, as one of its ranks; the process ends here, with its status.

    A rank whose peers are gone would wait for them when it ends as others do.
    """
    try:
        spec: Spec = json.loads(Path(path).read_text())
        torch.set_num_threads(1)
        exact()
        if spec["backend"] == "nccl":
            torch.cuda.set_device(spec["device"])
        dist.init_process_group(spec["backend"], timeout=TIMEOUT)
        rank = Rank(spec)
        rank.largest(0.0)  # the communicator is made here
        rank.say(f"{spec['section']}: {rank.size} ranks are there")
        sections[spec["section"].split()[0]](rank)
        rank.largest(0.0)  # nobody leaves before the others
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    take_part(sys.argv[1])
