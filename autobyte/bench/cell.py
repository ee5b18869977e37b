"""One rank of a measurement: wraps an emulated model in one scheduler after the other, and times steps.

    torchrun --nproc-per-node 2 -m autobyte.bench.cell SPEC.json

Rank 0 appends one line of JSON per run to the spec's `out`, as soon as it is measured.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab
from autobyte.bench.methods import compress, finish
from autobyte.config import Config, Space
from autobyte.job import Model
from autobyte.models import find
from autobyte.registry import load_plugins
from autobyte.scheduler.policies.ddp import DEFAULT_MIB
from autobyte.tuning import WINDOW

WARMUP = 6  # steps: the first is synchronous, three measure layers, two switch to the plan made from them
AUDITIONS = 230  # steps until `auto` has measured its ten candidates, and three of them twice more
AFTER_SWITCH = 3  # steps until a switch has taken effect
UNUSED = 3  # models that are made first where two are compared: the first of a process takes some percent longer
HANDED_OVER = 20  # steps after which the default has given gradients to PyTorch's reducer
FAILED = 2  # what rank 0 tells in place of whether something is decided

Step = Callable[[], None]


def main(spec_path: str) -> None:
    """Measure every run of a spec."""
    torch.set_num_threads(1)
    spec = json.loads(Path(spec_path).read_text())
    device = torch.device(spec["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    load_plugins([Path(file) for file in spec["plugins"]])
    model = find(spec["model"]).scaled(**spec["scales"])
    for run in spec["runs"]:
        how = {"steps": spec["steps"], "pace": Path(spec["pace"]), "device": device, "clip": spec.get("clip")}
        for row in measure(model, run, **how):
            if dist.get_rank() == 0:
                with Path(spec["out"]).open("a") as out:
                    out.write(json.dumps(row) + "\n")
    dist.barrier()
    dist.destroy_process_group()


def measure(
    model: Model,
    run: dict[str, Any],
    *,
    steps: int,
    pace: Path,
    device: torch.device,
    clip: float | None = None,
) -> Iterator[dict[str, Any]]:
    """Measure one scheduler; a run of several configs gives a row for each, one with `watch` all of its steps.

    One with `beside`, bucket sizes, is measured in turn with DDP at the best of them, so both see the same links; so
    is the default, which tries nothing else in so few steps, with DDP's own default.
    """
    if run["scheduler"] in ("ddp", "none"):
        alone = _ddp(model, run, device, clip) if run["scheduler"] == "ddp" else _plain(model, device)
        yield run | timed(alone, warmup=WARMUP, steps=steps)
        return
    unused = [ab.emulate(model, device=device) for _ in range(UNUSED if run.get("beside") else 0)]
    emulated = ab.emulate(model, device=device)
    if run.get("beside"):
        emulated.autobyte_average = True  # DDP divides sums, too; only where both do can PyTorch's reducer take over
    optimizer = ab.DistributedOptimizer(
        torch.optim.SGD(emulated.parameters(), lr=0.01),
        emulated,
        policy=run["policy"],
        config=Config.from_json(run["config"]) if "config" in run else None,
        tuner=run.get("tuner"),
        space=Space(**run["space"]) if "space" in run else None,
        budget=run.get("windows"),
        keep=run.get("keep"),
        engine=run["engine"],
        wire_dtype=run.get("wire_dtype"),
    )
    step = _step(emulated, optimizer, device, None if clip is None else partial(optimizer.clip_grad_norm_, clip))
    try:
        if run.get("watch"):
            yield run | _watched(step, optimizer, run["watch"], pace, settle=not run.get("tuner"))
        elif run.get("beside"):
            sizes = dict.fromkeys([*run["beside"], DEFAULT_MIB])
            ddps = {mib: _ddp(model, run | {"bucket_mib": mib}, device, clip) for mib in sizes}
            with _default(model, device, clip) as (default, reduced):
                plain = default, reduced, ddps[DEFAULT_MIB]
                chosen = {mib: ddps[mib] for mib in run["beside"]}
                yield run | _in_turn(step, optimizer, chosen, plain, turns=run["turns"], steps=steps)
        elif run.get("tuner"):
            yield run | _tuned(step, optimizer, run["windows"], steps)
        else:
            _settle(step, optimizer)
            if run["policy"] == "auto":
                for _ in range(AUDITIONS):
                    step()
            measured = timed(step, warmup=AFTER_SWITCH, steps=steps)
            yield run | {"config": _config(optimizer)} | measured
        for config in run.get("more", []):
            optimizer.reconfigure(Config.from_json(config))
            yield run | {"config": config} | timed(step, warmup=AFTER_SWITCH, steps=steps)
    finally:
        optimizer.close()
        del unused  # they fill holes in the heap until then


def timed(step: Step, *, warmup: int, steps: int) -> dict[str, Any]:
    """Step times of the slowest rank (s), a step's CPU time in this process (s), and the machine's busy cores.

    The slowest is the one rank whose median is largest. The largest time of each step, over all ranks, is no one's:
    where updates cross steps, ranks are not at the same place when `step()` returns, and it would count every delay
    that one rank has and another has made up for.
    """
    for _ in range(warmup):
        step()
    took, cpu_s, machine = [], _cpu_s(), psutil.cpu_times()
    for _ in range(steps):
        began = time.perf_counter()
        step()
        took.append(time.perf_counter() - began)
    cpu_s = (_cpu_s() - cpu_s) / steps
    busy_cores = _busy_s(machine, psutil.cpu_times()) / sum(took)
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    ranks = [torch.empty(steps, dtype=torch.float64, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(ranks, torch.tensor(took, dtype=torch.float64, device=device))
    slowest = max(ranks, key=lambda rank: float(rank.quantile(0.5)))
    return {"steps_s": slowest.tolist(), "cpu_s": cpu_s, "busy_cores": busy_cores}


def _settle(step: Step, optimizer: ab.DistributedOptimizer) -> None:
    """Train until plans are made from measured times."""
    planned = _flag()
    while not planned:
        for _ in range(WARMUP):
            step()
        report = optimizer.report()
        planned[0] = report is not None and report.bound_s is not None
        dist.broadcast(planned, 0)
    for _ in range(2 * WINDOW):  # the first plan is made from three steps, and again from a window
        step()


def _flag() -> torch.Tensor:
    """What rank 0 tells the others."""
    return torch.zeros(1, device="cuda" if dist.get_backend() == "nccl" else "cpu")


def _tuned(step: Step, optimizer: ab.DistributedOptimizer, windows: int, steps: int) -> dict[str, Any]:
    """Train until the tuner's budget is spent, then measure what it found."""
    began = time.perf_counter()
    done = _flag()
    while not done:
        for _ in range(10):
            step()
        report = optimizer.report()
        spent = sum(trial.windows for trial in report.trials.values()) if report is not None else 0
        failed = report is not None and bool(report.failure) and not report.trials
        done[0] = spent >= windows or failed
        dist.broadcast(done, 0)
    search_s = time.perf_counter() - began
    for _ in range(2 * WINDOW):  # its last decision may still be thought about
        step()
    measured = timed(step, warmup=AFTER_SWITCH, steps=steps)
    report = optimizer.report()
    return {
        "config": _config(optimizer),
        "search_s": search_s,
        "report": report.to_json() if report is not None else {},
    } | measured


def _watched(
    step: Step, optimizer: ab.DistributedOptimizer, windows: int, pace: Path, *, settle: bool
) -> dict[str, Any]:
    """Train for so many windows of ten steps, and tell all that happens.

    The number of steps goes into the file `pace`, once a window: links may change with it.
    """
    watched: list[dict[str, Any]] = []
    _write(pace, 0)
    if settle:
        _settle(step, optimizer)
    for window in range(windows):
        _write(pace, 10 * window)
        config, took = _config(optimizer), []
        for _ in range(10):
            began = time.perf_counter()
            step()
            took.append(time.perf_counter() - began)
        watched.append({"config": config, "steps_s": took})
    return {"config": _config(optimizer), "watched": watched, "steps_s": watched[-1]["steps_s"], "cpu_s": 0.0}


def _in_turn(
    step: Step,
    optimizer: ab.DistributedOptimizer,
    ddps: Mapping[int, Step],
    plain: tuple[Step, Callable[[], bool], Step],
    *,
    turns: int,
    steps: int,
) -> dict[str, Any]:
    """Let `auto` decide, and measure it in turn with DDP at its best bucket, and the default with DDP's.

    Args:
        step: of `auto`.
        ddps: steps of DDP, by size of buckets (MiB).
        plain: a step of the default, whether its gradients go by PyTorch's reducer, and a step of DDP's default.
        turns: of each; now the one is first, now the other.
        steps: measured, of every turn.
    """
    buckets_s: dict[int, float] = {}
    if len(ddps) > 1:  # medians are of all ranks, so all choose the same
        buckets_s = {mib: median(timed(ddp, warmup=WARMUP, steps=steps)["steps_s"]) for mib, ddp in ddps.items()}
    best = min(ddps, key=lambda mib: buckets_s.get(mib, 0.0))
    decided_after = _decide(step, optimizer)
    default, reduced, ddps_default = plain
    for _ in range(HANDED_OVER):
        default()
    if not reduced():
        raise RuntimeError(f"gradients of the default do not go by PyTorch's reducer after {HANDED_OVER} steps")
    arms = {"auto": step, "ddp": ddps[best], "default": default, "ddp_default": ddps_default}
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    for turn in range(turns):
        for name in reversed(arms) if turn % 2 else arms:
            told[name].append(timed(arms[name], warmup=AFTER_SWITCH, steps=steps))
    assert optimizer.training is not None
    took = {name: [seconds for turn in turns for seconds in turn["steps_s"]] for name, turns in told.items()}
    cpu_s = {name: median(turn["cpu_s"] for turn in turns) for name, turns in told.items()}
    return {
        "config": _config(optimizer),
        "reduced": optimizer.training.exchange.reduction is not None,
        "decided_after": decided_after,
        "bucket_mib": best,
        "buckets_s": buckets_s,
        "steps_s": took["auto"],
        "ddp_s": took["ddp"],
        "default_s": took["default"],
        "ddp_default_s": took["ddp_default"],
        "cpu_s": cpu_s["auto"],
        "ddp_cpu_s": cpu_s["ddp"],
        "default_cpu_s": cpu_s["default"],
        "ddp_default_cpu_s": cpu_s["ddp_default"],
    }


@contextmanager
def _default(model: Model, device: torch.device, clip: float | None) -> Iterator[tuple[Step, Callable[[], bool]]]:
    """A step of AutoByte by default, and whether its gradients go by PyTorch's reducer."""
    emulated = ab.emulate(model, device=device)
    emulated.autobyte_average = True  # as in `measure`
    optimizer = ab.DistributedOptimizer(torch.optim.SGD(emulated.parameters(), lr=0.01), emulated)
    clipping = None if clip is None else partial(optimizer.clip_grad_norm_, clip)

    def reduced() -> bool:
        assert optimizer.training is not None
        return optimizer.training.exchange.reduction is not None

    try:
        yield _step(emulated, optimizer, device, clipping), reduced
    finally:
        optimizer.close()


def _decide(step: Step, optimizer: ab.DistributedOptimizer) -> int:
    """Train until `auto` has chosen, and its choice is in force; how many steps that took.

    Raises:
        RuntimeError: it has failed, so it may never choose.
    """
    decided, taken = _flag(), 0
    while not decided:
        for _ in range(WINDOW):
            step()
        taken += WINDOW
        report = optimizer.report()
        failure = report.failure if report is not None else ""
        decided[0] = FAILED if failure else report is not None and report.state == "settled"
        dist.broadcast(decided, 0)
    if decided == FAILED:
        raise RuntimeError(f"auto has not decided: {failure or 'see rank 0'}")
    for _ in range(2 * WINDOW):  # its last decision may still be thought about
        step()
    return taken


def _write(pace: Path, steps: int) -> None:
    """Say which step it is; whoever reads finds the old number or the new one, and never half of it."""
    if dist.get_rank() == 0:
        fresh = pace.with_suffix(".new")
        fresh.write_text(str(steps))
        fresh.replace(pace)
    dist.barrier()


def _ddp(model: Model, run: dict[str, Any], device: torch.device, clip: float | None) -> Step:
    emulated = ab.emulate(model, device=device)
    bucket = run["bucket_mib"]  # a size that is said is that of the first bucket, too; by default that has 1 MiB
    wrapped = DistributedDataParallel(emulated, bucket_cap_mb=None if bucket == DEFAULT_MIB else bucket)
    if run.get("wire_dtype"):
        compress(wrapped, run["wire_dtype"])
    clipping = None if clip is None else partial(nn.utils.clip_grad_norm_, list(emulated.parameters()), clip)
    return _step(wrapped, torch.optim.SGD(emulated.parameters(), lr=0.01), device, clipping)


def _plain(model: Model, device: torch.device) -> Step:
    """Compute alone."""
    emulated = ab.emulate(model, device=device)
    return _step(emulated, torch.optim.SGD(emulated.parameters(), lr=0.01), device)


def _step(model: nn.Module, optimizer: Any, device: torch.device, clip: Callable[[], object] | None = None) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        loss = model(torch.zeros(1, device=device))
        finish(device)
        loss.backward()
        if clip is not None:
            clip()
        optimizer.step()
        finish(device)

    return step


def _config(optimizer: ab.DistributedOptimizer) -> dict[str, Any]:
    assert optimizer.training is not None
    return optimizer.training.config.to_json()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _busy_s(before: Any, after: Any) -> float:
    """CPU time of all processes together between two readings (s)."""
    spent = {
        name: getattr(after, name) - getattr(before, name) for name in ("user", "nice", "system", "irq", "softirq")
    }
    return float(sum(spent.values()))


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)  # threads of gloo outlive the interpreter's
