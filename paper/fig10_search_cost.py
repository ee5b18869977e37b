"""Figure 10: the cost of a search: iterations until within 3 % of the best, and training time lost on the way.

    python paper/fig10_search_cost.py              # 2 minutes
    python paper/fig10_search_cost.py --testbed    # 80 minutes, Linux and root

Simulated, at two costs of a block, but for tuners' own time. Writes data/fig10_search_cost.csv,
data/fig10_search_cost.measured.csv and figures/fig10_search_cost.{pdf,png}.
"""

from itertools import product

import jobs
import numpy as np
import runs
import sheet
import style

from autobyte.comparison.judge import TOLERANCE, judge
from autobyte.config import Space
from autobyte.simulator.landscape import survey
from autobyte.simulator.steady import step_s
from autobyte.tuning import WINDOW

NAME = "fig10_search_cost"
MODELS, GBIT = ("resnet50", "vgg16", "alexnet"), 10
SEEDS = 3
TRIALS = 30  # ByteScheduler's tuner stops at 15 by itself
GRIDS = {"grid": 304, "grid-16": 16, "grid-12": 12}  # all pairs; 16 of them, evenly spread; 2 … 8 MB and 1 … 4X
TUNERS = (
    "random",
    "released",
    "bayesian-published",
    "bayesian",
    "optuna",
    "descent",
    "twin",
    "metanet-published",
    "metanet",
)

options = sheet.options(__doc__, testbed=True).parse_args()


def trial(place):
    """One search: what it cost in virtual time, and what the tuner itself took."""
    cost, architecture, model, name, seed = place
    job = jobs.job(model, GBIT, architecture, cost=cost)
    trials = min(GRIDS.get(name, TRIALS), 4 if options.quick else 999)
    decisions = runs.run(job, "grid" if name in ("grid", "grid-16") else name, seed, budget=trials + 1)
    configs = {decision.config for decision in decisions} | {decision.measurement.config for decision in decisions}
    true_s = {config: step_s(job, config) for config in configs}
    best_s = min(best[cost, architecture, model], *true_s.values())
    search = judge(decisions, true_step_s=lambda config, _: true_s[config], best_step_s=lambda _: best_s)
    steps_s = [seconds for decision in decisions for seconds in decision.measurement.step_s]
    cell = {"block_cost": cost, "architecture": architecture, "model": model, "tuner": name, "seed": seed}
    row = {
        "found": int(search.regret[-1] <= TOLERANCE),
        "iterations": search.iterations,  # of a search that never gets there: all it had
        "search_s": sum(steps_s[: search.iterations]),
        "lost_steps": search.cost_s / best_s,  # beyond training at the best pair from the start
        "end_regret": search.regret[-1],
        "reconfigurations": search.switches,
    }
    until = [each for each in decisions if each.measurement.iteration < max(WINDOW, search.iterations)]
    cpu = {"cpu_s": sum(d.cpu_s for d in until), "cpu_ms_per_decision": 1e3 * np.mean([d.cpu_s for d in until])}
    return cell | row, cell | cpu


if options.testbed:
    import shaped

    NAME = f"{NAME}.testbed"
    if not options.redraw:
        shaped.searches(NAME, MODELS, GBIT, runs.installed(("grid-12", *TUNERS[1:])), options)
elif not options.redraw:
    places = list(product(jobs.BLOCK_COSTS, jobs.ARCHITECTURES, MODELS))
    places = places[:1] if options.quick else places
    best = {
        (cost, architecture, model): survey(jobs.job(model, GBIT, architecture, cost=cost), Space().grid()).best_s
        for cost, architecture, model in places
    }
    cells = [  # the longest first: two of them at the end would keep one core waiting
        (*place, name, options.seed + seed)
        for name in [*GRIDS, *runs.installed(TUNERS)]
        for place in places
        for seed in range(1 if options.quick or name in GRIDS else jobs.seeds(place[0], SEEDS))
    ]
    trials = runs.spread(trial, cells)
    sheet.write((row for row, _ in trials), NAME, options.out)
    sheet.write((row for _, row in trials), f"{NAME}.measured", options.out, what="measured")

rows = sheet.read(NAME, options.out)
names = rows["tuner"].unique()[::-1]
costs = [{"block_cost": cost} for cost in rows["block_cost"].unique()] if "block_cost" in rows else [{}]
if options.testbed:  # nearly no search there stays within 3 % of the luckiest window: iterations say nothing
    rows = rows.assign(end_percent=100 * rows["end_regret"])
    shown = (
        ("lost_steps", "(a) steps lost", [0, 10, 1000]),
        ("end_percent", "(b) lost at end (%)", [0, 10, 100]),
    )
else:
    shown = (("iterations", "(a) iterations", [0, 10, 100, 1000]), ("lost_steps", "(b) steps lost", [0, 10, 1000]))
size = {"rows": len(costs), "columns": 2, "sharex": "col", "sharey": True, "squeeze": False}
figure, axes = style.new(0.45 + (0.25 + 0.2 * len(names)) * len(costs), **size)
for line, cost in zip(axes, costs, strict=True):
    for panel, (key, title, ticks) in zip(line, shown, strict=True):
        for y, name in enumerate(names):
            runs_of = sheet.where(rows, tuner=name, **cost)
            for row in runs_of.to_dict("records"):
                filled = style.colour(name) if row["found"] else "none"
                shift = 0.22 * ((row["seed"] - options.seed) / SEEDS - 0.4)
                look = {"color": style.colour(name), "markerfacecolor": filled, "markersize": 2.2, "alpha": 0.6}
                panel.plot(row[key], y + shift, "o", **look)
            middle = runs_of[key].median()
            panel.plot([middle, middle], [y - 0.33, y + 0.33], color=style.INK, linewidth=1.3)
            panel.annotate(f"{middle:,.0f}", (middle, y + 0.2), (2, 0), textcoords="offset points", fontsize=5.5)
        panel.set_xscale("symlog", linthresh=10)
        panel.set_xlim(0, 2 * rows[key].max())
        panel.set_xticks(ticks)
        panel.minorticks_off()
        above = jobs.BLOCK_COSTS[cost["block_cost"]] if cost and panel is line[0] else ""
        panel.set_title(f"{above}\n{title}" if cost else title)
        panel.grid(axis="x")
    line[0].set_yticks(range(len(names)), [style.NAMES[name] for name in names])
    line[0].tick_params(axis="y", length=0)
every = "launch" if options.testbed else "seed"
figure.supxlabel(
    f"every model, architecture and {every}; bars: medians\nhollow: not within 3 % in the end", fontsize=6.5
)
style.save(figure, NAME, options.out / "figures", what="emulated" if options.testbed else "simulated")
