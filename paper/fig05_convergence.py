"""Figure 5: from two bad starts to the best pair, ResNet50, a prediction every 10 iterations, or 5.

    python paper/fig05_convergence.py                             # 30 seconds
    python paper/fig05_convergence.py --testbed                   # 10 minutes, Linux and root
    python paper/fig05_convergence.py --start 2,2 --start 8,3

Simulated. Writes data/fig05_convergence.csv (speeds), data/fig05_convergence.summary.csv (what each run came to, and
predictions until it was within 3 % of the best) and figures/fig05_convergence.{pdf,png}; on shaped links the same, as
fig05_convergence.testbed.
"""

from itertools import pairwise, product

import jobs
import runs
import sheet
import style

from autobyte.comparison.judge import TOLERANCE
from autobyte.config import Space
from autobyte.simulator.landscape import survey
from autobyte.tuning import WINDOW

NAME = "fig05_convergence"
MODEL, GBIT = "resnet50", 20  # not said for this figure; the best pair in it is that of 20 Gbit/s in figure 3
STARTS = ["2,2", "8,3"]
WINDOWS = 10
SEEDS = 5
TUNERS = ("random", "bayesian", "descent", "twin", "metanet-published", "metanet")
DRAWN = ("metanet-published", "twin", "metanet")
METRIC = slice(10, 60)  # iterations

parser = sheet.options(__doc__, testbed=True)
parser.add_argument("--start", action="append", metavar="P,C", help="MB and multiple; replaces trial 0")
options = parser.parse_args()


def trial(place):
    """One run from one start: its speed every 5 iterations, and what it came to."""
    cost, architecture, start, tuner, seed = place
    job = jobs.job(MODEL, GBIT, architecture, cost=cost)
    first = jobs.pair(*(float(number) for number in start.split(",")))
    decisions = runs.run(job, tuner, seed, budget=WINDOWS, space=Space(default=first))
    in_force = [decision.measurement.config for decision in decisions] + [decisions[-1].config]
    grid = grids[cost, architecture]
    optimum = max(job.samples / grid.best_s, *(jobs.speed(job, config) for config in in_force))
    regret = [1 - jobs.speed(job, config) / optimum for config in in_force]
    cell = {"block_cost": cost, "architecture": architecture, "start": start, "tuner": tuner, "seed": seed}
    rows = [
        cell | {"iteration": iteration, "pair": jobs.label(config), "samples_per_s": speed}
        for iteration, config, speed in runs.speeds([d.measurement for d in decisions], job.samples)
    ]
    late = [index for index, value in enumerate(regret) if value > TOLERANCE]
    staying, best = (runs.still(job, config, seed, windows=WINDOWS) for config in (first, grid.best))
    fifty = runs.still(job, first, seed, windows=WINDOWS, part=METRIC)
    summary = cell | {
        "predictions": late[-1] + 1 if late else 0,  # until it stays within 3 %; one more than all: never
        "start_samples_per_s": jobs.speed(job, first),
        "end_samples_per_s": jobs.speed(job, in_force[-1]),
        "best_samples_per_s": optimum,
        "end_pair": jobs.label(in_force[-1]),
        "staying_with_noise": staying,
        "staying_first_fifty": fifty,  # iterations 10 to 60, the paper's metric
        "best_with_noise": best,
        "reconfigurations": sum(before != after for before, after in pairwise(in_force)),
    }
    return rows, summary


starts = options.start or STARTS
if options.testbed:
    import shaped

    NAME = f"{NAME}.testbed"
    if not options.redraw:
        shaped.convergence(NAME, MODEL, GBIT, starts, runs.installed(TUNERS[2:]), WINDOWS, options)
elif not options.redraw:
    places = list(product(jobs.BLOCK_COSTS, jobs.ARCHITECTURES))[: 1 if options.quick else None]
    grids = {place: survey(jobs.job(MODEL, GBIT, place[1], cost=place[0]), Space().grid()) for place in places}
    cells = [
        (*place, start, tuner, options.seed + seed)
        for place in places
        for start in starts
        for tuner in runs.installed(TUNERS)
        for seed in range(1 if options.quick else SEEDS)
    ]
    trials = runs.spread(trial, cells)
    sheet.write((row for rows, _ in trials for row in rows), NAME, options.out)
    sheet.write((row for _, row in trials), f"{NAME}.summary", options.out)

rows, ends = sheet.read(NAME, options.out), sheet.read(f"{NAME}.summary", options.out)
keys = [key for key in ("block_cost", "architecture") if key in rows]  # on links a block costs what it costs there
names = rows[keys].drop_duplicates().to_dict("records")
drawn = [tuner for tuner in DRAWN if tuner in set(rows["tuner"])]
size = {"rows": len(names), "columns": len(drawn), "sharex": True, "sharey": "row", "squeeze": False}
figure, axes = style.new(0.4 + 1.25 * len(names), width=style.PAGE, **size)
for panel, (place, tuner) in zip(axes.flat, product(names, drawn), strict=True):
    labels = {}
    speeds, finals = (sheet.where(table, tuner=tuner, **place) for table in (rows, ends))
    best = sheet.where(finals, seed=options.seed)["best_with_noise"].iloc[0]
    panel.axhline(best, color=style.INK, linewidth=0.8)
    labels["fastest window" if options.testbed else "optimum"] = (WINDOWS * WINDOW, best, style.INK)
    panel.margins(y=0.15)
    for at, (start, tint) in enumerate(
        zip(speeds["start"].unique(), (style.RED, style.BLUE, style.TEAL), strict=False)
    ):
        run = sheet.where(speeds, start=start, seed=options.seed)
        edges = [*run["iteration"], run["iteration"].iloc[-1] + 5]
        over_seeds = sheet.where(speeds, start=start).groupby("iteration")["samples_per_s"]
        style.band(panel, edges, over_seeds.min(), over_seeds.max(), tint)
        panel.stairs(
            run["samples_per_s"], edges, baseline=None, color=tint, linewidth=1.0 + 0.6 * at, zorder=3 - 0.1 * at
        )
        still = sheet.where(finals, start=start, seed=options.seed)["staying_with_noise"].iloc[0]
        panel.axhline(still, color=tint, linewidth=0.8, linestyle=(0, (1, 1)))
        labels[f"from ⟨{start}⟩"] = (WINDOWS * WINDOW, run["samples_per_s"].iloc[-1], tint)
        labels[f"staying at ⟨{start}⟩"] = (WINDOWS * WINDOW, still, tint)
        pairs = run["pair"].tolist()
        changes = [edges[i] for i in range(1, len(pairs)) if pairs[i] != pairs[i - 1]]
        how = {"transform": panel.get_xaxis_transform(), "color": tint, "linewidth": 1.5}
        panel.vlines(changes, 0.05 * at, 0.05 * at + 0.05, **how)
    panel.set_title(f"{style.NAMES[tuner]}, {'servers' if place['architecture'] == 'ps' else 'ring'}")
    panel.set_xlim(0, WINDOWS * WINDOW)
    if tuner == drawn[0]:
        start_up = f"{jobs.BLOCK_COSTS[place['block_cost']]}\n" if "block_cost" in place else ""
        panel.set_ylabel(f"{start_up}samples/s, ResNet50")
    if tuner == drawn[-1]:
        style.label_ends(panel, labels)
shaded = "; shaded: range over seeds" if rows["seed"].nunique() > 1 else ""
figure.supxlabel(f"iteration; ticks: reconfigurations{shaded}", fontsize=7)
style.save(figure, NAME, options.out / "figures", what="emulated" if options.testbed else "simulated")
