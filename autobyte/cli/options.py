"""Options that several commands share, and the job, config and scenario that they stand for."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autobyte.units import parse_bytes, parse_credit, parse_rate, parse_seconds

if TYPE_CHECKING:
    from autobyte.config import Config, Space
    from autobyte.job import Job
    from autobyte.scenario import Scenario
    from autobyte.simulator.effects import Effects

ModelOption = Annotated[
    str, typer.Option("--model", help="a built-in model (see `autobyte models`) or a profile.json")
]
ArchOption = Annotated[
    str, typer.Option("--arch", help="allreduce (a ring), or ps (parameter servers on the workers' hosts)")
]
WorkersOption = Annotated[int, typer.Option("--workers", help="number of workers")]
BandwidthOption = Annotated[
    str,
    typer.Option("--bandwidth", help="payload rate of the links: 10Gbit for all, or 10Gbit,3Gbit,… for each worker"),
]
SlowdownOption = Annotated[
    str, typer.Option("--slowdown", help="factor on compute times: one number for all workers, or one for each")
]
LatencyOption = Annotated[str, typer.Option("--latency", help="latency of a link, one way, per hop")]
GpusOption = Annotated[
    int, typer.Option("--gpus-per-node", help="workers that share a host; all-reduce then has two levels")
]
OverheadOption = Annotated[
    str, typer.Option("--overhead", help="time that a block occupies a link besides its bytes: per block, per hop")
]
AccumulationOption = Annotated[int, typer.Option("--accumulation", help="backward passes per step")]
WireOption = Annotated[
    str, typer.Option("--wire-dtype", help="send gradients as float16, bfloat16, …; default: unchanged")
]
ClipOption = Annotated[
    bool, typer.Option("--clip", help="gradients are clipped by their norm, by optimizer.clip_grad_norm_()")
]
PolicyOption = Annotated[
    str, typer.Option("--policy", help="how gradients are cut and ordered: fifo, wfbp, ddp, bytescheduler, usbyte, …")
]
KnobOption = Annotated[
    list[str] | None,
    typer.Option("--knob", help="a setting that only this policy has, such as fusion=1 for bytescheduler"),
]
PluginOption = Annotated[
    list[Path] | None,
    typer.Option("--plugin", help="a Python file that registers your own tuners or policies; may be repeated"),
]
ScenarioOption = Annotated[
    Path | None, typer.Option("--scenario", help="a TOML file with changes of links and workers during training")
]
CalibrationOption = Annotated[
    Path | None,
    typer.Option("--calibration", help="a file from `autobyte calibrate`; it replaces --latency and --overhead"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON object instead of tables")]

MOST_WORKERS, MOST_BLOCKS = 1_000_000, 20_000_000  # beyond, memory runs out before an answer comes


def make_job(
    model: str,
    *,
    arch: str,
    workers: int,
    bandwidth: str,
    slowdown: str = "1",
    latency: str = "30us",
    overhead: str = "500us,30us",
    accumulation: int = 1,
    wire_dtype: str = "",
    gpus_per_node: int = 1,
    clip: bool = False,
) -> "Job":
    """The job that options describe.

    Raises:
        InputError: an option that cannot be read, or a job that cannot be.
    """
    from autobyte.bound import bound_s
    from autobyte.errors import InputError
    from autobyte.job import Cluster, Job
    from autobyte.models import find

    holds = [parse_seconds(part, what="overhead") for part in overhead.split(",")]
    if len(holds) != 2:
        raise InputError(f"overhead is two times, per block and per hop, like 500us,30us; got '{overhead}'")
    rates = tuple(parse_rate(part) for part in bandwidth.split(","))
    if workers > MOST_WORKERS:
        raise InputError(f"workers must be at most {MOST_WORKERS:,}, got {workers:,}")
    if len(rates) not in (1, workers):
        raise InputError(f"bandwidth needs one rate, or one for each of {workers} workers, got {len(rates)}")
    try:
        factors = tuple(float(part) for part in slowdown.split(","))
    except ValueError:
        raise InputError(f"cannot read slowdown '{slowdown}'; write it like 1.5 or 1,1,2,1") from None
    plain = Cluster.uniform(workers, rates[0], architecture=arch)
    cluster = Cluster(
        workers,
        plain.servers,
        rates,
        rates,
        factors,
        parse_seconds(latency, what="latency"),
        (holds[0], holds[1]),
        gpus_per_node,
    )
    job = Job(find(model), cluster, accumulation, wire_dtype or None, clips=clip)
    if bound_s(job) == 0:
        raise InputError(f"a step of '{job.model.name}' takes no time: nothing computes, and nothing travels")
    return job


def calibrated(job: "Job", path: Path | None) -> "tuple[Job, Effects]":
    """A job with the costs of a calibration file, and the effects that go with it; as it is without one."""
    from autobyte.simulator.effects import PLAIN

    if path is None:
        return job, PLAIN
    from autobyte.simulator.calibrate import EngineCalibration

    costs = EngineCalibration.load(path).of(job)
    return costs.price(job), costs.effects


def make_config(
    job: "Job", policy: str, partition: str | None, credit: str | None, knobs: list[str] | None = None
) -> "Config":
    """A policy's own default, with what was given put in its place.

    Raises:
        InputError: a value that cannot be read, one that the policy does not have, or a partition that cuts the model
            into too many blocks.
    """
    from autobyte.config import Config
    from autobyte.errors import InputError
    from autobyte.scheduler.policies import POLICIES, space_of

    _check_simulated(policy)
    default = space_of(policy, job).default
    for name, given in (("partition", partition), ("credit", credit)):
        if given is not None and name not in POLICIES[policy].sizes:
            raise InputError(f"policy '{policy}' has no {name}: leave --{name} out")
    size = default.partition_bytes if partition is None else parse_bytes(partition, what="partition")
    if job.gradients.total_bytes > MOST_BLOCKS * size:
        blocks = job.gradients.total_bytes // size
        raise InputError(f"partition {partition} makes {blocks:,} blocks; at most {MOST_BLOCKS:,}, so make it larger")
    ratio = default.credit_bytes / default.partition_bytes
    window = max(1, round(size * ratio)) if credit is None else parse_credit(credit, size)
    return Config(size, window, policy, dict(default.knobs) | _knobs(knobs or []))


def make_space(job: "Job", policy: str, knobs: list[str] | None = None) -> "Space":
    """What a policy lets tuners search, its other knobs being as given."""
    from dataclasses import replace

    from autobyte.scheduler.policies import make_plan, space_of

    _check_simulated(policy)
    space = space_of(policy, job)
    space = replace(space, default=replace(space.default, knobs=dict(space.default.knobs) | _knobs(knobs or [])))
    make_plan(job, space.default)  # an unknown knob is told at once
    return space


def _check_simulated(policy: str) -> None:
    """Refuse `auto`, which is no policy of its own: it measures others.

    Raises:
        InputError: it is.
    """
    from autobyte.errors import InputError

    if policy == "auto":
        raise InputError(
            "policy 'auto' chooses among the others: name one of them, or say `autobyte compare --policies auto,ddp`"
        )


def make_scenario(path: Path | None) -> "Scenario":
    """A scenario file's content; without one, nothing changes."""
    from autobyte.scenario import STEADY, Scenario

    return STEADY if path is None else Scenario.load(path)


def _knobs(texts: list[str]) -> dict[str, float]:
    from autobyte.errors import InputError

    knobs = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            knobs[name] = float(value)
        except ValueError:
            raise InputError(f"cannot read knob '{text}'; write it like fusion=1") from None
    return knobs
