"""Figure 10: the cost of a search: iterations until within 3 % of the best, and training time lost on the way.

    python paper/fig10_search_cost.py              # 2 minutes
    python paper/fig10_search_cost.py --testbed    # 80 minutes, Linux and root

Simulated, but for tuners' own time. Writes data/fig10_search_cost.csv, data/fig10_search_cost.measured.csv and
figures/fig10_search_cost.{pdf,png}.
"""

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
    model, architecture, name, seed = place
    job = jobs.job(model, GBIT, architecture)
    trials = min(GRIDS.get(name, TRIALS), 4 if options.quick else 999)
    decisions = runs.run(job, "grid" if name in ("grid", "grid-16") else name, seed, budget=trials + 1)
    configs = {decision.config for decision in decisions} | {decision.measurement.config for decision in decisions}
    true_s = {config: step_s(job, config) for config in configs}
    best_s = min(best[model, architecture], *true_s.values())
    search = judge(decisions, true_step_s=lambda config, _: true_s[config], best_step_s=lambda _: best_s)
    steps_s = [seconds for decision in decisions for seconds in decision.measurement.step_s]
    cell = {"architecture": architecture, "model": model, "tuner": name, "seed": seed}
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
    places = [(model, architecture) for architecture in jobs.ARCHITECTURES for model in MODELS]
    places = places[:1] if options.quick else places
    best = {place: survey(jobs.job(place[0], GBIT, place[1]), Space().grid()).best_s for place in places}
    cells = [
        (*place, name, options.seed + seed)
        for place in places
        for name in [*GRIDS, *runs.installed(TUNERS)]
        for seed in range(1 if options.quick or name in GRIDS else SEEDS)
    ]
    trials = runs.spread(trial, cells)
    sheet.write((row for row, _ in trials), NAME, options.out)
    sheet.write((row for _, row in trials), f"{NAME}.measured", options.out, what="measured")

rows = sheet.read(NAME, options.out)
names = rows["tuner"].unique()[::-1]
figure, axes = style.new(0.45 + 0.2 * len(names), columns=2, sharey=True)
for panel, key, title in (
    (axes[0], "iterations", "(a) iterations"),
    (axes[1], "lost_steps", "(b) steps lost"),
):
    for y, name in enumerate(names):
        runs_of = sheet.where(rows, tuner=name)
        for row in runs_of.to_dict("records"):
            filled = style.colour(name) if row["found"] else "none"
            shift = 0.22 * ((row["seed"] - options.seed) / SEEDS - 0.4)
            panel.plot(
                row[key], y + shift, "o", color=style.colour(name), markerfacecolor=filled, markersize=2.2, alpha=0.6
            )
        middle = runs_of[key].median()
        panel.plot([middle, middle], [y - 0.33, y + 0.33], color=style.INK, linewidth=1.3)
        panel.annotate(f"{middle:,.0f}", (middle, y + 0.2), (2, 0), textcoords="offset points", fontsize=5.5)
    panel.set_xscale("symlog", linthresh=10)
    panel.set_xlim(0, 2 * rows[key].max())
    panel.set_xticks([0, 10, 100, 1000] if key == "iterations" else [0, 10, 1000])
    panel.minorticks_off()
    panel.set_title(title)
    panel.grid(axis="x")
axes[0].set_yticks(range(len(names)), [style.NAMES[name] for name in names])
axes[0].tick_params(axis="y", length=0)
figure.supxlabel("every model, architecture and seed; bars: medians\nhollow: not within 3 % in the end", fontsize=6.5)
style.save(figure, NAME, options.out / "figures", what="emulated" if options.testbed else "simulated")
