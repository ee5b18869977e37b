"""What figures 8 and 9 share: three models at five bandwidths on one architecture, every method on each."""

import math
from argparse import Namespace
from itertools import product
from pathlib import Path
from typing import Any

import jobs
import numpy as np
import pandas as pd
import runs
import sheet
import style

from autobyte.bound import bound_s
from autobyte.config import BYTESCHEDULER_DEFAULT, Config, Space
from autobyte.scheduler.policies import POLICIES
from autobyte.simulator.landscape import survey
from autobyte.simulator.steady import reference_s

MODELS = ("resnet50", "vgg16", "alexnet")
GBITS = (0.5, 1, 5, 10, 25)
SEEDS = 3
FUSED = Space(default=Config(4_000_000, 16_000_000, knobs={"fusion": 1.0}))
TUNERS = ("released", "bayesian", "twin", "metanet-published", "metanet")  # figure 10 has the others
# of all that the CSV holds
SHOWN = ("ddp", "released", "constant", "bayesian", "metanet-published", "metanet", "oracle", "oracle-fused")
NAMES = style.NAMES | {"oracle": "best of the grid", "oracle-fused": "best of the grid, fused"}  # tuners may leave it


def measure(architecture: str, options: Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Run everything.

    Returns:
        rows of speeds, and rows of measured times.
    """
    models, gbits, count = (MODELS[1:2], GBITS[3:4], 1) if options.quick else (MODELS, GBITS, SEEDS)
    costs = list(jobs.BLOCK_COSTS)[: 1 if options.quick else None]
    constants = {cost: jobs.constant(architecture, cost=cost, few=options.quick) for cost in costs}
    places = list(product(costs, models, gbits))
    seeds = {cost: [options.seed + seed for seed in range(jobs.seeds(cost, count))] for cost in costs}
    beside = runs.spread(_references, [(*p, architecture, constants[p[0]], seeds[p[0]]) for p in places])
    rows = [row for of_place in beside for row in of_place]
    cells = [
        (*place, architecture, tuner, seed)
        for place in places
        for tuner in runs.installed(TUNERS)
        for seed in seeds[place[0]]
    ]
    trials = runs.spread(_trial, cells)
    return rows + [row for row, _ in trials], [row for _, row in trials]


def _references(cell: tuple[str, str, float, str, Config, list[int]]) -> list[dict[str, Any]]:
    """What does not search: steady speeds, and those of the paper's metric, medians over seeds."""
    cost, model, gbit, architecture, constant, seeds = cell
    job = jobs.job(model, gbit, architecture, cost=cost)
    configs = {name: POLICIES[name]().space(job).default for name in ("fifo", "wfbp", "p3")}
    configs |= {"default": BYTESCHEDULER_DEFAULT, "constant": constant}
    configs |= {"oracle": survey(job, Space().grid()).best, "oracle-fused": survey(job, FUSED.grid()).best}
    place = {"block_cost": cost, "model": model, "gbit": gbit}
    rows = [
        place
        | {"method": name, "seed": "", "pair": jobs.label(config), "samples_per_s": jobs.speed(job, config)}
        | {"first_fifty": np.median([runs.still(job, config, seed, windows=6, part=runs.METRIC) for seed in seeds])}
        for name, config in configs.items()
    ]
    for name, seconds in (("ddp", reference_s(job)), ("bound", bound_s(job))):
        speed = {"samples_per_s": job.samples / seconds, "first_fifty": math.nan}
        rows.append(place | {"method": name, "seed": "", "pair": ""} | speed)
    return rows


def _trial(cell: tuple[str, str, float, str, str, int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """One run of a tuner: the noise-free speed of what it leaves in force, the paper's metric, and its own time."""
    cost, model, gbit, architecture, tuner, seed = cell
    job = jobs.job(model, gbit, architecture, cost=cost)
    decisions = runs.run(job, tuner, seed)
    config = decisions[-1].config
    trial = {"block_cost": cost, "model": model, "gbit": gbit, "method": tuner, "seed": seed}
    cpu_ms = 1e3 * float(np.mean([decision.cpu_s for decision in decisions]))
    steps_s = [seconds for decision in decisions for seconds in decision.measurement.step_s]
    row = trial | {"pair": jobs.label(config), "samples_per_s": jobs.speed(job, config)}
    row |= {"first_fifty": job.samples / float(np.mean(steps_s[runs.METRIC]))}
    return row, trial | {"cpu_ms_per_decision": cpu_ms}


def draw(name: str, folder: Path, *, what: str = "simulated") -> None:
    """Draw speeds as multiples of the baseline; medians over seeds, bars from the least to the most."""
    rows = sheet.read(name, folder)
    models = [model for model in MODELS if model in set(rows["model"])]
    gbits = sorted(rows["gbit"].unique())
    costs: list[dict[str, Any]] = [{}]  # on links a block costs what it costs there
    if "block_cost" in rows:
        costs = [{"block_cost": cost} for cost in rows["block_cost"].unique()]
    size = {"rows": len(models), "columns": len(costs), "width": style.PAGE if len(costs) > 1 else style.COLUMN}
    figure, axes = style.new(0.4 + 1.35 * len(models), sharex=True, squeeze=False, **size)
    for panel, letter, (model, cost) in zip(axes.flat, "abcdef", product(models, costs), strict=False):
        ends = {}
        over = _over_baseline(sheet.where(rows, model=model, **cost))
        for method in (method for method in SHOWN if method in over.index.unique("method")):
            speed = over.loc[method]
            x = [gbits.index(gbit) for gbit in speed.index]
            bars = [speed["median"] - speed["min"], speed["max"] - speed["median"]]
            panel.errorbar(x, speed["median"], bars, marker="o", elinewidth=0.7, **style.look(method))
            ends[NAMES[method]] = (x[-1], speed["median"].iloc[-1], style.colour(method))
        panel.axhline(1, **style.look("fifo"), zorder=0)
        start_up = f", {jobs.BLOCK_COSTS[cost['block_cost']]}" if cost else ""
        panel.set_title(f"({letter}) {style.MODELS[model]}{start_up}")
        panel.grid(axis="y")
        style.label_ends(panel, ends, leaders=True)
    for row in axes[:, 0]:
        row.set_ylabel("speed / baseline")
    for panel in axes[-1]:
        panel.set_xticks(range(len(gbits)), [f"{gbit:g}" for gbit in gbits])
        panel.set_xlabel("Gbit/s")
    style.save(figure, name, folder / "figures", what=what)


def _over_baseline(rows: pd.DataFrame) -> pd.DataFrame:
    """Median, least and most over the seeds of a model's speeds; rows are (method, Gbit/s)."""
    baseline = sheet.where(rows, method="fifo").groupby("gbit")["samples_per_s"].median()
    over = rows.assign(over=rows["samples_per_s"] / rows["gbit"].map(baseline))
    return over.groupby(["method", "gbit"])["over"].agg(["median", "min", "max"])
