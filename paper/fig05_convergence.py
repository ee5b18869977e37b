"""Figure 5: from two bad starts to the best pair, ResNet50, a prediction every 10 iterations, or 5.

    python paper/fig05_convergence.py                             # 1 minute
    python paper/fig05_convergence.py --testbed                   # 10 minutes, Linux and root
    python paper/fig05_convergence.py --start 2,2 --start 8,3

Simulated. Writes data/fig05_convergence.csv (speeds, those of the optimum, too), data/fig05_convergence.summary.csv
(what each run came to, and predictions until it was within 3 % of the best) and figures/fig05_convergence.{pdf,png};
on shaped links the same, as fig05_convergence.testbed.
"""

from itertools import pairwise, product

import changing
import jobs
import runs
import sheet
import style

from autobyte import models
from autobyte.comparison.judge import TOLERANCE
from autobyte.config import Space
from autobyte.scenario import STEADY
from autobyte.tuning import WINDOW

NAME = "fig05_convergence"
MODEL, GBIT = "resnet50", 20  # not said for this figure; the best pair in it is that of 20 Gbit/s in figure 3
STARTS = ["2,2", "8,3"]
WINDOWS = 10
SEEDS = 5
TUNERS = ("random", "bayesian", "descent", "twin", "metanet-published", "metanet")
DRAWN = ("metanet-published", "twin", "metanet")
RUN = ("block_cost", "architecture", "start", "tuner", "seed")

parser = sheet.options(__doc__, testbed=True)
parser.add_argument("--start", action="append", metavar="P,C", help="MB and multiple; replaces trial 0")
options = parser.parse_args()


def trial(place):
    """One run from one start: its speed every 5 iterations, and the pairs that were in force."""
    cost, architecture, start, tuner, seed = place
    space = Space(default=pair_of(start))
    decisions = runs.run(jobs.job(MODEL, GBIT, architecture, cost=cost), tuner, seed, budget=WINDOWS, space=space)
    windows = [decision.measurement for decision in decisions]
    return runs.speeds(windows, cell_of(place).job.samples), [*(w.config for w in windows), decisions[-1].config]


def pair_of(start):
    """The pair of a start."""
    return jobs.pair(*(float(number) for number in start.split(",")))


def cell_of(place):
    """The world of a run, as figure 6 has it, but that it does not change."""
    cost, architecture, *_, seed = place
    return changing.Cell(STEADY, GBIT, WINDOWS, cost, 0, models.load(MODEL).batch_size, architecture, MODEL, seed)


def judged(place):
    """The best of a world, with its jitter, of the grid and of all pairs that a run had in force there."""
    there = {run: of_run for run, of_run in trials.items() if (*run[:2], run[-1]) == place}
    pairs = [config for _, in_force in there.values() for config in in_force]
    truth = changing.Truth(cell_of(place), [*map(pair_of, starts), *pairs], Space().grid())
    seen = zip(truth.of_slots(), *(of_run for of_run, _ in there.values()), strict=True)
    slots = [max(rows, key=lambda row: row[2]) for rows in seen]
    speeds = truth.of_run()
    return slots, [summary(run, in_force, speeds, max(speeds.values())) for run, (_, in_force) in there.items()]


def summary(place, in_force, speeds, best):
    """What a run came to; speeds are those of its world, where a pair never changes."""
    late = [index for index, config in enumerate(in_force) if speeds[config] < (1 - TOLERANCE) * best]
    first = in_force[0]
    return dict(zip(RUN, place, strict=True)) | {
        "predictions": late[-1] + 1 if late else 0,  # until it stays within 3 %; one more than all: never
        "start_samples_per_s": speeds[first],
        "end_samples_per_s": speeds[in_force[-1]],
        "best_samples_per_s": best,
        "end_pair": jobs.label(in_force[-1]),
        "staying_first_fifty": runs.still(cell_of(place).job, first, place[-1], windows=WINDOWS, part=runs.METRIC),
        "reconfigurations": sum(before != after for before, after in pairwise(in_force)),
    }


starts = options.start or STARTS
if options.testbed:
    import shaped

    NAME = f"{NAME}.testbed"
    if not options.redraw:
        shaped.convergence(NAME, MODEL, GBIT, starts, runs.installed(TUNERS[2:]), WINDOWS, options)
elif not options.redraw:
    places = list(product(jobs.BLOCK_COSTS, jobs.ARCHITECTURES))[: 1 if options.quick else None]
    seeds = [options.seed + seed for seed in range(1 if options.quick else SEEDS)]
    cells = [(*place, *each) for place in places for each in product(starts, runs.installed(TUNERS), seeds)]
    trials = dict(zip(cells, runs.spread(trial, cells), strict=True))
    worlds = [(*place, seed) for place in places for seed in seeds]
    truths = runs.spread(judged, worlds)
    speeds = {cell: of_run for cell, (of_run, _) in trials.items()}
    speeds |= {(*world[:2], "", "oracle", world[2]): slots for world, (slots, _) in zip(worlds, truths, strict=True)}
    rows = (
        dict(zip(RUN, cell, strict=True)) | {"iteration": at, "pair": jobs.label(config), "samples_per_s": speed}
        for cell, of_run in speeds.items()
        for at, config, speed in of_run
    )
    sheet.write(rows, NAME, options.out)
    sheet.write((row for _, summaries in truths for row in summaries), f"{NAME}.summary", options.out)

rows, ends = sheet.read(NAME, options.out), sheet.read(f"{NAME}.summary", options.out)
keys = [key for key in ("block_cost", "architecture") if key in rows]  # on links a block costs what it costs there
names = rows[keys].drop_duplicates().to_dict("records")
drawn = [tuner for tuner in DRAWN if tuner in set(rows["tuner"])]
size = {"rows": len(names), "columns": len(drawn), "sharex": True, "sharey": "row", "squeeze": False}
figure, axes = style.new(0.4 + 1.25 * len(names), width=style.PAGE, **size)
for panel, (place, tuner) in zip(axes.flat, product(names, drawn), strict=True):
    labels = {}
    speeds, finals = (sheet.where(table, tuner=tuner, **place) for table in (rows, ends))
    best = sheet.where(rows, tuner="oracle", seed=options.seed, **place)
    if best.empty:  # on links
        fastest = finals["best_samples_per_s"].iloc[0]
        panel.axhline(fastest, color=style.INK, linewidth=0.8)
        labels["fastest window"] = (WINDOWS * WINDOW, fastest, style.INK)
    else:
        edges = [*best["iteration"], WINDOWS * WINDOW]
        panel.stairs(best["samples_per_s"], edges, baseline=None, linewidth=0.8, **style.look("bound"))
        labels["optimum"] = (WINDOWS * WINDOW, best["samples_per_s"].iloc[-1], style.INK)
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
        still = sheet.where(finals, start=start, seed=options.seed)["start_samples_per_s"].iloc[0]
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
