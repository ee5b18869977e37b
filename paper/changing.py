"""What figures 6 and 7 share: a cluster that changes, pairs chosen once before it does, and tuners that go on."""

from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any

import jobs
import numpy as np
import pandas as pd
import runs
import sheet
import style

from autobyte import models
from autobyte.comparison.carried import TIES, ratio
from autobyte.config import BYTESCHEDULER_DEFAULT, Config, Space
from autobyte.job import Floats, Job
from autobyte.scenario import Scenario
from autobyte.simulator.landscape import contenders
from autobyte.simulator.world import World
from autobyte.trace import Measurement
from autobyte.tuning import WARMUP, WINDOW, Decision

ONCE = ("released", "bayesian")  # tuned before the changes, as ByteScheduler does it, and then left alone
ONGOING = ("descent", "twin", "metanet-published", "metanet")  # begin with what `bayesian` found
BATCHES = (32, 64, 128)  # samples a worker: how long compute takes beside the same bytes
FUSIONS = (1, 0)  # small tensors travel together, as in training here, or alone, as in ByteScheduler's released code
SEEDS = 3
SLOT, PHASE = 5, 20  # iterations: what the oracle and a row of the figure last, and what lies between two changes
SLOWEST = 1.12  # mean of the slowest of 8 workers' compute, by runs.EFFECTS' jitter
LIKELY = 16  # pairs that are tried with jitter for every state of the cluster
DRAWN = ("released", "constant", "bayesian", "robust", "twin", "metanet-published", "metanet", "oracle")
CUT = -40  # % of gain: what is lower is drawn as a triangle


@dataclass(frozen=True)
class Cell:
    """A job that changes, and a seed."""

    scenario: Scenario
    gbit: float
    windows: int
    block_cost: str
    fusion: int
    batch: int
    architecture: str
    model: str
    seed: int

    @property
    def place(self) -> dict[str, Any]:
        """What names it in a table."""
        names = ("block_cost", "fusion", "batch", "architecture", "model", "seed")
        return {name: getattr(self, name) for name in names}

    @property
    def job(self) -> Job:
        """As it begins."""
        return jobs.job(self.model, self.gbit, self.architecture, batch=self.batch, cost=self.block_cost)

    @property
    def default(self) -> Config:
        """ByteScheduler's."""
        return replace(BYTESCHEDULER_DEFAULT, knobs={"fusion": 1.0} if self.fusion else {})


def measure(
    scenario: Scenario,
    gbit: float,
    windows: int,
    *,
    models: Sequence[str],
    costs: Sequence[str],
    architectures: Sequence[str],
    drawn: Sequence[dict[str, Any]],
    options: Namespace,
) -> None:
    """Run every method on every job, and write step times of phases, and speeds of every 5 iterations where drawn."""
    name = scenario.name
    cells = [
        Cell(scenario, gbit, windows, cost, fusion, batch, architecture, model, options.seed + seed)
        for cost in (["nccl"] if options.quick else costs)
        for fusion in ([0] if options.quick else FUSIONS)
        for batch in ([64] if options.quick else BATCHES)
        for architecture in architectures[: 1 if options.quick else None]
        for model in models[: 1 if options.quick else None]
        for seed in range(1 if options.quick else SEEDS)
    ]
    measured = runs.spread(trial, cells)
    by_phase = (row for cell, rows in zip(cells, measured, strict=True) for row in phases(cell, rows))
    sheet.write(by_phase, f"{name}.phases", options.out)
    shown = [
        row
        for cell, rows in zip(cells, measured, strict=True)
        if options.quick or any(panel.items() <= cell.place.items() for panel in drawn)
        for row in rows
    ]
    sheet.write(shown, name, options.out)


def trial(cell: Cell) -> list[dict[str, Any]]:
    """Every method in the same world: a row of its speed for every 5 iterations."""
    job, space = cell.job, Space(default=cell.default)
    once = {name: runs.run(job, name, cell.seed, space=_space(name, space)) for name in runs.installed(ONCE)}
    still = {"default": cell.default} | {name: decisions[-1].config for name, decisions in once.items()}
    still["robust"] = robust(once["bayesian"])
    measured = {name: train(cell, [config] * cell.windows) for name, config in still.items()}
    start = replace(space, default=still["bayesian"])
    for name in runs.installed(ONGOING):
        decisions = runs.run(job, name, cell.seed, budget=cell.windows, space=start, scenario=cell.scenario)
        measured[name] = [decision.measurement for decision in decisions]
    tried = [window.config for run in measured.values() for window in run]
    tried += [decision.measurement.config for decisions in once.values() for decision in decisions]
    truth = Truth(cell, list(still.values()), [*space.grid(), *tried])
    measured["all-knowing"] = train(cell, truth.of_phases())
    measured["hindsight"] = train(cell, [truth.of_all()] * cell.windows)
    rows = {name: runs.speeds(run, job.samples, every=SLOT) for name, run in measured.items()}
    rows["oracle"] = [
        max(seen, key=lambda row: row[2]) for seen in zip(truth.of_slots(), *rows.values(), strict=True)
    ]
    return [
        cell.place | {"method": name, "iteration": at, "pair": jobs.label(config), "samples_per_s": speed}
        for name, run in rows.items()
        for at, config, speed in run
    ]


def _space(name: str, space: Space) -> Space:
    own = runs.spaced(name)[1]
    return replace(own, default=space.default)


def robust(searched: Sequence[Decision]) -> Config:
    """Of the pairs that a search saw within TIES of its fastest window, the one with the fewest bytes in flight."""
    took: dict[Config, float] = {}
    for window in (decision.measurement for decision in searched):
        took[window.config] = min(window.mean_s, took.get(window.config, window.mean_s))
    ties = [config for config, mean_s in took.items() if mean_s <= (1 + TIES) * min(took.values())]
    return min(ties, key=lambda config: (config.credit_bytes, config.partition_bytes))


def train(cell: Cell, way: Iterable[Config]) -> list[Measurement]:
    """Windows under configs that stand in advance, switches included."""
    world = World(cell.job, scenario=cell.scenario, effects=runs.EFFECTS, seed=cell.seed)
    return [world.measure(config, iterations=WINDOW, warmup=WARMUP) for config in way]


class Truth:
    """What pairs would have taken: the same world with the same jitter, without switches.

    Args:
        cell: whose world.
        known: pairs that are in.
        others: pairs of which LIKELY are in for every state of the cluster, and as many for all states together: the
            fastest without jitter.
    """

    def __init__(self, cell: Cell, known: Sequence[Config], others: Sequence[Config]) -> None:
        self._cell = cell
        self._slots = range(0, cell.windows * WINDOW, SLOT)
        world = World(cell.job, scenario=cell.scenario)
        self._states = [world.job_at(slot) for slot in self._slots]
        pool, pairs = list(dict.fromkeys(others)), dict.fromkeys(known)
        times = {state: _step_s(state, pool) for state in dict.fromkeys(self._states)}
        in_all = [config for config in pool if all(config in took for took in times.values())]
        whole = {config: sum(times[state][config] for state in self._states) for config in in_all}
        for took in (*times.values(), whole):
            pairs |= dict.fromkeys(sorted(took, key=took.__getitem__)[:LIKELY])
        self._configs = list(pairs)
        self._took = seconds_of_slots(cell, self._configs)

    def of_slots(self) -> list[tuple[int, Config, float]]:
        """The best pair of every slot: (first iteration, config, samples/s)."""
        best, least = self._took.argmin(axis=0), self._took.min(axis=0)
        samples = self._cell.job.samples * SLOT
        return [
            (slot, self._configs[index], samples / float(seconds))
            for slot, index, seconds in zip(self._slots, best, least, strict=True)
        ]

    def of_phases(self) -> list[Config]:
        """For every window the best pair of its phase, from one change to the next."""
        ways: list[Config] = []
        for _, phase in groupby(range(len(self._states)), key=lambda at: self._states[at]):
            at = list(phase)
            best = self._configs[int(self._took[:, at].sum(axis=1).argmin())]
            ways += [best] * (len(at) * SLOT // WINDOW)
        return ways

    def of_run(self) -> dict[Config, float]:
        """Speeds of pairs that never change (samples/s)."""
        samples = self._cell.job.samples * SLOT * len(self._slots)
        return dict(zip(self._configs, (samples / self._took.sum(axis=1)).tolist(), strict=True))

    def of_all(self) -> Config:
        """The pair that is best if it never changes."""
        return self._configs[int(self._took.sum(axis=1).argmin())]


def _step_s(state: Job, configs: Sequence[Config]) -> dict[Config, float]:
    """Steps without jitter (s), of configs that may be the fastest; compute takes as long as the slowest worker's."""
    slowdown = tuple(SLOWEST * each for each in state.cluster.slowdown)
    land = contenders(replace(state, cluster=replace(state.cluster, slowdown=slowdown)), configs)
    return dict(zip(land.configs, land.step_s.tolist(), strict=True))


def seconds_of_slots(cell: Cell, configs: Sequence[Config]) -> Floats:
    """Time of every slot under configs that never change (s), shape [configs, slots]."""
    worlds = [World(cell.job, scenario=cell.scenario, effects=runs.EFFECTS, seed=cell.seed) for _ in configs]
    slots = range(0, cell.windows * WINDOW, SLOT)
    took = np.empty((len(configs), len(slots)))
    for slot, (row, config) in product(range(len(slots)), enumerate(configs)):  # slot by slot: all share its costs
        took[row, slot] = sum(worlds[row].measure(config, iterations=SLOT).step_s)
    return took


def phases(cell: Cell, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean step times (ms) of every method in every phase of 20 iterations: a row for each phase."""
    table = pd.DataFrame(rows)
    table = table.assign(phase=table["iteration"] // PHASE, step_ms=1e3 * cell.job.samples / table["samples_per_s"])
    means = table.groupby(["phase", "method"], sort=False)["step_ms"].mean().unstack("method")
    world = World(cell.job, scenario=cell.scenario)
    return [
        cell.place | {"phase": phase, "ratio": ratio(world.job_at(int(phase) * PHASE))} | took.to_dict()
        for phase, took in means.iterrows()
    ]


def draw(
    name: str,
    folder: Path,
    *,
    panels: Sequence[dict[str, Any]],
    marks: list[tuple[int, str]],
    what: str = "simulated",
) -> None:
    """Draw speeds, iteration by iteration, and beside them gains over BO tuned once: medians over seeds.

    Args:
        name: of the CSV and of the figure.
        folder: where both are.
        panels: what is equal in the rows of each, as far as the CSV has them.
        marks: (iteration, text) of what changes.
        what: the numbers are.
    """
    rows = sheet.read(name, folder)
    panels = [panel for panel in panels if not sheet.where(rows, **panel).empty]
    size = {"rows": len(panels), "columns": 2, "sharex": True, "squeeze": False, "width": style.PAGE}
    figure, axes = style.new(0.45 + 1.45 * len(panels), **size)
    for (left, right), letter, panel in zip(axes, "abcd", panels, strict=False):
        runs_of = sheet.where(rows, **panel)
        _speeds(left, runs_of)
        _gains(right, runs_of)
        for place in (left, right):
            for iteration, text in ((at, text) for at, text in marks if at < place.get_xlim()[1]):
                place.axvline(iteration, color=style.FAINT, linewidth=0.8, zorder=0)
                place.text(iteration + 1, 1.0, text, transform=place.get_xaxis_transform(), va="top", fontsize=6)
        left.set_title(f"({letter}) {_title(panel)}")
    several = {"simulated": "seed", "emulated": "launch"}[what] if rows["seed"].nunique() > 1 else ""
    axes[-1, 0].set_xlabel(f"iteration; ticks: reconfigurations{f' of one {several}' if several else ''}")
    under = [f"shaded: range over {several}{'es' if what == 'emulated' else 's'}, of AutoByte"] if several else []
    under += [f"triangles: below {CUT} %".replace("-", "−")] if what == "emulated" else []
    axes[-1, 1].set_xlabel("iteration; " + "\n".join(under))
    style.save(figure, name, folder / "figures", what=what)


def _title(panel: dict[str, Any]) -> str:
    parts = [style.MODELS[panel["model"]], jobs.ARCHITECTURES[panel["architecture"]]]
    batch = panel.get("batch", models.load(panel["model"]).batch_size)  # on links: the model's own
    parts[1:1] = [f"batch {batch}"]
    fused = "fused" if panel.get("fusion", 1) else "not fused"
    if "block_cost" in panel:
        parts.append(jobs.BLOCK_COSTS[panel["block_cost"]])
    return ", ".join([*parts, fused])


def _speeds(axes: Any, rows: pd.DataFrame) -> None:
    """Speeds as the paper draws them; where a pair changed in the first seed's run, a tick at the bottom."""
    table = rows.pivot_table(index="iteration", columns="method", values="samples_per_s", aggfunc="median")
    edges = _edges(table.index)
    for method in (method for method in DRAWN if method in table):
        axes.stairs(table[method], edges, baseline=None, linewidth=1.0, **style.look(method))
    for row, method in enumerate(method for method in ONGOING if method in DRAWN):
        pairs = sheet.where(rows, method=method, seed=rows["seed"].min())["pair"].tolist()
        changes = [edges[at] for at in range(1, len(pairs)) if pairs[at] != pairs[at - 1]]
        how: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "color": style.colour(method)}
        axes.vlines(changes, 0.04 * row, 0.04 * row + 0.04, linewidth=1.5, **how)
    axes.set_ylabel("samples/s")
    axes.set_xlim(0, edges[-1])
    axes.margins(y=0.15)


def _gains(axes: Any, rows: pd.DataFrame) -> None:
    """Gains over BO, each seed's run against its own."""
    speeds = rows.pivot_table(index=["iteration", "seed"], columns="method", values="samples_per_s")
    gains = 100 * (speeds.div(speeds["bayesian"], axis=0) - 1)
    edges, ends = _edges(gains.index.unique("iteration")), {}
    for method in (method for method in DRAWN if method in gains):
        over_seeds = gains[method].groupby("iteration")
        median = over_seeds.median()
        if method == "metanet" and rows["seed"].nunique() > 1:
            style.band(axes, edges, over_seeds.min(), over_seeds.max(), style.colour(method))
        axes.stairs(median, edges, baseline=None, linewidth=1.2, **style.look(method))
        cut = [at + SLOT / 2 for at, value in median.items() if value < CUT]
        if cut:
            axes.plot(cut, [CUT] * len(cut), marker="v", linestyle="", color=style.colour(method), clip_on=False)
        ends[style.NAMES[method]] = (edges[-1], median.iloc[-1], style.colour(method))
    axes.set_ylabel("gain over BO (%)")
    axes.set_xlim(0, edges[-1])
    axes.margins(y=0.15)
    low, high = axes.get_ylim()
    axes.set_ylim(max(CUT, min(low, -3)), max(high, 3))
    style.label_ends(axes, ends)


def _edges(starts: pd.Index) -> list[int]:
    return [*starts, starts[-1] + SLOT]
