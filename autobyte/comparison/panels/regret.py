"""How the regret falls: one curve for each tuner, named where it ends."""

from typing import Any

import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes

from autobyte.comparison.judge import TOLERANCE
from autobyte.comparison.panels import labels
from autobyte.comparison.panels.look import MUTED, Outcome, look, mark_changes, wrapped
from autobyte.tuning import WINDOW

TICKS = (0.0, 0.01, TOLERANCE, 0.1, 0.3, 1.0)


def draw_regret(axes: Axes, outcome: Outcome) -> None:
    """Draw the median regret of the config in force after each decision.

    Curves that coincide are drawn once, with all their names. The scale is linear up to 3 % and logarithmic above.
    """
    curves = coinciding(outcome)
    axes.axhline(TOLERANCE, color=MUTED, linewidth=0.7, linestyle=(0, (4, 3)), zorder=1)
    mark_changes(axes, outcome)
    for curve, tuners in curves.items():
        at, looks = WINDOW * np.arange(1, len(curve) + 1), look(tuners[0])
        axes.step(at, curve, where="post", zorder=3 - 0.01 * tuners[0], clip_on=False, **looks)
        axes.plot(at[-1:], curve[-1:], "o", markersize=3, color=looks["color"], clip_on=False, zorder=4)
    _set_scales(axes, max(map(max, curves)), WINDOW * max(map(len, curves)))
    names = ["\n".join(wrapped([outcome["tuners"][i]["name"] for i in tuners], 12)) for tuners in curves.values()]
    _name_ends(axes, [curve[-1] for curve in curves], names, [look(tuners[0]) for tuners in curves.values()])


def coinciding(outcome: Outcome) -> dict[tuple[float, ...], list[int]]:
    """Every curve, and the tuners whose curve it is, by their places in the table."""
    curves: dict[tuple[float, ...], list[int]] = {}
    for index, tuner in enumerate(outcome["tuners"]):
        curves.setdefault(tuple(tuner["regret_curve"]), []).append(index)
    return curves


def _set_scales(axes: Axes, most: float, end: int) -> None:
    axes.set_yscale("symlog", linthresh=TOLERANCE, linscale=0.7)
    top = next(tick for tick in TICKS[3:] if tick >= most)
    axes.set_ylim(-0.001, top)
    shown = [tick for tick in TICKS if tick <= top]
    axes.set_yticks(shown, [f"{100 * tick:g} %" for tick in shown])
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.set_xlim(0, 1.02 * end)
    axes.set_xticks([tick for tick in ticker.MaxNLocator(5, integer=True).tick_values(0, end) if tick <= end])
    axes.set_xlabel("iteration")
    axes.set_ylabel("regret")
    axes.yaxis.set_label_coords(-0.205, 0.5)
    axes.spines[["top", "right"]].set_visible(False)


def _name_ends(axes: Axes, ends: list[float], names: list[str], looks: list[dict[str, Any]]) -> None:
    """Name curves in a column to the right of where they end."""
    height = axes.get_window_extent().height * 72 / axes.figure.dpi
    shares = axes.transAxes.inverted().transform(axes.transData.transform([(0, end) for end in ends]))[:, 1]
    lines = [1 + name.count("\n") for name in names]
    size = min(7.0, 0.8 * (height + 12) / sum(lines))
    order = range(len(ends))[::-1]  # of equal ends the first is on top
    wanted, heights = [height * shares[i] for i in order], [1.25 * size * lines[i] for i in order]
    for i, centre in zip(order, labels.spread(wanted, heights, low=-6, high=height + 6), strict=True):
        y = centre / height
        bend = [(1.01, shares[i]), (1.04, y), (1.08, y)]
        axes.plot(*zip(*bend, strict=True), transform=axes.transAxes, clip_on=False, **looks[i] | {"linewidth": 1})
        axes.text(1.095, y, names[i], transform=axes.transAxes, va="center", fontsize=size, linespacing=1.1)
