"""Where tuning at run time matters: what pairs that are tied before a change of links lose after it.

    python paper/when_tuning_matters.py        # 20 seconds

Simulated: ResNet50 at batch 64 on 8 workers. The links change so that communication / compute goes from one of seven
ratios to another; compute stays. Pairs are tied if their steps differ from the fastest by at most 2 %. Writes
data/when_tuning_matters.csv and figures/when_tuning_matters.{pdf,png}: a row for each pair of ratios, architecture,
block cost and fusion, with the loss of the tied pairs: their mean, the least and the most.
"""

from dataclasses import replace
from itertools import product

import changing
import jobs
import numpy as np
import runs
import sheet
import style

from autobyte.comparison.carried import carry, ratio
from autobyte.comparison.truth import SteadyTruth
from autobyte.config import BYTESCHEDULER_DEFAULT, Space
from autobyte.simulator.effects import PLAIN

NAME = "when_tuning_matters"
MODEL, BATCH = "resnet50", 64
RATIOS = tuple(round(0.2 * 25 ** (k / 6), 2) for k in range(7))  # 0.2 … 5, evenly spread on the log scale
DRAWN = {"mean": "mean of tied pairs", "least": "best tied pair"}
FEW = 3  # tied pairs: their mean says little


def truth(cost, fusion, architecture, at):
    """Noise-free step times of the grid, on links on which communication / compute is that."""
    space = Space(default=replace(BYTESCHEDULER_DEFAULT, knobs={"fusion": 1.0} if fusion else {}))
    job = jobs.job(MODEL, 1, architecture, batch=BATCH, cost=cost)
    rate = (ratio(job) / at * jobs.rate(1),)
    cluster = replace(job.cluster, up_bytes_per_s=rate, down_bytes_per_s=rate)
    return SteadyTruth(replace(job, cluster=cluster), space.grid(), PLAIN)


def measured(place):
    """All changes at one cost of a block, fused or not, on one architecture."""
    cost, fusion, architecture = place
    states = {at: truth(*place, at) for at in ratios}
    rows = []
    for before, after in product(ratios, ratios):
        tied = carry(states[before], states[after])
        cell = {"block_cost": cost, "fusion": fusion, "architecture": architecture, "before": before, "after": after}
        lost = {"mean": tied.mean, "least": tied.loss.min(), "most": tied.loss.max()}
        rows.append(cell | {"tied": len(tied.configs)} | lost)
    return rows


options = sheet.options(__doc__).parse_args()
ratios = RATIOS[::3] if options.quick else RATIOS
if not options.redraw:
    cells = list(product(jobs.BLOCK_COSTS, changing.FUSIONS, jobs.ARCHITECTURES))
    cells = cells[-1:] if options.quick else cells
    sheet.write((row for rows in runs.spread(measured, cells) for row in rows), NAME, options.out)

rows = sheet.read(NAME, options.out)
columns = [(a, cost) for a in jobs.ARCHITECTURES for cost in jobs.BLOCK_COSTS]
lines = [(fusion, key) for fusion in (0, 1) for key in DRAWN]
figure, axes = style.new(7.3, rows=len(lines), columns=len(columns), sharex=True, sharey=True, width=style.PAGE)
for row_axes, (fusion, key) in zip(axes, lines, strict=True):
    for place, (architecture, cost) in zip(row_axes, columns, strict=True):
        cells = sheet.where(rows, block_cost=cost, fusion=fusion, architecture=architecture)
        if cells.empty:
            place.set_axis_off()
            continue
        percent = 100 * cells.pivot(index="after", columns="before", values=key).to_numpy()
        tied = cells.pivot(index="after", columns="before", values="tied").to_numpy()
        place.imshow(percent, cmap="cividis_r", vmin=0, vmax=20, origin="lower", aspect="auto")
        for y, x in np.ndindex(percent.shape):
            ink = "white" if percent[y, x] > 10 else "black"
            few = "*" if tied[y, x] <= FEW else ""
            place.text(x, y, f"{percent[y, x]:.0f}{few}", ha="center", va="center", fontsize=5.5, color=ink)
        shown = [f"{at:.2g}" for at in sorted(cells["before"].unique())]
        place.set_xticks(range(len(shown)), shown, fontsize=5.5)
        place.set_yticks(range(len(shown)), shown, fontsize=5.5)
        place.tick_params(length=0)
        place.spines[:].set_visible(False)
        if (fusion, key) == lines[0]:
            place.set_title(f"{jobs.ARCHITECTURES[architecture]}\n{jobs.BLOCK_COSTS[cost]}", fontsize=6.5)
    row_axes[0].set_ylabel(f"{'fused' if fusion else 'not fused'}, {DRAWN[key]}", fontsize=6.5)
figure.supxlabel(
    "communication / compute before the change (across) and after it (up)\n"
    f"what pairs that are tied before it lose of the best speed after it, in %; *: at most {FEW} pairs are tied",
    fontsize=7,
)
style.save(figure, NAME, options.out / "figures")
