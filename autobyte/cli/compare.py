"""`autobyte compare`: tuners on one job, side by side; with `--policies`, policies."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autobyte.cli.options import (
    AccumulationOption,
    ArchOption,
    BandwidthOption,
    GpusOption,
    JsonOption,
    KnobOption,
    LatencyOption,
    ModelOption,
    OverheadOption,
    PolicyOption,
    ScenarioOption,
    SlowdownOption,
    WireOption,
    WorkersOption,
    make_job,
    make_scenario,
    make_space,
)

if TYPE_CHECKING:
    from autobyte.comparison.contest import Contest

DEFAULTS = "default,p3,grid,random"


def compare(
    *,
    model: ModelOption,
    arch: ArchOption = "allreduce",
    workers: WorkersOption = 8,
    bandwidth: BandwidthOption = "10Gbit",
    tuners: Annotated[str, typer.Option("--tuners", help="names, with commas between")] = DEFAULTS,
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies", help="compare policies instead, each tuned: fifo,wfbp,ddp,usbyte,usbyte:fusion=0,auto"
        ),
    ] = None,
    tune_with: Annotated[
        str, typer.Option("--tune-with", help="the tuner that tunes every policy of --policies")
    ] = "random",
    plugin: Annotated[
        list[Path] | None,
        typer.Option("--plugin", help="a Python file that registers tuners of your own"),
    ] = None,
    budget: Annotated[int, typer.Option("--budget", help="windows of 10 iterations for each tuner")] = 30,
    policy: PolicyOption = "bytescheduler",
    knob: KnobOption = None,
    seeds: Annotated[int, typer.Option("--seeds", help="runs of each tuner")] = 5,
    slowdown: SlowdownOption = "1",
    latency: LatencyOption = "30us",
    overhead: OverheadOption = "500us,30us",
    gpus_per_node: GpusOption = 1,
    accumulation: AccumulationOption = 1,
    wire_dtype: WireOption = "",
    scenario: ScenarioOption = None,
    jitter: Annotated[
        float, typer.Option("--jitter", help="coefficient of variation of compute times; 0.09 is a typical job")
    ] = 0.0,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="folder for compare.json, compare.png and the trials; goes on if begun"),
    ] = None,
    retune: Annotated[
        str,
        typer.Option("--retune", help="never, or on drift: tuners that search once do so before a scenario begins"),
    ] = "never",
    before: Annotated[
        str,
        typer.Option("--before", help="who has the budget before a scenario begins: those that search once, or all"),
    ] = "once",
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            help="a URL such as sqlite:///studies.db, where optuna keeps its studies to be watched; an earlier study "
            "of the same name there is replaced (--out goes on with a comparison, Optuna(study=) with a study)",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare tuners on one job, or policies.

    They search ⟨partition, credit⟩ under equal conditions, and are judged by a truth that none of them sees. With
    --policies every policy's own knobs are tuned with the same budget.

    Example: autobyte compare --model vgg16 --arch ps --bandwidth 10Gbit --out out/vgg16
    """
    from autobyte.cli.console import print_json, print_line
    from autobyte.cli.plugins import load_plugins
    from autobyte.cli.policies import compare as compare_policies
    from autobyte.comparison.contest import Contest
    from autobyte.errors import InputError, require
    from autobyte.simulator.effects import Effects

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
    )
    if policies is not None:
        theirs = {"--tuners": tuners != DEFAULTS, "--policy": policy != "bytescheduler", "--knob": bool(knob)}
        theirs |= {"--retune": retune != "never", "--before": before != "once", "--storage": storage is not None}
        if said := [option for option, value in theirs.items() if value]:
            raise InputError(f"--policies tunes every policy's own knobs, with --tune-with; leave {said[0]} out")
        if scenario is not None:
            raise InputError("--policies compares steady jobs; leave --scenario out")
        compare_policies(
            job, policies, tuner=tune_with, budget=budget, seeds=seeds, jitter=jitter, out=out, json=json
        )
        return
    changing = {"--retune": retune != "never", "--before": before != "once"}
    if scenario is None and (said := [option for option, value in changing.items() if value]):
        raise InputError(f"{said[0]} is for jobs that change; add --scenario, or leave {said[0]} out")
    contest = Contest(
        job,
        tuple(name.strip() for name in tuners.split(",")),
        budget,
        seeds,
        make_space(job, policy, knob),
        make_scenario(scenario),
        Effects(jitter=jitter),
        retune=retune,
        before=before,
        storage=storage,
    )
    if out:
        require("matplotlib", extra="plot", what="the picture that --out writes")
    with TemporaryDirectory() as nowhere:
        folder = open_folder(out) if out else Path(nowhere)
        outcome = run(contest, folder, draw=out is not None)
    if json:
        print_json(outcome)
        return
    show(outcome)
    if out:
        print_line(f"written to {out}: compare.json, compare.png, results.sqlite; next: autobyte report {out}")


def open_folder(folder: Path) -> Path:
    """Make the folder, or take one that a comparison has begun in.

    Raises:
        FileError: it holds something else, or cannot be made.
    """
    from autobyte.errors import FileError
    from autobyte.results import DATABASE

    try:
        folder.mkdir(parents=True, exist_ok=True)
        strange = sorted(file.name for file in folder.iterdir() if not (folder / DATABASE).exists())
    except OSError as error:
        raise FileError(f"cannot use {folder}: {error.strerror}") from None
    if strange:
        raise FileError(f"{folder} holds something else ({strange[0]}); choose another folder")
    return folder


def run(contest: "Contest", folder: Path, *, draw: bool) -> dict[str, Any]:
    """Hold a contest, keep its trials in the folder, and judge it; with `draw`, write the verdict and its picture."""
    from autobyte.cli.console import progress
    from autobyte.comparison.contest import hold
    from autobyte.comparison.verdict import verdict
    from autobyte.models import load, names
    from autobyte.results import DATABASE, Results

    runs = len(contest.tuners) * contest.seeds
    with Results.open(folder / DATABASE, run=contest.to_json()) as results, progress("comparing") as step:

        def window(tuner: str, seed: int, number: int) -> None:
            done = contest.tuners.index(tuner) * contest.seeds + seed
            step(done * contest.budget + number, runs * contest.budget, f"{tuner}, seed {seed}")

        held = hold(contest, results, progress=window)
    with progress("judging") as step:
        outcome = verdict(contest, held, [load(name) for name in names()], progress=step)
    if draw:
        from autobyte.comparison.plot import draw_comparison

        write_json(folder / "compare.json", outcome)
        draw_comparison(outcome, folder / "compare.png")
    return outcome


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a file of ours, whole or not at all; no other file is touched."""
    import json
    from tempfile import NamedTemporaryFile

    from autobyte.errors import FileError

    draft = None
    try:
        with NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
        ) as file:
            draft = Path(file.name)
            file.write(json.dumps(data, indent=1) + "\n")
        draft.chmod(0o644)  # a draft is made readable for its owner alone
        draft.replace(path)
    except OSError as error:
        if draft is not None:
            draft.unlink(missing_ok=True)
        raise FileError(f"cannot write {path}: {error.strerror}") from None


def show(outcome: dict[str, Any]) -> None:
    """Print the verdict as a table."""
    from autobyte.cli.console import percent, print_line, print_note, print_table
    from autobyte.comparison.oracle import lack
    from autobyte.comparison.title import title
    from autobyte.config import Config
    from autobyte.units import format_seconds

    refs, at_first = outcome["references"], " at first" if outcome["changes"] else ""
    print_line(
        f"{title(outcome)}\n"
        f"step{at_first}: bound {format_seconds(refs['bound_s'])}, "
        f"DDP at its best {format_seconds(refs['ddp_best_s'])}, nothing overlapping {format_seconds(refs['fifo_s'])}"
    )
    if outcome["changes"]:
        oracle = outcome["oracle"]
        print_note(f"whole run: oracle {oracle['samples_per_s']:,.1f} samples/s, {lack(oracle['gap'])}")
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
                percent(tuner["gap_closed"]),
                percent(tuner["regret"]),
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
            (name.replace("_", " ") + at_first, label, f"{speed:,.1f}", "", "", "", percent(regret), "", "", "")
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
