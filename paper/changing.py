"""What figures 6 and 7 share: a cluster that changes, pairs chosen once before it does, and tuners that go on."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import jobs
import runs
import sheet
import style

from autobyte.config import BYTESCHEDULER_DEFAULT, Config, Space
from autobyte.job import Job
from autobyte.scenario import Scenario
from autobyte.simulator.landscape import survey
from autobyte.simulator.world import World
from autobyte.trace import Measurement
from autobyte.tuning import WARMUP, WINDOW

ONCE = (
    "released",
    "bayesian-published",
    "bayesian",
)  # tuned before the changes, as ByteScheduler does it, and then left alone
ONGOING = ("descent", "twin", "metanet-published", "metanet")  # begin with what `bayesian` found
MODELS = ("resnet50", "vgg16", "alexnet")
SEEDS = 3
DRAWN = ("released", "constant", "bayesian", "twin", "metanet", "oracle")


def measure(scenario: Scenario, gbit: float, windows: int, options: Namespace) -> list[dict[str, Any]]:
    """Run every method on every model and architecture: rows of speeds, one for every 5 iterations."""
    cells = [
        (
            scenario,
            gbit,
            windows,
            architecture,
            model,
            options.seed + seed,
            jobs.constant(architecture, few=options.quick),
        )
        for architecture in list(jobs.ARCHITECTURES)[: 1 if options.quick else None]
        for model in MODELS[: 1 if options.quick else None]
        for seed in range(1 if options.quick else SEEDS)
    ]
    return [row for rows in runs.spread(_seed, cells) for row in rows]


def _seed(cell: tuple[Scenario, float, int, str, str, int, Config]) -> list[dict[str, Any]]:
    """Every method in the same world."""
    scenario, gbit, windows, architecture, model, seed, constant = cell
    job = jobs.job(model, gbit, architecture)
    still = {"default": BYTESCHEDULER_DEFAULT, "constant": constant}
    still |= {name: runs.run(job, name, seed)[-1].config for name in runs.installed(ONCE)}
    ways = {name: [config] * windows for name, config in still.items()}
    ways["oracle"] = _oracle(job, scenario, windows)
    measured = {name: _train(job, scenario, way, seed) for name, way in ways.items()}
    start = Space(default=still.get("bayesian", BYTESCHEDULER_DEFAULT))
    for name in runs.installed(ONGOING):
        decisions = runs.run(job, name, seed, budget=windows, space=start, scenario=scenario)
        measured[name] = [decision.measurement for decision in decisions]
    return [
        {"architecture": architecture, "model": model, "method": name, "seed": seed}
        | {"iteration": iteration, "pair": jobs.label(config), "samples_per_s": speed}
        for name, run in measured.items()
        for iteration, config, speed in runs.speeds(run, job.samples)
    ]


def _oracle(job: Job, scenario: Scenario, windows: int) -> list[Config]:
    """After every 10 iterations the best of the grid for the state then: who decides as often cannot know more."""
    world = World(job, scenario=scenario)
    seen = [world.job_at(max(0, window * WINDOW - 1)) for window in range(windows)]
    best = {state: survey(state, Space().grid()).best for state in dict.fromkeys(seen)}
    return [best[state] for state in seen]


def _train(job: Job, scenario: Scenario, way: list[Config], seed: int) -> list[Measurement]:
    world = World(job, scenario=scenario, effects=runs.EFFECTS, seed=seed)
    return [world.measure(config, iterations=WINDOW, warmup=WARMUP) for config in way]


def draw(
    name: str, folder: Path, *, panels: list[tuple[str, str]], marks: list[tuple[int, str]], what: str = "simulated"
) -> None:
    """Draw gains over BO tuned once, iteration by iteration: median and range over seeds, each against its own.

    Args:
        name: of the CSV and of the figure.
        folder: where both are.
        panels: (model, architecture), as far as the CSV has them.
        marks: (iteration, text) of what changes.
        what: the numbers are.
    """
    rows = sheet.read(name, folder)
    panels = [place for place in panels if not sheet.where(rows, model=place[0], architecture=place[1]).empty]
    figure, axes = style.new(0.35 + 1.35 * len(panels), rows=len(panels), sharex=True, squeeze=False)
    for panel, letter, (model, architecture) in zip(axes[:, 0], "abc", panels, strict=False):
        speeds = sheet.where(rows, model=model, architecture=architecture)
        speeds = speeds.pivot_table(index=["iteration", "seed"], columns="method", values="samples_per_s")
        gains = 100 * (speeds.div(speeds["bayesian"], axis=0) - 1)
        at = gains.index.unique("iteration").tolist()
        last = at[-1] + at[1] - at[0]
        ends = {}
        for method in (method for method in DRAWN if method in gains):
            over_seeds = gains[method].groupby("iteration")
            median = over_seeds.median()
            style.band(panel, [*at, last], over_seeds.min(), over_seeds.max(), style.colour(method))
            panel.stairs(median, [*at, last], baseline=None, linewidth=1.2, **style.look(method))
            text = "best for the last window" if method == "oracle" else style.NAMES[method]
            ends[text] = (last, median.iloc[-1], style.colour(method))
        for iteration, text in ((at, text) for at, text in marks if at < last):
            panel.axvline(iteration, color=style.FAINT, linewidth=0.8, zorder=0)
            if letter == "a":
                panel.text(iteration + 1, 1.0, text, transform=panel.get_xaxis_transform(), va="top", fontsize=6)
        panel.set_title(f"({letter}) {style.MODELS[model]}, {jobs.ARCHITECTURES[architecture]}")
        panel.set_ylabel("gain over BO (%)")
        panel.set_xlim(0, last)
        panel.margins(y=0.15)
        style.label_ends(panel, ends)
    axes[-1, 0].set_xlabel("iteration; shaded: range over seeds")
    style.save(figure, name, folder / "figures", what=what)
