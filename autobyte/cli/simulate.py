"""`autobyte simulate`: one job, one config, one answer."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autobyte.cli.options import (
    AccumulationOption,
    ArchOption,
    BandwidthOption,
    CalibrationOption,
    ClipOption,
    GpusOption,
    JsonOption,
    KnobOption,
    LatencyOption,
    ModelOption,
    OverheadOption,
    PluginOption,
    PolicyOption,
    ScenarioOption,
    SlowdownOption,
    WireOption,
    WorkersOption,
    calibrated,
    make_config,
    make_job,
    make_scenario,
)

if TYPE_CHECKING:
    from autobyte.config import Config
    from autobyte.job import Job
    from autobyte.scenario import Scenario
    from autobyte.scheduler.plan import Plan
    from autobyte.simulator.effects import Effects
    from autobyte.simulator.simulation import Simulation

SCENARIO_STEPS = 60


def simulate(
    *,
    model: ModelOption,
    arch: ArchOption = "allreduce",
    workers: WorkersOption = 8,
    bandwidth: BandwidthOption = "10Gbit",
    policy: PolicyOption = "bytescheduler",
    partition: Annotated[
        str | None,
        typer.Option("--partition", help="size at which gradients are cut, such as 4MiB; default: the policy's own"),
    ] = None,
    credit: Annotated[
        str | None,
        typer.Option("--credit", help="bytes in flight: 16MB, or 4x for four partitions; default: the policy's own"),
    ] = None,
    knob: KnobOption = None,
    plugin: PluginOption = None,
    slowdown: SlowdownOption = "1",
    latency: LatencyOption = "30us",
    overhead: OverheadOption = "500us,30us",
    gpus_per_node: GpusOption = 1,
    accumulation: AccumulationOption = 1,
    wire_dtype: WireOption = "",
    clip: ClipOption = False,
    scenario: ScenarioOption = None,
    calibration: CalibrationOption = None,
    iterations: Annotated[
        int | None,
        typer.Option(
            "--iterations", help="average over this many steps; default: one steady step, or 60 steps in a scenario"
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="write a trace that https://ui.perfetto.dev opens")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Simulate a job under one config.

    Prints the step time beside the bound and DDP, and where the time goes.

    Example: autobyte simulate --model vgg16 --bandwidth 25Gbit --policy usbyte
    """
    from autobyte.cli.console import print_json
    from autobyte.errors import InputError
    from autobyte.registry import load_plugins
    from autobyte.scheduler.policies import make_plan
    from autobyte.simulator import kernel
    from autobyte.simulator.steady import settled, steady_s

    if iterations is not None and iterations < 1:
        raise InputError(f"iterations must be at least 1, got {iterations}")
    load_plugins(plugin or [])
    job = make_job(
        model,
        arch=arch,
        workers=workers,
        bandwidth=bandwidth,
        slowdown=slowdown,
        latency=latency,
        overhead=overhead,
        accumulation=accumulation,
        wire_dtype=wire_dtype,
        gpus_per_node=gpus_per_node,
        clip=clip,
    )
    job, effects = calibrated(job, calibration)
    config = make_config(job, policy, partition, credit, knob)
    plan = make_plan(job, config)
    changes = make_scenario(scenario)
    if any(change.workers for change in changes.changes):
        raise InputError(f"scenario '{changes.name}' changes the number of workers: `autobyte compare` takes it")
    mean_of = iterations or (SCENARIO_STEPS if changes.changes else None)  # None: of a steady step
    if trace is not None:
        save_trace(plan, config, changes, mean_of or 1, trace, effects)
    run = (
        kernel.simulate(plan, iterations=mean_of, scenario=changes, effects=effects)
        if mean_of
        else settled(plan, effects=effects)
    )
    seconds = run.mean_s if mean_of else steady_s(plan, effects=effects)
    summary = _summary(run, config, seconds, changes, effects)
    if json:
        print_json(summary)
    else:
        _show(summary, run, config, trace)


def save_trace(
    plan: "Plan", config: "Config", changes: "Scenario", iterations: int, path: Path, effects: "Effects"
) -> None:
    """Run the reference with its trace on, and write that where there is nothing yet, whole or not at all.

    Raises:
        FileError: there is a file already, or the disk does not take it.
    """
    from autobyte.errors import FileError
    from autobyte.simulator.simulate import simulate as reference
    from autobyte.trace import about_job

    if path.exists():
        raise FileError(f"{path} exists already; choose another name")
    recorded = reference(plan, iterations=max(2, iterations), scenario=changes, effects=effects, trace=True).trace
    assert recorded is not None
    recorded.about |= about_job(plan.job, config, what="simulated")
    try:
        recorded.save(path)
    except FileError:
        if path.exists():
            path.unlink()  # what a full disk took of it
        raise


def _summary(
    run: "Simulation", config: "Config", seconds: float, changes: "Scenario", effects: "Effects"
) -> dict[str, Any]:
    from autobyte.bound import gap_closed

    job, stats = run.plan.job, run.stats
    bounds_s, ddp_s, baseline_s = _references(job, changes, len(run.step_s), effects)
    layers = zip(job.model.layers, run.forward_s[0], run.backward_s[0], run.wait_s[0], strict=True)
    workers = zip(stats.up_bytes_per_s, stats.down_bytes_per_s, run.utilisation, strict=True)
    return {
        "what": "simulated",
        "job": job.to_json() | {"scenario": changes.name},
        "config": config.to_json() | {"policy": config.policy},
        "step_s": seconds,
        "samples_per_s": job.samples / seconds,
        "bound_s": bounds_s,
        "over_bound": seconds / bounds_s,
        "fifo_s": baseline_s,
        "ddp_best_s": ddp_s,
        "speedup_over_fifo": baseline_s / seconds,
        "gap_closed": gap_closed(seconds, ddp_s, bounds_s),
        "blocks": len(run.plan.tiling),
        "inversions": run.inversions,
        "plan_digest": run.plan.digest,
        "steps_s": run.step_s.tolist(),
        "layers": [  # of the first worker
            {"name": layer.name, "forward_s": forward, "backward_s": backward, "stall_s": stall}
            for layer, forward, backward, stall in layers
        ],
        "workers": [
            {"up_bytes_per_s": _finite(up), "down_bytes_per_s": _finite(down), "utilisation": float(part)}
            for up, down, part in workers
        ],
    }


def _references(job: "Job", changes: "Scenario", steps: int, effects: "Effects") -> tuple[float, float, float]:
    """The bound, DDP at its best and FIFO: steady steps, on average over the clusters that there were (s)."""
    from autobyte.bound import yardstick_s
    from autobyte.simulator.steady import fifo_s, reference_s

    seen = Counter(changes.cluster(job.cluster, iteration) for iteration in range(steps))
    jobs = [(replace(job, cluster=cluster), times / steps) for cluster, times in seen.items()]
    return (
        sum(part * yardstick_s(then) for then, part in jobs),
        sum(part * reference_s(then, effects=effects) for then, part in jobs),
        sum(part * fifo_s(then, effects=effects) for then, part in jobs),
    )


def _finite(value: float) -> float | None:
    """JSON has no infinity: None stands for a link that was never busy."""
    return float(value) if math.isfinite(value) else None


def _show(summary: dict[str, Any], run: "Simulation", config: "Config", trace: Path | None) -> None:
    from autobyte.cli.console import print_line, print_table
    from autobyte.comparison.title import count, title
    from autobyte.units import format_percent, format_seconds

    print_line(f"{title(summary)}\n{config.policy} {config.label}")
    steps = {
        "this config": summary["step_s"],
        "bound": summary["bound_s"],
        "DDP, best bucket": summary["ddp_best_s"],
        "nothing overlaps": summary["fifo_s"],
    }
    rows = [
        (name, format_seconds(s), f"{run.plan.job.samples / s:,.1f}", f"{s / summary['bound_s']:.3f}")
        for name, s in steps.items()
    ]
    print_table(("", "step", "samples/s", "over bound"), rows)
    if summary["gap_closed"] is None:
        print_line("DDP at its best bucket is within 5 % of the bound: there is nothing to gain")
    else:
        slower = "slower than DDP at its best; " if summary["gap_closed"] < 0 else ""
        closed = format_percent(summary["gap_closed"])
        print_line(f"{slower}of the gap between DDP at its best and the bound, closed: {closed}")
    whose = "worker 0's " if len(run.forward_s) > 1 else ""  # others do otherwise
    print_line(
        f"{count(summary['blocks'], 'block')}, {summary['inversions']:,} of them behind a less urgent one; "
        f"{whose}link busy {format_percent(summary['workers'][0]['utilisation'])} of the time"
    )
    stalls = sorted(summary["layers"], key=lambda layer: -layer["stall_s"])[:5]
    waits = ", ".join(
        f"'{layer['name']}' ({format_seconds(layer['stall_s'])})" for layer in stalls if layer["stall_s"]
    )
    print_line(f"{whose}forward waits most for layers {waits}" if waits else f"{whose}forward waits for nothing")
    if trace is not None:
        print_line(f"trace written to {trace}; open it at https://ui.perfetto.dev, or say: autobyte explain {trace}")
