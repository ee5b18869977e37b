"""Figure 3: speed over ⟨S_p, S_c⟩ for four models, and for ResNet50 at four bandwidths: which is best.

    python paper/fig03_optimal_pairs.py              # 30 seconds
    python paper/fig03_optimal_pairs.py --testbed    # 5 seconds, from what `make grid` recorded

Simulated, at two costs of a block. Writes data/fig03_optimal_pairs.csv (the 16 pairs of every panel),
data/fig03_optimal_pairs.best.csv (the best of them, and what lies beyond) and figures/fig03_optimal_pairs.{pdf,png}.
On the testbed: six partitions and four credits, 4 hosts, sizes scaled; data/fig03_optimal_pairs.testbed.csv and
figures of the same name.
"""

import jobs
import numpy as np
import runs
import sheet
import style
from matplotlib.patches import Rectangle

from autobyte.bound import bound_s
from autobyte.config import BYTESCHEDULER_DEFAULT, Space
from autobyte.simulator.landscape import survey
from autobyte.simulator.steady import reference_s

NAME = "fig03_optimal_pairs"
PARTITIONS_MB = (1, 2, 4, 8)
CREDITS = (1, 2, 3, 4)
# The paper does not say at which bandwidth it compares models, nor on which architecture. Its best pair for ResNet50
# is the one of 20 Gbit/s in its other panel; so 20 Gbit/s, and both architectures.
MODELS_GBIT = 20
BY_MODEL = {"resnet50": (1, 4), "vgg16": (4, 1), "alexnet": (1, 1), "densenet121": (8, 2)}  # the paper's best pairs
BY_GBIT = {20: (1, 4), 8: (1, 2), 5: (4, 2), 3: (4, 2)}


def measured(cell):
    """A panel on one architecture at one cost of a block: its 16 pairs, and what is known besides."""
    cost, architecture, panel, model, gbit, published = cell
    job = jobs.job(model, gbit, architecture, cost=cost)
    place = {"block_cost": cost, "architecture": architecture, "panel": panel, "model": model, "gbit": gbit}
    speeds = {(mb, credit): jobs.speed(job, jobs.pair(mb, credit)) for mb in PARTITIONS_MB for credit in CREDITS}
    rows = [
        place | {"partition_mb": mb, "credit_ratio": credit, "samples_per_s": speed}
        for (mb, credit), speed in speeds.items()
    ]
    ours = max(speeds, key=lambda pair: speeds[pair])
    grid = survey(job, Space().grid())
    return rows, (
        place
        | {"published": f"⟨{published[0]},{published[1]}⟩", "ours": f"⟨{ours[0]},{ours[1]}⟩"}
        | {"spread": max(speeds.values()) / min(speeds.values()) - 1}
        | {"loss_of_published": 1 - speeds[published] / speeds[ours], "best_of_16": speeds[ours]}
        | {"pair_of_304": jobs.label(grid.best), "best_of_304": job.samples / grid.best_s}
        | {"bytescheduler_default": jobs.speed(job, BYTESCHEDULER_DEFAULT)}
        | {"ddp_best": job.samples / reference_s(job), "bound": job.samples / bound_s(job)}
    )


options = sheet.options(__doc__, testbed=True).parse_args()
panels = [("a", model, MODELS_GBIT, pair) for model, pair in BY_MODEL.items()]
panels += [("b", "resnet50", gbit, pair) for gbit, pair in BY_GBIT.items()]
if options.testbed:
    import shaped

    if not options.redraw:
        shaped.grids(f"{NAME}.testbed", options)
    shaped.draw_grids(f"{NAME}.testbed", options.out)
    raise SystemExit
if not options.redraw:
    cells = [
        (cost, architecture, *panel)
        for cost in jobs.BLOCK_COSTS
        for architecture in jobs.ARCHITECTURES
        for panel in (panels[:1] if options.quick else panels)
    ]
    panels_measured = runs.spread(measured, cells)
    sheet.write((row for rows, _ in panels_measured for row in rows), NAME, options.out)
    sheet.write((row for _, row in panels_measured), f"{NAME}.best", options.out)

rows, best = sheet.read(NAME, options.out), sheet.read(f"{NAME}.best", options.out)
figure, axes = style.new(4.1, rows=4, columns=8, sharex=True, sharey=True, width=style.PAGE)
for place in axes.flat:
    place.set_axis_off()
places = [place for half in (axes[:, :4], axes[:, 4:]) for place in half.flat]  # one cost beside the other
if len(best) == 4:  # of --quick
    places = [axes[row, column] for column in (0, 4) for row in (0, 2)]
for place, row in zip(places, best.to_dict("records"), strict=False):
    place.set_axis_on()
    cells = sheet.where(rows, **{key: row[key] for key in ("block_cost", "architecture", "panel", "model", "gbit")})
    percent = 100 / row["best_of_16"] * cells["samples_per_s"].to_numpy().reshape(4, 4).T
    place.imshow(percent, cmap="cividis", vmin=50, vmax=100, origin="lower", aspect="auto")
    for y, x in np.ndindex(4, 4):
        ink = "black" if percent[y, x] > 80 else "white"
        place.text(x, y, f"{percent[y, x]:.0f}", ha="center", va="center", fontsize=5.5, color=ink)
    for pair, dashes in ((row["published"], (0, (1.5, 1))), (row["ours"], "-")):
        mb, credit = (int(number) for number in pair.strip("⟨⟩").split(","))
        corner = (PARTITIONS_MB.index(mb) - 0.5, CREDITS.index(credit) - 0.5)
        place.add_patch(
            Rectangle(corner, 1, 1, fill=False, clip_on=False, color=style.RED, linewidth=1.5, linestyle=dashes)
        )
    place.set_title(style.MODELS[row["model"]] if row["panel"] == "a" else f"{row['gbit']} Gbit/s", fontsize=6.5)
    place.set_xticks(range(4), [f"{mb}" for mb in PARTITIONS_MB])
    place.set_yticks(range(4), [f"{credit}X" for credit in CREDITS])
    place.tick_params(length=0)
    place.spines[:].set_visible(False)
    if place in axes[:, 0]:
        what = f"{MODELS_GBIT} Gbit/s" if row["panel"] == "a" else "ResNet50"
        place.set_ylabel(f"{jobs.ARCHITECTURES[row['architecture']]}\n({row['panel']}) {what}", fontsize=6.5)
for column in (0, 4):
    title = axes[0, column].get_title(loc="left")
    axes[0, column].set_title(f"\n{title}", fontsize=6.5)  # room for what follows
figure.supxlabel(
    "partition (MB), credit; speed in % of the best of 16; red: our best; dashed: the best in the paper", fontsize=7
)
figure.draw_without_rendering()  # sets the layout
for column, cost in zip((0, 4), jobs.BLOCK_COSTS, strict=True):
    left = axes[0, column].get_position().x0
    figure.text(left, 0.995, f"{jobs.BLOCK_COSTS[cost]}, in all four columns", va="top", fontsize=7.5)
style.save(figure, NAME, options.out / "figures")
