"""Where tuning at run time matters: what pairs that were picked before a change of links lose after it.

    python paper/when_tuning_matters.py        # 150 seconds

Simulated: ResNet50 at batch 64 on 8 workers. The links change so that communication / compute goes from one of five
ratios to another; compute stays. A block costs 0.09 or 0.92 ms beside its bytes; it holds the link meanwhile, or
arrives later, which a credit hides. Pairs are tied if their steps before the change, without jitter, differ from the
fastest by at most 2 %. Tuners search before the change, with jitter, and keep what they picked. Writes
data/when_tuning_matters.csv (a row for each change and setting: losses of the tied pairs and of every pick),
data/when_tuning_matters.picks.csv and figures/when_tuning_matters.{pdf,png}.
"""

from dataclasses import replace
from itertools import product

import changing
import jobs
import numpy as np
import runs
import sheet
import style
from matplotlib.colors import BoundaryNorm

from autobyte.comparison.carried import carry, ratio
from autobyte.comparison.truth import SteadyTruth
from autobyte.config import BYTESCHEDULER_DEFAULT, Space
from autobyte.simulator.effects import PLAIN

NAME = "when_tuning_matters"
MODEL, BATCH = "resnet50", 64
RATIOS = tuple(round(0.2 * 25 ** (k / 4), 2) for k in range(5))  # 0.2 … 5, evenly spread on the log scale
COSTS_MS, WHERE = (0.09, 0.92), ("held", "latency")
HOPS = {"ps": 2, "allreduce": 2 * (jobs.WORKERS - 1)}  # of a block: there and back, or around the ring twice
SEARCHES = ("bayesian", "grid", "bayesian-published", "optuna", "twin", "metanet-published", "metanet")
TITLES = {  # without ByteScheduler, released, which kept its default in all 80 searches
    "least": "best of\nthe ties",
    "mean": "mean of\nthe ties",
    "default": "Byte-\nScheduler,\ndefault",
    "bayesian-published": "BO,\nreleased\nsettings",
    "bayesian": "BO,\nrepaired",
    "robust": "BO,\nrobust",
    "optuna": "Optuna",
    "grid": "grid, as\nfar as it\ngets",
    "twin": "twin",
    "metanet-published": "AutoByte\nas\npublished",
    "metanet": "AutoByte",
}
LEVELS = (0, 1, 2, 5, 10, 20, 100)  # % lost: edges of the colours


def setting(place):
    """A job on links of 1 Gbit/s, and the space that tuners search."""
    cost_ms, where, fusion, architecture = place
    job = jobs.job(MODEL, 1, architecture, batch=BATCH)
    held_s, late_s = (1e-3 * cost_ms, 0.0) if where == "held" else (0.0, 1e-3 * cost_ms)
    cluster = replace(job.cluster, overhead_s=(held_s, 0.0), latency_s=late_s / HOPS[architecture])
    default = replace(BYTESCHEDULER_DEFAULT, knobs={"fusion": 1.0} if fusion else {})
    return replace(job, cluster=cluster), Space(default=default)


def at_ratio(job, at):
    """The same on links on which communication / compute is that."""
    rate = (ratio(job) / at * jobs.rate(1),)
    return replace(job, cluster=replace(job.cluster, up_bytes_per_s=rate, down_bytes_per_s=rate))


def picked(job, space, seed):
    """The pair that each tuner has in force at the end of its search."""
    own = {name: replace(runs.spaced(name)[1], default=space.default) for name in runs.installed(SEARCHES)}
    searched = {name: runs.run(job, name, seed, space=own[name]) for name in own}
    picks = {name: decisions[-1].config for name, decisions in searched.items()}
    return {"default": space.default, "robust": changing.robust(searched["bayesian"])} | picks


def searches(cell):
    """All picks before a change."""
    *place, before = cell
    job, space = setting(place)
    return picked(at_ratio(job, before), space, options.seed)


def losses(cell):
    """What ties and picks lose, for every change in one setting: a row for each."""
    place, picks = cell
    job, space = setting(place)
    states = {at: SteadyTruth(at_ratio(job, at), space.grid(), PLAIN) for at in picks}
    rows = []
    for before, after in product(states, states):
        tied, best_s = carry(states[before], states[after]), states[after].best_s
        lost = {"mean": tied.mean, "least": tied.loss.min(), "most": tied.loss.max()}
        # a pick that is faster than all of the grid loses nothing
        lost |= {name: max(0.0, 1 - best_s / states[after].step_s[pick]) for name, pick in picks[before].items()}
        rows.append(named(place) | {"before": before, "after": after, "tied": len(tied.configs)} | lost)
    return rows


def named(place):
    """A setting as columns."""
    return dict(zip(("cost_ms", "where", "fusion", "architecture"), place, strict=True))


options = sheet.options(__doc__).parse_args()
if not options.redraw:
    ratios = RATIOS[:3:2] if options.quick else RATIOS
    places = list(product(COSTS_MS, WHERE, changing.FUSIONS, jobs.ARCHITECTURES))
    places = places[-1:] if options.quick else places
    cells = [(*place, before) for place in places for before in ratios]
    picks = dict(zip(cells, runs.spread(searches, cells), strict=True))
    carried = [(place, {before: picks[(*place, before)] for before in ratios}) for place in places]
    sheet.write((row for rows in runs.spread(losses, carried) for row in rows), NAME, options.out)
    chosen = (
        named(cell[:-1]) | {"before": cell[-1], "tuner": tuner, "pair": jobs.label(pick)}
        for cell, tuners in picks.items()
        for tuner, pick in tuners.items()
    )
    sheet.write(chosen, f"{NAME}.picks", options.out)

rows = sheet.read(NAME, options.out)
shown = sorted(rows["before"].unique())
shades, side = BoundaryNorm(LEVELS, 256), len(shown) + 1  # a square of changes, and a gap


def square(who, **where):
    """Losses of who picked (%): before the change across, after it down."""
    return 100 * sheet.where(rows, **where).pivot(index="after", columns="before", values=who).to_numpy()


groups = [(a, fusion) for a in jobs.ARCHITECTURES for fusion in (1, 0)]
groups = [each for each in groups if not sheet.where(rows, architecture=each[0], fusion=each[1]).empty]
lines = [each for each in product(COSTS_MS, WHERE) if not sheet.where(rows, cost_ms=each[0], where=each[1]).empty]
heights = [*([0.34 * len(lines)] * len(groups)), 1.2]
figure, axes = style.new(
    sum(heights) + 1.2, rows=len(heights), width=style.PAGE, gridspec_kw={"height_ratios": heights}
)
figure.get_layout_engine().set(h_pad=0.06)
titles, blank = list(TITLES.values()), [""] * len(TITLES)
for place, (architecture, fusion) in zip(axes, groups, strict=False):
    mosaic = np.full((side * len(lines) - 1, side * len(TITLES) - 1), np.nan)
    for (y, (cost_ms, where)), (x, who) in product(enumerate(lines), enumerate(TITLES)):
        of = {"cost_ms": cost_ms, "where": where, "fusion": fusion, "architecture": architecture}
        mosaic[side * y : side * (y + 1) - 1, side * x : side * (x + 1) - 1] = square(who, **of)[::-1]
    place.imshow(mosaic, cmap="cividis_r", norm=shades, aspect="auto", interpolation="nearest")
    place.set_yticks([side * (y + 0.5) - 1 for y in range(len(lines))], [f"{ms:g} ms, {how}" for ms, how in lines])
    place.set_xticks([side * (x + 0.5) - 1 for x in range(len(TITLES))], titles if place is axes[0] else blank)
    place.tick_params(length=0, labeltop=True, labelbottom=False)
    place.spines[:].set_visible(False)
    place.set_ylabel(f"{jobs.ARCHITECTURES[architecture]}\n{'fused' if fusion else 'not fused'}")

# The key: one square, enlarged
architecture, fusion = groups[0]
cost_ms, where = lines[0]
key = axes[-1]
key.set_axis_off()
inset = key.inset_axes((0.14, 0.0, 0.3, 0.88))
percent = square("mean", cost_ms=cost_ms, where=where, fusion=fusion, architecture=architecture)
image = inset.imshow(percent, cmap="cividis_r", norm=shades, origin="lower", aspect="auto")
for y, x in np.ndindex(percent.shape):
    ink = "white" if percent[y, x] > 10 else "black"
    inset.text(x, y, f"{percent[y, x]:.0f}", ha="center", va="center", fontsize=6, color=ink)
inset.set_xticks(range(len(shown)), [f"{at:g}" for at in shown])
inset.set_yticks(range(len(shown)), [f"{at:g}" for at in shown])
inset.tick_params(length=0)
inset.set_xlabel("communication / compute before the change")
inset.set_ylabel("and after it")
inset.set_title("a square, enlarged: the first, mean of the ties")
bar = key.inset_axes((0.6, 0.5, 0.38, 0.12))
figure.colorbar(image, cax=bar, orientation="horizontal", label="lost of the best speed after the change (%)")
style.save(figure, NAME, options.out / "figures")
