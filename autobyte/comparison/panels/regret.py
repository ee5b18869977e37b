"""How the regret falls: one curve for each tuner, named where it ends; of many tuners, a small panel for each."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes

from autobyte.comparison.judge import TOLERANCE
from autobyte.comparison.panels import labels
from autobyte.comparison.panels.look import COLOURS, MUTED, Outcome, look, mark_changes, wrapped
from autobyte.tuning import WINDOW

TICKS = (0.0, 0.01, TOLERANCE, 0.1, 0.3, 1.0)
FEW_TICKS = (0.0, TOLERANCE, 1.0)  # of a small panel
MOST_TOGETHER = len(COLOURS)  # curves in one panel: no two of one colour
PANEL, LINE, GAP = 0.4, 0.12, 0.08  # inches: of a small panel, a line of its names, and between rows
ACROSS = 2  # small panels in a row
NAMES_WIDTH = 24  # characters over a small panel

Curve = tuple[float, ...]


def draw_regret(axes: Axes, outcome: Outcome) -> None:
    """Draw the median regret of the config in force after each decision.

    Curves that coincide are drawn once, with all their names. The scale is linear up to 3 % and logarithmic above.
    More than five curves have a small panel each, those with the least regret at the end first; there the others are
    grey. `regret_height` is how high the axes should be.
    """
    draw = _draw_apart if apart(outcome) else _draw_together
    draw(axes, outcome, coinciding(outcome))


def apart(outcome: Outcome) -> bool:
    """Whether there are too many curves for one panel."""
    return len(coinciding(outcome)) > MOST_TOGETHER


def regret_height(outcome: Outcome, *, together: float = 1.7) -> float:
    """Of the axes of `draw_regret` (inches); `together` where one panel holds all curves."""
    if not apart(outcome):
        return together
    curves = coinciding(outcome)
    return math.ceil(len(curves) / ACROSS) * _row_height(outcome, curves)


def _draw_together(axes: Axes, outcome: Outcome, curves: Mapping[Curve, Sequence[int]]) -> None:
    axes.axhline(TOLERANCE, color=MUTED, linewidth=0.7, linestyle=(0, (4, 3)), zorder=1)
    mark_changes(axes, outcome)
    for curve, tuners in curves.items():
        at, looks = _iterations(curve), look(tuners[0])
        axes.step(at, curve, where="post", zorder=3 - 0.01 * tuners[0], clip_on=False, **looks)
        axes.plot(at[-1:], curve[-1:], "o", markersize=3, color=looks["color"], clip_on=False, zorder=4)
    _set_scales(axes, max(map(max, curves)), WINDOW * max(map(len, curves)))
    names = ["\n".join(_names(outcome, tuners, 12)) for tuners in curves.values()]
    _name_ends(axes, [curve[-1] for curve in curves], names, [look(tuners[0]) for tuners in curves.values()])


def _draw_apart(axes: Axes, outcome: Outcome, curves: Mapping[Curve, Sequence[int]]) -> None:
    """Small panels, two in a row, which use the margin to the right as well."""
    axes.set_axis_off()
    axes.set(xticks=[], yticks=[])
    best_first = sorted(curves, key=lambda curve: (curve[-1], sum(curve)))
    rows, row_inches = math.ceil(len(curves) / ACROSS), _row_height(outcome, curves)
    for place, curve in enumerate(best_first):
        row, column = divmod(place, ACROSS)
        bottom = (rows - 1 - row) / rows
        panel = axes.inset_axes((0.73 * column, bottom, 0.65, PANEL / row_inches / rows))
        for other in best_first:
            panel.step(_iterations(other), other, where="post", color=MUTED, alpha=0.3, linewidth=0.4)
        panel.step(_iterations(curve), curve, where="post", color=COLOURS[0], linewidth=1.4, zorder=3)
        panel.plot(
            _iterations(curve)[-1:], curve[-1:], "o", markersize=2.4, color=COLOURS[0], clip_on=False, zorder=4
        )
        panel.axhline(TOLERANCE, color=MUTED, linewidth=0.6, linestyle=(0, (4, 3)), zorder=1)
        mark_changes(panel, outcome)
        _set_scales(panel, 1.0, WINDOW * max(map(len, curves)), ticks=FEW_TICKS)
        panel.set_ylabel("")
        panel.tick_params(labelsize=5.5, pad=1.5, labelleft=column == 0)
        if place + ACROSS < len(curves):
            panel.tick_params(labelbottom=False)
            panel.set_xlabel("")
        name = "\n".join(_names(outcome, curves[curve], NAMES_WIDTH))
        panel.text(0, 1.04, name, transform=panel.transAxes, va="bottom", fontsize=6.5, linespacing=1.1)
    axes.text(-0.205, 0.5, "regret", transform=axes.transAxes, rotation=90, ha="right", va="center")


def _row_height(outcome: Outcome, curves: Mapping[Curve, Sequence[int]]) -> float:
    """Of a row of small panels with their names (inches)."""
    return PANEL + LINE * max(len(_names(outcome, tuners, NAMES_WIDTH)) for tuners in curves.values()) + GAP


def _names(outcome: Outcome, tuners: Sequence[int], width: int) -> list[str]:
    return wrapped([outcome["tuners"][index]["name"] for index in tuners], width)


def _iterations(curve: Curve) -> Any:
    return WINDOW * np.arange(1, len(curve) + 1)


def coinciding(outcome: Outcome) -> dict[Curve, list[int]]:
    """Every curve, and the tuners whose curve it is, by their places in the table."""
    curves: dict[Curve, list[int]] = {}
    for index, tuner in enumerate(outcome["tuners"]):
        curves.setdefault(tuple(tuner["regret_curve"]), []).append(index)
    return curves


def _set_scales(axes: Axes, most: float, end: int, *, ticks: Sequence[float] = TICKS) -> None:
    axes.set_yscale("symlog", linthresh=TOLERANCE, linscale=0.7)
    top = next(tick for tick in TICKS[3:] if tick >= most)
    axes.set_ylim(-0.001, top)
    shown = [tick for tick in ticks if tick <= top]
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
