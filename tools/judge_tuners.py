"""Judge every tuner in worlds that none was made with, and keep what they did in docs/data. Simulated, or replayed.

    python tools/judge_tuners.py static        # 200 jobs in which nothing changes: judge_static.csv
    python tools/judge_tuners.py fresh         # 200 others, not looked at until tuners were done: judge_fresh.csv
    python tools/judge_tuners.py scenarios     # files of examples/scenarios, 20 seeds: judge_scenarios.csv
    python tools/judge_tuners.py before        # the same, after a budget before them for all: judge_before.csv
    python tools/judge_tuners.py replay        # grids recorded on the testbed, 20 seeds: judge_replay.csv
    python tools/judge_tuners.py decisions     # CPU time of the twin's: judge_decisions.measured.csv
    python tools/judge_tuners.py tables        # reads them, writes the tables of docs/tuners.md

A row is one tuner in one world, written as it comes: a run that was stopped goes on, and `--tuners` adds others
later. With `--dask ADDRESS`, a Dask cluster does the work; this folder must be on its workers' path. Worlds have
second-order effects of random size (`autobyte.comparison.worlds`) that no tuner is told.
"""

import argparse
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import judge_tables
import numpy as np
import pandas as pd

from autobyte import models
from autobyte.bench.grid import GridRow
from autobyte.bench.grid import read as read_grid
from autobyte.cli.options import make_job
from autobyte.cli.workers import workers
from autobyte.comparison.contest import Contest, Run, hold
from autobyte.comparison.judge import TOLERANCE, judge
from autobyte.comparison.oracle import ends, where_decided
from autobyte.comparison.replay import GridReplay, Recorded, nearest, space_of
from autobyte.comparison.truth import Truth
from autobyte.comparison.verdict import BANDWIDTHS
from autobyte.comparison.worlds import Drawn, draw
from autobyte.config import Config, Space
from autobyte.job import Cluster, Job
from autobyte.prediction import Simulated
from autobyte.results import Results
from autobyte.scenario import Scenario
from autobyte.simulator.calibrate import EngineCalibration
from autobyte.simulator.landscape import best_constant, contenders, least_s
from autobyte.simulator.steady import step_s
from autobyte.simulator.world import World
from autobyte.trace import Measurement
from autobyte.tuners import TUNERS
from autobyte.tuners.twin import Settings, Twin
from autobyte.tuners.twin.predictor import Scope
from autobyte.tuning import WARMUP, WINDOW, Decision, make_tuner, tune

ROOT = Path(__file__).parent.parent
DATA = ROOT / "docs" / "data"
SCENARIOS = ROOT / "examples" / "scenarios"
GRID, CALIBRATION = ROOT / "paper" / "data" / "testbed_grid.csv", ROOT / "paper" / "data" / "testbed_calibration.json"
ALL = "default,p3,random,bayesian-published,bayesian,optuna,optuna-gp,descent,twin,metanet,metanet-published"
DEFAULTS = {
    "static": ALL,
    "fresh": "default,bayesian,optuna,descent,twin,metanet",
    "replay": f"{ALL},grid",
    "scenarios": "default,bayesian-published,bayesian,bayesian@drift,optuna,descent,twin,metanet,metanet-published",
    "before": "optuna,descent,twin,metanet,metanet-published",
}
BUDGET = 30
EARLY = 3  # decisions after which the first verdict falls
HELD_OUT = 50_000  # no tuner was made with worlds of seeds from here on; docs/research says what was looked at
FRESH = 100  # static worlds of each kind from this number on: nobody had looked at them when the tuners were done
HOPELESS = 3.0  # times the best step: a config whose blocks alone take that long is counted at what they take

#: What the meta-network is fitted on, and what it never sees (`autobyte.nets.dataset`).
SEEN: dict[str, Any] = {
    "names": ("resnet50", "vgg16", "alexnet"),
    "gbit": (0.5, 1.0, 5.0, 10.0, 25.0),
    "workers": (2, 4, 8),
}
UNSEEN: dict[str, Any] = {
    "names": ("densenet121", "bert-base", "bert-large", "gpt2"),
    "gbit": (2.0, 3.0, 8.0, 20.0),
    "workers": (5, 10),
}
KINDS: dict[str, dict[str, Any]] = {
    "seen": SEEN,
    "unseen models": SEEN | {"names": UNSEEN["names"]},
    "unseen rates": SEEN | {"gbit": UNSEEN["gbit"]},
    "unseen workers": SEEN | {"workers": UNSEEN["workers"]},
    "all unseen": UNSEEN,
}

Row = dict[str, Any]
Task = tuple[Callable[..., list[Row]], tuple[Any, ...]]


def still(kind: str, seed: int, tuners: Sequence[str]) -> list[Row]:
    """Tuners in a world in which nothing changes."""
    drawn = _drawn(kind, seed)
    best_s = _best_s("judge_fresh" if seed >= FRESH else "judge_static", kind, seed, drawn)
    known: dict[Config, float] = {}

    def true_s(config: Config) -> float:
        if config not in known:
            at_least_s = least_s(drawn.job, config, effects=drawn.effects)
            hopeless = at_least_s > HOPELESS * best_s
            known[config] = at_least_s if hopeless else step_s(drawn.job, config, effects=drawn.effects)
        return known[config]

    constant, rows = _constant(drawn.job.cluster.architecture, drawn.job.cluster.workers), []
    for tuner in tuners:
        searching = make_tuner(tuner, Space(), job=drawn.job, seed=seed, budget=BUDGET)
        decisions = tune(searching, World(drawn.job, effects=drawn.effects, seed=seed), Space(), budget=BUDGET)
        verdict = _verdict(tuner, decisions, true_s, constant, Space().default, best_s)
        rows.append(_world(kind, seed, drawn.job) | verdict)
    return rows


def _drawn(kind: str, seed: int) -> Drawn:
    return draw(HELD_OUT + 1000 * list(KINDS).index(kind) + seed, **KINDS[kind])


def _world(kind: str, seed: int, job: Job) -> Row:
    cluster = job.cluster
    gbit = f"{cluster.up_bytes_per_s[-1] * 8e-9:.4g}"
    head = {"kind": kind, "seed": seed, "model": job.model.name, "architecture": cluster.architecture}
    return head | {"workers": cluster.workers, "gbit": gbit}


def _verdict(
    tuner: str,
    decisions: list[Decision],
    true_s: Callable[[Config], float],
    constant: Config,
    default: Config,
    best_s: float,
) -> Row:
    """True step times (s) of what a tuner chose, and of what it is compared with; what it spent."""
    early = decisions[min(EARLY, len(decisions)) - 1].config
    found_s = min(best_s, *(true_s(decision.config) for decision in decisions))
    search = judge(decisions, true_step_s=lambda c, _: true_s(c), best_step_s=lambda _: found_s)
    windows = [decision.measurement for decision in decisions]
    return {
        "tuner": tuner,
        "constant_s": true_s(constant),
        "best_s": found_s,
        "default_s": true_s(default),
        "early_s": true_s(early),
        "last_s": true_s(decisions[-1].config),
        "spent_s": float(sum(sum(window.step_s) for window in windows)),
        "noise": float(np.median([window.error for window in windows])),
        "iterations": search.iterations,
        "switches": search.switches,
        "cpu_s": sum(decision.cpu_s for decision in decisions),
        "failed": any(decision.failure for decision in decisions),
    }


def _best_s(name: str, kind: str, seed: int, drawn: Drawn) -> float:
    """The least true step time on the grid (s), as far as other tuners were judged by it already."""
    kept = _kept(name)
    if (kind, str(seed)) in kept.index:
        return float(kept.loc[kind, str(seed)])
    return contenders(drawn.job, Space().grid(), effects=drawn.effects).best_s


@cache
def _kept(name: str) -> pd.Series:
    """The least step that is kept of every kind and seed (s)."""
    rows = judge_tables.read(DATA / f"{name}.csv")
    return pd.Series(dtype=float) if rows.empty else rows.groupby(["kind", "seed"])["best_s"].min()


@cache
def _constant(architecture: str, workers: int) -> Config:
    """The best constant in hindsight, found once and kept in constants.csv."""
    path = DATA / "judge_constants.csv"
    kept = judge_tables.read(path)
    if not kept.empty:
        pairs = kept.set_index(["architecture", "workers"])
        if (architecture, workers) in pairs.index:
            pair = pairs.loc[architecture, workers]
            return Config(int(pair["partition_bytes"]), int(pair["credit_bytes"]))
    clusters = [Cluster.uniform(workers, rate, architecture=architecture) for rate in BANDWIDTHS]
    jobs = [Job(models.load(model), cluster) for model in models.names() for cluster in clusters]
    config = best_constant(jobs, Space().grid())[0]
    judge_tables.append(path, [{"architecture": architecture, "workers": workers} | config.to_json()])
    return config


def scenario(name: str, seed: int, tuners: Sequence[str], before: str = "once") -> list[Row]:
    """Tuners in a scenario with the job that its file names, its changes a little later, in a world with effects.

    A name that ends in `@drift` searches again after a change. Who searches once has a budget before it, or all have.
    """
    text = (SCENARIOS / f"{name}.toml").read_text()
    command = next(line for line in text.splitlines() if "autobyte compare" in line).split()
    given = dict(zip(command[3::2], command[4::2], strict=True))
    workers = int(given.get("--workers", 8))
    job = make_job(
        given["--model"],
        arch=given.get("--arch", "allreduce"),
        workers=workers,
        bandwidth=given.get("--bandwidth", "10Gbit"),
    )
    effects = draw(2 * HELD_OUT + seed).effects
    changes = Scenario.load(SCENARIOS / f"{name}.toml").shifted(int(np.random.default_rng([11, seed]).integers(10)))
    contest = Contest(job, ("default",), BUDGET, 1, Space(), changes, effects, before=before)
    runs = {each: _scenario_run(contest, each, seed) for each in tuners}
    constant = _constant(job.cluster.architecture, workers)
    tried = [d.config for run in runs.values() for d in (*run.before, *run.decisions)]
    truth = Truth(contest, [constant, *tried])
    between = ends(contest, truth, constant, seed)
    head = {"scenario": name, "seed": seed, "model": job.model.name, "architecture": job.cluster.architecture}
    head |= {"constant": between.constant, "oracle": between.oracle, "all_knowing": between.all_knowing}
    return [
        head | {"oracle_there": where_decided(contest, truth, run, between).oracle} | _scenario_row(each, run, truth)
        for each, run in runs.items()
    ]


def _scenario_run(contest: Contest, name: str, seed: int) -> Run:
    tuner, _, again = name.partition("@")
    one = replace(contest, tuners=(tuner,), retune=again or "never")
    with TemporaryDirectory() as folder, Results.open(Path(folder) / "r.sqlite", run=one.to_json()) as results:
        return hold(one, results, progress=lambda *_: None, seeds=[seed])[0]


def _scenario_row(name: str, run: Run, truth: Truth) -> Row:
    windows = [decision.measurement for decision in run.decisions]
    steps = [(w.iteration + k, s) for w in windows for k, s in enumerate(w.step_s)]
    spent_s = sum(seconds for _, seconds in steps)
    before_s = sum(s - truth.best_s(0) for d in run.before for s in d.measurement.step_s)
    return {
        "tuner": name,
        "samples_per_s": sum(truth.at(iteration).job.samples for iteration, _ in steps) / spent_s,
        "recovery": " ".join(str(each) for each in recoveries(windows, truth)),
        "before_cost_s": before_s,
        "best_s": truth.best_s(0),
        "spent_s": spent_s,
        "switches": sum(a.config != b.config for a, b in pairwise(windows)),
        "cpu_s": sum(decision.cpu_s for decision in run.decisions),
        "failed": any(decision.failure for decision in (*run.before, *run.decisions)),
    }


def recoveries(windows: Sequence[Measurement], truth: Truth) -> list[int]:
    """Iterations after each change that leaves a regret of over 3 %, until it is gone or the next change comes."""
    regret = [1 - truth.best_s(w.iteration + k) / truth.step_s(w.config, w.iteration + k)
              for w in windows for k in range(len(w.step_s))]  # fmt: skip
    changes = [i for i in range(1, len(regret)) if truth.at(i) is not truth.at(i - 1)]
    waits = []
    for at, until in zip(changes, [*changes[1:], len(regret)], strict=True):
        if regret[at] > TOLERANCE:
            waits.append(next((i - at for i in range(at, until) if regret[i] <= TOLERANCE), until - at))
    return waits


def replayed(cell: int, seed: int, tuners: Sequence[str]) -> list[Row]:
    """Tuners on a recorded grid; with odd seeds they search on the second recording and are judged by the first."""
    place, recordings = _cells()[cell]
    shown, judge_by = recordings[seed % len(recordings)], recordings[(seed + 1) % len(recordings)]
    job = place.cell.job(servers=place.engine == "ps", wire_dtype=None)
    costs = EngineCalibration.load(CALIBRATION).of(job)
    space = space_of(shown, Config(4_000_000, 16_000_000, knobs={"fusion": 1.0}))
    best = min(shown, key=lambda config: shown[config].step_s)
    constant = _recorded_constant(place.engine, seed)

    def true_s(config: Config) -> float:
        return judge_by[nearest(config, judge_by)].step_s

    rows = []
    for tuner in tuners:
        searching = make_tuner(tuner, space, job=job, seed=seed, budget=BUDGET)
        decisions = tune(searching, GridReplay(job, shown, costs=costs, seed=seed), space, budget=BUDGET)
        verdict = _verdict(tuner, decisions, true_s, constant, space.default, true_s(best))
        verdict |= {"best_s": true_s(best), "recordings": len(recordings), "grid": _grid()}
        rows.append(_world(_cell_name(place), seed, job) | verdict)
    return rows


@cache
def _grid() -> str:
    """Which recording it is."""
    return hashlib.sha256(GRID.read_bytes()).hexdigest()[:12]


def _cell_name(place: GridRow) -> str:
    return f"{place.cell.model} {place.cell.rate * 8e-6:g} Mbit/s {place.engine}"


@cache
def _cells() -> list[tuple[GridRow, list[dict[Config, Recorded]]]]:
    """What was recorded of every cell, one dictionary per recording."""
    cells: dict[Any, tuple[GridRow, dict[int, dict[Config, Recorded]]]] = {}
    for row in read_grid(GRID):
        if row.policy == "bytescheduler":
            _, by_number = cells.setdefault((row.cell, row.engine), (row, {}))
            by_number.setdefault(row.recording, {})[row.config] = Recorded(row.step_s, row.low_s, row.high_s)
    return [(row, [by_number[number] for number in sorted(by_number)]) for row, by_number in cells.values()]


@cache
def _recorded_constant(engine: str, seed: int) -> Config:
    """The one recorded config that is best on average over all cells of an engine."""
    shown = [recordings[seed % len(recordings)] for row, recordings in _cells() if row.engine == engine]
    shared = [config for config in shown[0] if all(config in other for other in shown)]
    best_s = [min(point.step_s for point in each.values()) for each in shown]
    parts = [[best / each[config].step_s for best, each in zip(best_s, shown, strict=True)] for config in shared]
    return shared[int(np.mean(parts, axis=1).argmax())]


def decided(kind: str, seed: int, ways: Sequence[str]) -> list[Row]:
    """CPU time of the twin's decisions over 304 candidates, pruned and exhaustive, and where they lead."""
    drawn = _drawn(kind, seed)
    best_s, rows = _best_s("judge_static", kind, seed, drawn), []
    for way in ways:
        predictor = Simulated(drawn.job)
        settings = Settings(scope=Scope.ALL if way == "exhaustive" else Scope.PROMISING)
        twin = Twin(Space(), model=drawn.job.model, predictor=predictor, settings=settings)
        world, config, seconds = World(drawn.job, effects=drawn.effects, seed=seed), Space().default, []
        for _ in range(EARLY):
            measurement = world.measure(config, iterations=WINDOW, warmup=WARMUP)
            began = time.thread_time()
            twin.tell(measurement)
            config = twin.ask() or config
            seconds.append(time.thread_time() - began)
        early_s = step_s(drawn.job, config, effects=drawn.effects)
        first, *more = seconds
        row = {"tuner": way, "first_s": first, "decision_s": max(more), "early_s": early_s}
        rows.append(_world(kind, seed, drawn.job) | row | {"best_s": min(best_s, early_s)})
    return rows


def run(path: Path, tasks: Sequence[Task], jobs: int, dask: str) -> None:
    """Do what the file does not hold yet, in processes or on a Dask cluster; rows are written as they come."""
    with workers(jobs, dask) as (submit, completed):
        waiting = {submit(work, *arguments): arguments for work, arguments in tasks}
        for number, future in enumerate(completed(list(waiting)), 1):
            judge_tables.append(path, future.result())
            print(f"{number}/{len(tasks)} {' '.join(map(str, waiting.pop(future)))}", flush=True)


def _tasks(what: str, tuners: Sequence[str], seeds: int, there: set[tuple[str, ...]]) -> Iterator[Task]:
    """What is missing, seed by seed: a run that is stopped early has something of everything."""
    works: dict[str, Callable[..., list[Row]]] = {
        "static": still, "fresh": still, "decisions": decided,
        "scenarios": scenario, "before": partial(scenario, before="all"),
    }  # fmt: skip
    files = sorted(path for path in SCENARIOS.glob("*.toml") if "autobyte compare" in path.read_text())
    places: dict[str, Any] = {path.stem: path.stem for path in files}
    if what == "replay":
        places = {_cell_name(place): number for number, (place, _) in enumerate(_cells())}
    elif what not in ("scenarios", "before"):
        places = {kind: kind for kind in KINDS}
    first = FRESH if what == "fresh" else 0
    for seed in range(first, first + seeds):
        for name, place in places.items():
            missing = [tuner for tuner in tuners if (name, str(seed), tuner) not in there]
            if missing:
                yield works.get(what, replayed), (place, seed, missing)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["static", "fresh", "scenarios", "before", "replay", "decisions", "tables"])
    parser.add_argument("--tuners", default="", help="names, with commas between")
    parser.add_argument("--seeds", type=int, default=0, help="40 of each kind of static worlds, 20 elsewhere")
    parser.add_argument("--jobs", type=int, default=0, help="worker processes; 0: one per core")
    parser.add_argument("--dask", default="", metavar="ADDRESS", help="use this Dask scheduler instead")
    parser.add_argument("--out", type=Path, default=DATA, help="where rows are kept (default: docs/data)")
    given = parser.parse_args()
    if given.what == "tables":
        judge_tables.write(ROOT / "docs" / "tuners.md", DATA)
        return
    wanted = given.tuners or ("pruned,exhaustive" if given.what == "decisions" else DEFAULTS[given.what])
    tuners, known = wanted.split(","), set(TUNERS.names())
    if given.what == "decisions":
        known = {"pruned", "exhaustive"}
    elif given.what in ("scenarios", "before"):
        known |= {f"{name}@drift" for name in known}
    if strange := set(tuners) - known:
        parser.error(f"no such tuner: {', '.join(sorted(strange))} (known: {', '.join(sorted(known))})")
    path = given.out / (f"judge_{given.what}" + (".measured" * (given.what == "decisions")) + ".csv")
    place = "scenario" if given.what in ("scenarios", "before") else "kind"
    kept = judge_tables.read(path).reindex(columns=[place, "seed", "tuner", "grid"])
    there = set(kept[[place, "seed", "tuner"]].itertuples(index=False, name=None))
    if given.what == "replay" and (kept["grid"] != _grid()).any():
        parser.error(f"{path} holds rows of another recording than {GRID}: remove it")
    if given.what in ("static", "fresh", "scenarios", "before"):
        for architecture, workers in product(("allreduce", "ps"), (2, 4, 8, 5, 10)):
            _constant(architecture, workers)  # before there are several processes
    seeds = given.seeds or (40 if given.what in ("static", "fresh") else 20)
    run(path, list(_tasks(given.what, tuners, seeds, there)), given.jobs, given.dask)


if __name__ == "__main__":
    import judge_tuners  # workers elsewhere find its functions by this name

    judge_tuners.main()
