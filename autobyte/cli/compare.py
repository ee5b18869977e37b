"""`autobyte compare`: tuners on one job, side by side; with `--policies`, policies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from autobyte.cli.options import (
    AccumulationOption,
    ArchOption,
    BandwidthOption,
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
    make_job,
    make_scenario,
    make_space,
)
from autobyte.cli.workers import DaskOption, JobsOption

DEFAULTS = "default,p3,grid,random"


def compare(
    context: typer.Context,
    *,
    model: ModelOption = "",
    arch: ArchOption = "allreduce",
    workers: WorkersOption = 8,
    bandwidth: BandwidthOption = "10Gbit",
    tuners: Annotated[str, typer.Option("--tuners", help="tuners, separated by commas")] = DEFAULTS,
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies", help="compare these policies instead, each tuned: fifo,ddp,usbyte,usbyte:fusion=0,auto"
        ),
    ] = None,
    tune_with: Annotated[
        str, typer.Option("--tune-with", help="the tuner that tunes the policies of --policies")
    ] = "random",
    plugin: PluginOption = None,
    sweep: Annotated[
        Path | None,
        typer.Option(
            "--sweep", help="compare on many jobs: a TOML file of these options, every list of which is swept"
        ),
    ] = None,
    jobs: JobsOption = 0,
    dask: DaskOption = "",
    budget: Annotated[int, typer.Option("--budget", help="windows of 10 iterations that each tuner has")] = 30,
    policy: PolicyOption = "bytescheduler",
    knob: KnobOption = None,
    seeds: Annotated[int, typer.Option("--seeds", help="runs of each tuner, each with its own random seed")] = 5,
    slowdown: SlowdownOption = "1",
    latency: LatencyOption = "30us",
    overhead: OverheadOption = "500us,30us",
    gpus_per_node: GpusOption = 1,
    accumulation: AccumulationOption = 1,
    wire_dtype: WireOption = "",
    clip: ClipOption = False,
    scenario: ScenarioOption = None,
    jitter: Annotated[
        float,
        typer.Option(
            "--jitter", help="random variation of compute times (coefficient of variation); 0.09 is typical"
        ),
    ] = 0.0,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="folder for results, picture and trials; an unfinished comparison is continued"),
    ] = None,
    retune: Annotated[
        str,
        typer.Option("--retune", help="when tuners that search once search again: never, or on drift"),
    ] = "never",
    before: Annotated[
        str,
        typer.Option(
            "--before",
            help="which tuners may search before the scenario begins: once (those that search once) or all",
        ),
    ] = "once",
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            help="where optuna keeps its studies, so that you can watch them: a URL such as sqlite:///studies.db. "
            "An earlier study of the same name is replaced; to continue one, use --out or Optuna(study=)",
        ),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            help="what tuners search for and are scored by: throughput=0.7,latency=0.2,cost=0.1; default: speed",
        ),
    ] = "",
    json: JsonOption = False,
) -> None:
    """Compare tuners on one simulated job, or policies.

    Tuners search partition size and credit with the same budget, and are judged by step times that none of them sees.
    With --policies, each policy is tuned with the same budget. With --sweep, every combination of a file's lists is
    a comparison: `model = ["vgg16", "gpt2"]` and `bandwidth = ["1Gbit", "10Gbit"]` make four. The same command
    continues a sweep that was stopped.

    Example: autobyte compare --model vgg16 --arch ps --bandwidth 10Gbit --out out/vgg16
    """
    from autobyte.cli.console import print_json, print_line, progress
    from autobyte.cli.files import open_folder, write_outcome
    from autobyte.cli.policies import compare as compare_policies
    from autobyte.cli.sweep import sweep as run_sweep
    from autobyte.comparison.compare import compare as run
    from autobyte.errors import InputError, require
    from autobyte.registry import load_plugins
    from autobyte.results import DATABASE
    from autobyte.simulator.effects import Effects

    load_plugins(plugin or [])
    _check_given(context, sweep)
    if sweep is not None:
        run_sweep(sweep, out=out, jobs=jobs, dask=dask, plugins=plugin or [], json=json)
        return
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
    if policies is not None:
        theirs = {"--tuners": tuners != DEFAULTS, "--policy": policy != "bytescheduler", "--knob": bool(knob)}
        theirs |= {"--retune": retune != "never", "--before": before != "once", "--storage": storage is not None}
        theirs["--objective"] = bool(objective)
        if wrong := [option for option, value in theirs.items() if value]:
            raise InputError(f"--policies tunes every policy's own knobs, with --tune-with; leave {wrong[0]} out")
        if scenario is not None:
            raise InputError("--policies compares steady jobs; leave --scenario out")
        compare_policies(
            job, policies, tuner=tune_with, budget=budget, seeds=seeds, jitter=jitter, out=out, json=json
        )
        return
    if tune_with != "random":
        raise InputError("--tune-with is for --policies; add --policies, or leave --tune-with out")
    changing = {"--retune": retune != "never", "--before": before != "once"}
    if scenario is None and (wrong := [option for option, value in changing.items() if value]):
        raise InputError(f"{wrong[0]} is for jobs that change; add --scenario, or leave {wrong[0]} out")
    if out:
        require("matplotlib", extra="plot", what="the picture that --out writes")
    found = run(
        job,
        [name.strip() for name in tuners.split(",")],
        budget=budget,
        seeds=seeds,
        space=make_space(job, policy, knob),
        scenario=make_scenario(scenario),
        effects=Effects(jitter=jitter),
        retune=retune,
        before=before,
        storage=storage,
        objective=objective or None,
        results=open_folder(out) / DATABASE if out else None,
        progress=progress,
    )
    outcome = found.outcome
    if out:
        write_outcome(outcome, out)
    if json:
        print_json(outcome)
        return
    show(outcome)
    if out:
        print_line(f"written to {out}: compare.json, compare.png, results.sqlite; next: autobyte report {out}")


def _check_given(context: typer.Context, sweep: Path | None) -> None:
    """Refuse options that do not go together with a sweep, or without one.

    Raises:
        InputError: there is such an option, or neither a model nor a sweep.
    """
    from autobyte.errors import InputError

    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    if sweep is not None and (beside := sorted(given - {"sweep", "out", "jobs", "dask", "plugin", "json"})):
        option = beside[0].replace("_", "-")
        raise InputError(f"--sweep takes its jobs from {sweep}: write {beside[0]} = … there, not --{option}")
    if sweep is None and (alone := sorted(given & {"jobs", "dask"})):
        raise InputError(f"--{alone[0]} is for many jobs: add --sweep, or leave --{alone[0]} out")
    if sweep is None and "model" not in given:
        raise InputError("name a model with --model, or a file of many jobs with --sweep")


def show(outcome: dict[str, Any]) -> None:
    """Print the verdict as a table."""
    from autobyte.cli.console import print_line, print_note, print_table
    from autobyte.comparison.carried import say
    from autobyte.comparison.oracle import lack
    from autobyte.comparison.title import title
    from autobyte.config import Config
    from autobyte.units import format_percent, format_seconds

    refs, at_first = outcome["references"], " at first" if outcome["changes"] else ""
    print_line(
        f"{title(outcome)}\n"
        f"step{at_first}: bound {format_seconds(refs['bound_s'])}, "
        f"DDP at its best {format_seconds(refs['ddp_best_s'])}, nothing overlapping {format_seconds(refs['fifo_s'])}"
    )
    if outcome["changes"]:
        oracle = outcome["oracle"]
        print_note(f"whole run: oracle {oracle['samples_per_s']:,.1f} samples/s, {lack(oracle['gap'])}")
        if carried := outcome.get("carried"):
            print_note(say(carried))
    rows = []
    for tuner in outcome["tuners"]:
        spread = tuner["spread"]["samples_per_s"]
        rows.append(
            (
                tuner["name"],
                Config.from_json(tuner["config"]).label,
                f"{tuner['samples_per_s']:,.1f}",
                f"{(spread[1] - spread[0]) / 2:,.1f}",
                f"{tuner['speedup_over_fifo']:.2f}x",
                format_percent(tuner["gap_closed"]),
                format_percent(tuner["regret"]),
                f"{tuner['iterations']:.0f}",
                _cost(tuner["search_cost_s"]),
                f"{tuner['switches']:.0f}",
            )
        )
    for name in ("best_constant", "optimum"):
        place = dict(outcome[name])
        speed, regret = place.pop("samples_per_s"), place.pop("regret")
        label = Config.from_json(place).label
        rows.append(
            (
                name.replace("_", " ") + at_first,
                label,
                f"{speed:,.1f}",
                "",
                "",
                "",
                format_percent(regret),
                "",
                "",
                "",
            )
        )
    columns = (
        "tuner",
        "⟨S_p, S_c⟩",
        "samples/s",
        "±",
        "over fifo",
        "gap closed",
        "regret",
        "iterations",
        "cost",
        "switches",
    )
    print_table(columns, rows, spare=("±", "switches", "iterations", "cost", "over fifo"))
    print_note(" ".join(_notes(outcome)))
    if "objective" in outcome:
        _show_scores(outcome)


def _show_scores(outcome: dict[str, Any]) -> None:
    """Print how well the tuners did what was wished."""
    from autobyte.cli.console import print_line, print_note, print_table
    from autobyte.config import Config

    wish = outcome["objective"]
    print_line("scores by " + ", ".join(f"{name} {weight:g}" for name, weight in wish.items()))
    rows = [
        (
            tuner["name"],
            Config.from_json(tuner["config"]).label,
            *(f"{tuner[key]:.3f}" for key in ("score", *(f"reward_{name}" for name in wish))),
        )
        for tuner in [*outcome["tuners"], {"name": "the best"} | outcome["objective_best"]]
    ]
    print_table(("tuner", "⟨S_p, S_c⟩", "score", *wish), rows)
    print_note(
        "throughput: bound over step. latency: bound over itself and what the first quarter of the layers waits. "
        "cost: of the time of the search, what the last config would have taken. The best costs nothing to find."
    )


def _notes(outcome: dict[str, Any]) -> Iterator[str]:
    """What the table's numbers are."""
    from autobyte.comparison.title import count

    yield f"{count(outcome['seeds'], 'seed')}, {count(outcome['budget'], 'window')} of 10 iterations; medians."
    if outcome["changes"]:
        yield "samples/s: of the whole run; those of the last two rows hold before anything changes."
        yield "oracle: knows the truth, one window of 10 late. gap closed: from DDP to the bound, not to the oracle."
    if any(tuner["gap_closed"] is None for tuner in outcome["tuners"]):
        yield "gap closed –: DDP at its best is within 5 % of the bound."
    yield "⟨S_p, S_c⟩: left in force, the best seen. regret: what that loses against the optimum."
    yield "iterations: until it stays ≤ 3 %. cost: time lost while searching."
    costs = [(tuner["name"], tuner["before_cost_s"]) for tuner in outcome["tuners"]]
    if before := ", ".join(f"{name} {_cost(seconds)}" for name, seconds in costs if seconds is not None):
        yield f"Searching before the scenario cost besides: {before}."
    for tuner in outcome["tuners"]:
        if tuner["failed_runs"]:
            yield f"{tuner['name']} failed in {count(tuner['failed_runs'], 'run')}; the best so far went on."


def _cost(seconds: float) -> str:
    """Time lost, or won; what is less than a nanosecond is rounding."""
    from autobyte.units import format_seconds

    return "−" * (seconds <= -1e-9) + format_seconds(round(abs(seconds), 9))
