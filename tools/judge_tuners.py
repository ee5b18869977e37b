"""Judge every tuner in random worlds and in scenarios, and write what docs/tuners.md shows. Simulated.

    python tools/judge_tuners.py static --worlds 60        # docs/tuners-static.csv, about 25 minutes on one core
    python tools/judge_tuners.py scenarios --seeds 20      # docs/tuners-scenarios.csv, about 60 minutes
    python tools/judge_tuners.py safety --worlds 200       # docs/tuners-safety.csv, about 20 minutes
    python tools/judge_tuners.py tables                    # reads them, prints the tables

Worlds have second-order effects that no tuner's model contains (`autobyte.comparison.worlds`). Rows are written as
they come, and a run goes on where it was stopped.
"""

import argparse
import csv
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from autobyte import models
from autobyte.cli.options import make_job
from autobyte.comparison.contest import Contest, Run, hold
from autobyte.comparison.oracle import COUNTS, ends
from autobyte.comparison.verdict import Truth, hindsight, score
from autobyte.comparison.worlds import draw
from autobyte.config import Space
from autobyte.results import Results
from autobyte.scenario import Scenario

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SCENARIOS = ROOT / "examples" / "scenarios"
TUNERS = "default,random,bayesian-published,bayesian,optuna,descent,twin"
BUDGET = 30
EARLY = 3  # decisions after which the first verdict falls

Row = dict[str, Any]


def static(seed: int, tuners: list[str], budget: int) -> Iterator[Row]:
    """One world in which nothing changes."""
    drawn = draw(seed)
    contest = Contest(drawn.job, tuple(tuners), budget, 1, Space(), effects=drawn.effects)
    yield from _rows(contest, f"world {seed}", seed)


def scenario(name: str, seed: int, tuners: list[str], budget: int) -> Iterator[Row]:
    """A scenario file with the job that it names, in a world with effects, its changes up to a window later."""
    path = SCENARIOS / f"{name}.toml"
    command = next(line for line in path.read_text().splitlines() if "autobyte compare" in line).split()
    given = dict(zip(command[3::2], command[4::2], strict=True))
    job = make_job(given["--model"], arch=given.get("--arch", "allreduce"), workers=8, bandwidth=given["--bandwidth"])
    if name.startswith("workers-added"):
        job = make_job(given["--model"], arch="allreduce", workers=4, bandwidth=given["--bandwidth"])
    effects = draw(1000 + seed).effects
    changes = Scenario.load(path).shifted(int(np.random.default_rng([11, seed]).integers(10)))
    yield from _rows(Contest(job, tuple(tuners), budget, 1, Space(), changes, effects), name, seed)


def _rows(contest: Contest, name: str, seed: int) -> Iterator[Row]:
    with TemporaryDirectory() as folder, Results.open(Path(folder) / "r.sqlite", run=contest.to_json()) as results:
        runs = hold(contest, results, progress=lambda *_: None)
    constant = hindsight(contest, [models.load(model) for model in models.names()], progress=lambda *_: None)
    tried = [d for run in runs for d in (*run.before, *run.decisions)]
    truth = Truth(contest, [constant, *(config for d in tried for config in (d.measurement.config, d.config))])
    between = ends(contest, truth, constant, 0)
    for run in runs:
        yield _row(contest, run, truth, between, name, seed)


def _row(contest: Contest, run: Run, truth: Truth, between: Any, name: str, seed: int) -> Row:
    judged = score(contest, run, truth, between)
    early = min(EARLY, len(judged.search.regret)) - 1
    default = contest.space.default
    last = contest.budget * 10 - 1
    return {
        "world": name,
        "seed": seed,
        "model": contest.job.model.name,
        "architecture": contest.job.cluster.architecture,
        "workers": contest.job.cluster.workers,
        "tuner": run.tuner,
        "gap": between.gap,
        "constant": between.constant,
        "oracle": between.oracle,
        "all_knowing": between.all_knowing,
        "samples_per_s": judged.samples_per_s,
        "regret_early": judged.search.regret[early],
        "regret_last": judged.search.regret[-1],
        "regret_default": 1 - truth.best_s(last) / truth.step_s(default, last),
        "iterations": judged.search.iterations,
        "search_cost_s": judged.search.cost_s,
        "before_cost_s": judged.before_cost_s,
        "best_step_s": truth.best_s(0),
        "switches": judged.search.switches,
        "cpu_s": judged.tuner_cpu_s,
        "failed": any(decision.failure for decision in run.decisions),
    }


def collect(path: Path, jobs: list[tuple[str, int, Callable[[], Iterator[Row]]]]) -> None:
    """Run what the file does not hold yet, row by row."""
    done = {(row["world"], row["seed"], row["tuner"]) for row in read(path)} if path.exists() else set()
    worlds = {(world, seed) for world, seed, _ in done}
    for number, (world, seed, make) in enumerate(jobs):
        if (world, str(seed)) in worlds:
            continue
        rows = list(make())
        fresh = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
        print(f"{number + 1}/{len(jobs)} {world}, seed {seed}", flush=True)


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def tables() -> None:
    """Print what docs/tuners.md shows."""
    for name, show in (("static", _static_table), ("scenarios", _scenario_table), ("safety", _safety_table)):
        path = DOCS / f"tuners-{name}.csv"
        if path.exists():
            show(read(path))


def _static_table(rows: list[dict[str, str]]) -> None:
    names = list(dict.fromkeys(row["tuner"] for row in rows))
    worlds = {row["world"] for row in rows}
    counting = {row["world"] for row in rows if float(row["gap"]) >= COUNTS}
    print(f"\n{len(worlds)} worlds; {len(counting)} count for gaps: there the best constant lacks 5 % or more.\n")
    print("| tuner | gap closed after 3 | at the end | regret after 3 | at the end | search cost, steps | CPU, s |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        mine = [row for row in rows if row["tuner"] == name]
        few = [row for row in mine if row["world"] in counting]
        early = [1 - float(row["regret_early"]) / float(row["gap"]) for row in few]
        late = [1 - float(row["regret_last"]) / float(row["gap"]) for row in few]
        cost = [float(row["search_cost_s"]) / float(row["best_step_s"]) for row in mine]
        regrets = [_percent([float(row[key]) for row in mine]) for key in ("regret_early", "regret_last")]
        cpu = f"{np.median([float(row['cpu_s']) for row in mine]):.2f}"
        print(f"| {name} | " + " | ".join([_percent(early), _percent(late), *regrets, _middle(cost), cpu]) + " |")


def _scenario_table(rows: list[dict[str, str]]) -> None:
    names = list(dict.fromkeys(row["tuner"] for row in rows))
    print("\nShare of the gap closed from `bayesian`, tuned once before the start, to the oracle; medians.\n")
    print("| scenario | gap of the constant | gap of `bayesian` | " + " | ".join(names) + " | all-knowing |")
    print("|---|---|---|" + "---|" * (len(names) + 1))
    for world in dict.fromkeys(row["world"] for row in rows):
        here = [row for row in rows if row["world"] == world]
        once = {row["seed"]: float(row["samples_per_s"]) for row in here if row["tuner"] == "bayesian"}
        gaps = [1 - once[row["seed"]] / float(row["oracle"]) for row in here if row["tuner"] == "bayesian"]
        cells = []
        for name in names:
            mine = [row for row in here if row["tuner"] == name]
            cells.append(_percent([_closed(float(row["samples_per_s"]), once[row["seed"]], row) for row in mine]))
        knowing = [
            _closed(float(row["all_knowing"]), once[row["seed"]], row) for row in here if row["tuner"] == names[0]
        ]
        constant = np.median([float(row["gap"]) for row in here])
        line = f"| {world} | {100 * constant:.1f} % | {100 * np.median(gaps):.1f} % | "
        print(line + " | ".join([*cells, _percent(knowing)]) + " |")


def _closed(speed: float, once: float, row: dict[str, str]) -> float:
    return (speed - once) / (float(row["oracle"]) - once)


def _safety_table(rows: list[dict[str, str]]) -> None:
    print("\nJobs that end slower than under the default, of all.\n")
    print("| tuner | by over 1 % | by over 3 % | at worst |")
    print("|---|---|---|---|")
    for name in dict.fromkeys(row["tuner"] for row in rows):
        mine = [row for row in rows if row["tuner"] == name]
        worse = np.array([float(row["regret_last"]) - float(row["regret_default"]) for row in mine])
        counts = f"{(worse > 0.01).sum()} of {len(mine)} | {(worse > 0.03).sum()}"
        print(f"| {name} | {counts} | {100 * worse.max():.1f} % |")


def _percent(values: list[float]) -> str:
    low, middle, high = 100 * np.quantile(values, [0.1, 0.5, 0.9])
    return f"{middle:.1f} ({low:.0f} … {high:.0f}) %"


def _middle(values: list[float]) -> str:
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
    return f"{middle:.0f} ({low:.0f} … {high:.0f})"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["static", "scenarios", "safety", "tables"])
    parser.add_argument("--worlds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--budget", type=int, default=BUDGET)
    parser.add_argument("--tuners", default=TUNERS)
    parser.add_argument("--out", type=Path, default=DOCS)
    given = parser.parse_args()
    tuners, path = given.tuners.split(","), given.out / f"tuners-{given.what}.csv"
    if given.what == "tables":
        tables()
    elif given.what == "scenarios":
        names = sorted(file.stem for file in SCENARIOS.glob("*.toml") if "autobyte compare" in file.read_text())
        for file in names:
            tomllib.loads((SCENARIOS / f"{file}.toml").read_text())
        jobs = [
            (name, seed, lambda name=name, seed=seed: scenario(name, seed, tuners, given.budget))
            for seed in range(given.seeds)
            for name in names
        ]
        collect(path, jobs)
    else:
        first = 10_000 if given.what == "safety" else 0
        seeds = range(first, first + given.worlds)
        jobs = [(f"world {seed}", seed, lambda seed=seed: static(seed, tuners, given.budget)) for seed in seeds]
        collect(path, jobs)


if __name__ == "__main__":
    main()
