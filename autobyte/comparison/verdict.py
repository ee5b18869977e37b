"""The verdict: every run judged by the noise-free truth; medians over seeds, with their spreads."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from autobyte.bound import gap_closed
from autobyte.comparison.carried import largest
from autobyte.comparison.contest import Contest, Run
from autobyte.comparison.judge import Judgement, judge
from autobyte.comparison.oracle import Ends, ends, where_decided
from autobyte.comparison.outcome import KIND, SCHEMA
from autobyte.comparison.preference import NAMES, Preference
from autobyte.comparison.truth import SteadyTruth, Truth
from autobyte.config import Config
from autobyte.job import Cluster, Job, Model
from autobyte.simulator.landscape import best_constant
from autobyte.tuning import WINDOW, Decision

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
    rewards: tuple[float, float, float] | None = None  # of throughput, latency and cost, where these are weighed


def rewards_of(contest: Contest, run: Run, truth: Truth) -> tuple[float, float, float]:
    """Throughput, latency and cost of one run, each from 0 to 1 and without noise.

    Without a scenario, the first two are those of the config left in force; with one, means over the whole run.
    """
    windows, left = [decision.measurement for decision in run.decisions], run.decisions[-1].config
    ran = [(window.config, window.iteration + k) for window in windows for k in range(len(window.step_s))]
    each = [contest.rewards.of(*one) for one in (ran if contest.scenario.changes else [(left, 0)])]
    throughput, latency = (float(np.mean(column)) for column in zip(*each, strict=True))
    switches = sum(one.config != other.config for one, other in pairwise(windows))
    took_s = sum(truth.step_s(*one) for one in ran) + switches * contest.switch_s
    return throughput, latency, min(1.0, sum(truth.step_s(left, iteration) for _, iteration in ran) / took_s)


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
        rewards=rewards_of(contest, run, truth) if contest.objective else None,
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
        "tuners": [
            _summary(name, [s for s in scores if s.run.tuner == name], contest.objective) for name in contest.tuners
        ],
    } | _wished(contest, tried)


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


def _wished(contest: Contest, tried: Sequence[Decision]) -> dict[str, Any]:
    """What was wished, and the config that is worth most before anything changes, found for nothing."""
    if contest.objective is None:
        return {}
    configs = [*contest.space.grid(), *(config for d in tried for config in (d.measurement.config, d.config))]
    best = contest.rewards.best(list(dict.fromkeys(configs)), contest.objective)
    rewards = (*contest.rewards.of(best, 0), 1.0)
    found = {"config": best.to_json()} | _rewarded(rewards, contest.objective)
    return {"objective": asdict(contest.objective), "objective_best": found}


def _rewarded(rewards: Sequence[float], objective: Preference) -> dict[str, float]:
    """A score and its parts, by name."""
    parts = {f"reward_{name}": reward for name, reward in zip(NAMES, rewards, strict=True)}
    return {"score": objective.score(rewards)} | parts


def _summary(name: str, scores: Sequence[Score], objective: Preference | None) -> dict[str, Any]:
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
    if objective is not None:
        rewarded = [_rewarded(s.rewards, objective) for s in scores if s.rewards]
        columns |= {key: [row[key] for row in rewarded] for key in rewarded[0]}
    middle = sorted(scores, key=lambda s: s.samples_per_s)[len(scores) // 2]  # the run that the config is taken from
    medians = {key: float(np.median(values)) if values else None for key, values in columns.items()}
    spreads = {key: np.percentile(values, SPREAD).tolist() for key, values in columns.items() if values}
    curves = {"regret_curve": np.median([_curve(s) for s in scores], axis=0).tolist()}
    failed = sum(any(decision.failure for decision in s.run.decisions) for s in scores)
    head = {"name": name, "config": middle.config.to_json(), "failed_runs": failed}
    return head | medians | {"spread": spreads} | curves
