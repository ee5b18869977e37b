"""What searching cost: the time that each tuner lost against the optimum."""

from typing import Any

from matplotlib import ticker
from matplotlib.axes import Axes

from autobyte.comparison.panels.look import INK, MUTED, Outcome, colour, wrapped
from autobyte.units import format_seconds

LINEAR = 1.0  # steps of the optimum up to which the scale is linear
NAMES_WIDTH = 20  # characters


def draw_cost(axes: Axes, outcome: Outcome) -> None:
    """Draw a bar for each tuner, the median of all runs, with a line from the 10th to the 90th percentile.

    The least is on top. Names stand on the left, numbers on the right. A diamond is what a search before a scenario
    cost besides.
    """
    tuners = outcome["tuners"]
    box = axes.get_position()
    axes.set_position((0.34, box.y0, 0.5, box.height))
    by_cost = sorted(range(len(tuners)), key=lambda index: tuners[index]["search_cost_s"])
    for place, index in enumerate(by_cost):
        tuner = tuners[index]
        axes.barh(place, tuner["search_cost_s"], height=0.62, color=colour(outcome, index), alpha=0.85)
        low, high = tuner["spread"].get("search_cost_s", [tuner["search_cost_s"]] * 2)
        axes.plot([low, high], [place, place], color=INK, linewidth=0.9)
        if tuner.get("before_cost_s") is not None:
            axes.plot([tuner["before_cost_s"]], [place], "D", markersize=3.2, color=INK, markerfacecolor="none")
        lines = wrapped([tuner["name"]], NAMES_WIDTH)
        beside: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center"}
        axes.text(-0.03, place, "\n".join(lines), ha="right", fontsize=7 / max(1, len(lines)), **beside)
        axes.text(1.03, place, _lost(tuner["search_cost_s"]), **beside)
    axes.axvline(0, color=MUTED, linewidth=0.6)
    axes.set_xscale("symlog", linthresh=LINEAR * _best_s(outcome), linscale=0.5)
    axes.set_ylim(len(tuners) - 0.5, -0.5)
    axes.yaxis.set_major_locator(ticker.NullLocator())
    ticks = ticker.SymmetricalLogLocator(base=10, linthresh=LINEAR * _best_s(outcome))
    ticks.set_params(numticks=4)
    axes.xaxis.set_major_locator(ticks)
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: _seconds(value, least_s=_best_s(outcome))))
    axes.set_xlabel("time lost")
    axes.spines[["top", "right", "left"]].set_visible(False)


def _seconds(value: float, *, least_s: float) -> str:
    """A tick, but none where the scale is linear: there they would overlap with the one of 0."""
    if 0 < abs(value) < least_s:
        return ""
    return _lost(value)


def _lost(seconds: float) -> str:
    return ("−" if seconds < 0 else "") + format_seconds(abs(seconds)) if seconds else "0"


def _best_s(outcome: Outcome) -> float:
    job = outcome["job"]
    return float(job["batch_size"] * job["workers"] * job["accumulation"] / outcome["optimum"]["samples_per_s"])
