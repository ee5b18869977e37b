"""Table I: what each method adapts to, found out by trying; a tick is a pair within 3 % of the best after a change.

    python paper/table1_methods.py        # 80 seconds

Simulated. Writes data/table1_methods.csv and figures/table1_methods.{pdf,png}.
"""

from dataclasses import replace
from functools import cache

import jobs
import runs
import sheet
import style

from autobyte.comparison.judge import TOLERANCE
from autobyte.config import Space
from autobyte.scenario import Change, Scenario
from autobyte.simulator.landscape import contenders
from autobyte.tuning import WINDOW

NAME = "table1_methods"
TUNERS = ("default", "grid", "random", "released", "bayesian-published", "bayesian", "optuna", "descent", "twin")
TUNERS += ("metanet-published", "metanet")
SEEDS = 3
WINDOWS = 2 * runs.BUDGET  # half of them before a change in mid-run, half after it
# Before and after: two jobs that differ in one thing and have different best pairs; `carried` in the CSV says what
# the best pair of the first loses on the second. Traffic and GPUs change in mid-run, the others between two runs.
HALF = 2 * runs.BUDGET * WINDOW // 2
FAST = jobs.rate(25)
CASES = {
    "traffic": (("vgg16", 10, "ps"), Scenario("traffic ends", (Change(at=HALF, up=FAST, down=FAST),))),
    "GPUs": (("resnet50", 25, "allreduce"), Scenario("GPUs shared", (Change(at=HALF, slowdown=2.0),))),
    "architecture": (("vgg16", 25, "allreduce"), ("vgg16", 25, "ps")),
    "model": (("vgg16", 25, "allreduce"), ("resnet50", 25, "allreduce")),
    "network": (("vgg16", 10, "ps"), ("vgg16", 25, "ps")),
}
PUBLISHED = {  # the paper's table: what it ticks
    "default": set(),
    "grid": {"architecture", "model", "network"},
    "bayesian": {"architecture", "model", "network"},
    "metanet-published": set(CASES),
    "metanet": set(CASES),
}

options = sheet.options(__doc__).parse_args()


@cache
def fastest(job):
    """The pairs of the grid that may be the best, once for all tuners."""
    return contenders(job, Space().grid())


def regret(job, config):
    """What a pair loses against the best of the grid; a better one than those loses nothing."""
    return max(0.0, 1 - jobs.speed(job, config) / (job.samples / fastest(job).best_s))


def trial(cell):
    """One tuner on one case: the regret of what is in force at the end."""
    cost, factor, tuner, seed = cell
    first, second = CASES[factor]
    job = jobs.job(*first, cost=cost)
    if isinstance(second, Scenario):
        decisions = runs.run(job, tuner, seed, budget=WINDOWS, scenario=second)
        after = replace(job, cluster=second.cluster(job.cluster, HALF))
    else:
        after = jobs.job(*second, cost=cost)
        decisions = runs.run(after, tuner, seed)
    config = decisions[-1].config
    return {
        "block_cost": cost,
        "factor": factor,
        "tuner": tuner,
        "seed": seed,
        "pair": jobs.label(config),
        "regret": regret(after, config),
    }


def carried(cost, factor):
    """What the best pair before loses after."""
    first, second = CASES[factor]
    job = jobs.job(*first, cost=cost)
    other = isinstance(second, Scenario)
    after = replace(job, cluster=second.cluster(job.cluster, HALF)) if other else jobs.job(*second, cost=cost)
    return regret(after, fastest(job).best)


if not options.redraw:
    cells = [
        (cost, factor, tuner, options.seed + seed)
        for cost in list(jobs.BLOCK_COSTS)[: 1 if options.quick else None]
        for factor in (["model"] if options.quick else CASES)
        for tuner in runs.installed(TUNERS[:2] if options.quick else TUNERS)
        for seed in range(1 if options.quick or tuner in ("default", "grid") else jobs.seeds(cost, SEEDS))
    ]
    rows = runs.spread(trial, cells)
    losses = {place: carried(*place) for place in dict.fromkeys(cell[:2] for cell in cells)}
    sheet.write((row | {"carried": losses[row["block_cost"], row["factor"]]} for row in rows), NAME, options.out)

rows = sheet.read(NAME, options.out)
factors = rows["factor"].unique()
tuners = rows["tuner"].unique()
costs = rows["block_cost"].unique()
figure, axes = style.new(0.15 + len(costs) * (0.5 + 0.17 * len(tuners)), rows=len(costs), squeeze=False)
for panel, cost in zip(axes[:, 0], costs, strict=True):
    for x, factor in enumerate(factors):
        case = sheet.where(rows, block_cost=cost, factor=factor)
        loss = case["carried"].iloc[0]
        panel.text(x, -0.75, f"{factor}\n({100 * loss:.0f} %)", ha="center", va="bottom", fontsize=6)
        for y, tuner in enumerate(tuners):
            middle = sheet.where(case, tuner=tuner)["regret"].median()
            mark = ("✓" if middle <= TOLERANCE else "✗") + f" {100 * middle:.1f}"
            tint = style.TEAL if middle <= TOLERANCE else style.RED
            published = "" if tuner not in PUBLISHED else "  ✓" if factor in PUBLISHED[tuner] else "  –"
            panel.text(x + 0.12, y, mark, ha="right", va="center", color=tint, fontsize=6.2)
            panel.text(x + 0.12, y, published, ha="left", va="center", color=style.MUTED, fontsize=6.2)
    names = style.NAMES | {"grid": "grid, as far as it gets"}
    panel.set_title(jobs.BLOCK_COSTS[cost], pad=22)
    panel.set_yticks(range(len(tuners)), [names[tuner] for tuner in tuners], fontsize=6.2)
    panel.set_ylim(len(tuners) - 0.5, -0.6)
    panel.set_xlim(-0.55, len(factors) - 0.55)
    panel.set_xticks([])
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    panel.axhline(-0.6, color=style.MUTED, linewidth=0.6)
figure.supxlabel("regret in %, median; grey: ticked in the paper\nin brackets: what not adapting loses", fontsize=6)
style.save(figure, NAME, options.out / "figures")
