"""The verdict: every run judged by the noise-free truth; medians over seeds, with their spreads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autobyte.bound import gap_closed
from autobyte.comparison.carried import largest
from autobyte.comparison.contest import Contest, Run
from autobyte.comparison.judge import Judgement, judge
from autobyte.comparison.oracle import Ends, ends, where_decided
from autobyte.comparison.outcome import KIND, SCHEMA
from autobyte.comparison.truth import SteadyTruth, Truth
from autobyte.config import Config
from autobyte.job import Cluster, Job, Model
from autobyte.simulator.landscape import best_constant
from autobyte.tuning import WINDOW

#: Payload rates of the jobs that the best constant is chosen for (bytes/s).
BANDWIDTHS = tuple(gbit * 1.25e8 for gbit in (1, 3, 10, 25))
SPREAD = (10, 90)  # percentiles


@dataclass(frozen=True)
class Score:
    """How well one run did.

    Without a scenario, speeds are of the config left in force, steady and noise-free; with one, of the whole run.
    """

    run: Run
    config: Config
    samples_per_s: float
    speedup_over_fifo: float
    gap_closed: float | None
    search: Judgement
    tuner_cpu_s: float
    ends: Ends
    before_cost_s: float  # of a search before the run


def score(contest: Contest, run: Run, truth: Truth, between: Ends) -> Score:
    """Judge one run between the best constant and the oracle."""
    search = judge(list(run.decisions), true_step_s=truth.step_s, best_step_s=truth.best_s)
    config = run.decisions[-1].config
    if contest.scenario.changes:
        steps = [(w.iteration + k, s) for w in (d.measurement for d in run.decisions) for k, s in enumerate(w.step_s)]
    else:
        steps = [(0, truth.step_s(config, 0))]
    total_s = sum(seconds for _, seconds in steps)
    states = [truth.at(iteration) for iteration, _ in steps]
    reference_s, lower_s = sum(state.reference_s for state in states), sum(state.bound_s for state in states)
    return Score(
        run=run,
        config=config,
        samples_per_s=sum(state.job.samples for state in states) / total_s,
        speedup_over_fifo=sum(state.fifo_s for state in states) / total_s,
        gap_closed=gap_closed(total_s, reference_s, lower_s),
        search=search,
        tuner_cpu_s=sum(decision.cpu_s for decision in run.decisions),
        ends=between,
        before_cost_s=sum(s - truth.best_s(0) for d in run.before for s in d.measurement.step_s),
    )


def verdict(
    contest: Contest,
    runs: Sequence[Run],
    models: Sequence[Model],
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Judge a contest.

    Args:
        contest: what was run.
        runs: all of them.
        models: those that the best constant is chosen for, at four bandwidths each.
        progress: called with how many of their jobs are surveyed, and how many there are.

    Returns:
        plain JSON, as `outcome` describes it. Everything but `tuner_cpu_s` follows from the seeds.
    """
    constant = hindsight(contest, models, progress=progress)
    tried = [d for run in runs for d in (*run.before, *run.decisions)]
    truth = Truth(contest, [constant, *(config for d in tried for config in (d.measurement.config, d.config))])
    between = {seed: ends(contest, truth, constant, seed) for seed in {run.seed for run in runs}}
    scores = [score(contest, run, truth, where_decided(contest, truth, run, between[run.seed])) for run in runs]
    start = truth.at(0)
    return {
        "kind": KIND,
        "schema": SCHEMA,
        "what": "simulated",
        "job": contest.job.to_json() | {"scenario": contest.scenario.name},
        "budget": contest.budget,
        "seeds": contest.seeds,
        "changes": contest.scenario.changes_between(0, contest.budget * WINDOW),
        "references": {"fifo_s": start.fifo_s, "ddp_best_s": start.reference_s, "bound_s": start.bound_s},
        "optimum": _place(start, start.best),
        "best_constant": _place(start, constant),
        "oracle": {
            "samples_per_s": float(np.median([each.oracle for each in between.values()])),
            "all_knowing_samples_per_s": float(np.median([each.all_knowing for each in between.values()])),
            "best_constant_samples_per_s": float(np.median([each.constant for each in between.values()])),
            "gap": float(np.median([each.gap for each in between.values()])),
        },
        "carried": largest(contest, truth),
        "landscape": _landscape(start, contest.space.grid()),
        "tuners": [_summary(name, [s for s in scores if s.run.tuner == name]) for name in contest.tuners],
    }


def _curve(scored: Score) -> list[float]:
    """Regret of the config in force after every 10 iterations, however long windows were."""
    windows = [decision.measurement for decision in scored.run.decisions]
    ends = np.cumsum([len(window.step_s) for window in windows])
    last = np.searchsorted(ends, np.arange(WINDOW, ends[-1] + 1, WINDOW), side="right") - 1
    return [scored.search.regret[decision] for decision in last.tolist()]


def hindsight(contest: Contest, models: Sequence[Model], *, progress: Callable[[int, int], None]) -> Config:
    """The single config that is best on average over the models at 1, 3, 10 and 25 Gbit/s, on uniform clusters."""
    own = contest.job.cluster
    clusters = [Cluster.uniform(own.workers, rate, architecture=own.architecture) for rate in BANDWIDTHS]
    jobs = [Job(model, cluster) for model in models for cluster in clusters]
    return best_constant(jobs, contest.space.grid(), progress=progress)[0]


def _place(state: SteadyTruth, config: Config) -> dict[str, Any]:
    seconds = state.step_s[config]
    return config.to_json() | {"samples_per_s": state.job.samples / seconds, "regret": 1 - state.best_s / seconds}


def _landscape(state: SteadyTruth, grid: Sequence[Config]) -> dict[str, Any]:
    """The speed of every config of the grid, in rows of equal partitions, credits growing."""
    rows: dict[int, list[float]] = {}
    for config in grid:
        rows.setdefault(config.partition_bytes, []).append(state.job.samples / state.step_s[config])
    first = [config.credit_bytes / config.partition_bytes for config in grid[: len(next(iter(rows.values())))]]
    return {"partition_bytes": list(rows), "credit_ratio": first, "samples_per_s": list(rows.values())}


def _summary(name: str, scores: Sequence[Score]) -> dict[str, Any]:
    """One tuner's row: medians over its seeds, and the 10th and 90th percentile beside them."""
    columns: dict[str, list[float]] = {
        "samples_per_s": [s.samples_per_s for s in scores],
        "speedup_over_fifo": [s.speedup_over_fifo for s in scores],
        "gap_closed": [s.gap_closed for s in scores if s.gap_closed is not None],
        "regret": [s.search.regret[-1] for s in scores],
        "iterations": [s.search.iterations for s in scores],
        "search_cost_s": [s.search.cost_s for s in scores],
        "tuner_cpu_s": [s.tuner_cpu_s for s in scores],
        "switches": [s.search.switches for s in scores],
        "oracle_gap_closed": [part for s in scores if (part := s.ends.closed(s.samples_per_s)) is not None],
        "before_cost_s": [s.before_cost_s for s in scores if s.run.before],
    }
    middle = sorted(scores, key=lambda s: s.samples_per_s)[len(scores) // 2]  # the run that the config is taken from
    medians = {key: float(np.median(values)) if values else None for key, values in columns.items()}
    spreads = {key: np.percentile(values, SPREAD).tolist() for key, values in columns.items() if values}
    curves = {"regret_curve": np.median([_curve(s) for s in scores], axis=0).tolist()}
    failed = sum(any(decision.failure for decision in s.run.decisions) for s in scores)
    head = {"name": name, "config": middle.config.to_json(), "failed_runs": failed}
    return head | medians | {"spread": spreads} | curves
