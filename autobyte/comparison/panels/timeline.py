"""What every tuner ran, when: the mean step time of each window of one run, and where the config changed."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib import ticker
from matplotlib.axes import Axes

from autobyte.comparison.panels.look import INK, MUTED, Outcome, colour, mark_changes, wrapped
from autobyte.trace import Measurement
from autobyte.units import format_seconds


def draw_timeline(rows: Sequence[Axes], outcome: Outcome, windows: Mapping[str, Sequence[Measurement]]) -> None:
    """Draw one row for each tuner that has windows, all to the same logarithmic scale.

    Args:
        rows: as many axes, from top to bottom.
        outcome: what `verdict` returned.
        windows: of each tuner, one after the other.
    """
    times = [window.mean_s for run in windows.values() for window in run]
    order = [tuner["name"] for tuner in outcome["tuners"]]
    for axes, (name, run) in zip(rows, windows.items(), strict=True):
        _draw_run(axes, run, colour(outcome, order.index(name)))
        mark_changes(axes, outcome)
        _set_scale(axes, min(times), max(times))
        axes.text(1.02, 0.5, "\n".join(wrapped([name], 13)), transform=axes.transAxes, va="center")
        if not outcome["changes"]:
            best_s = _samples(outcome) / outcome["optimum"]["samples_per_s"]
            axes.axhline(best_s, color=MUTED, linewidth=0.7, linestyle=(0, (4, 3)), zorder=1)
    for axes in rows[:-1]:
        axes.tick_params(bottom=False, labelbottom=False)
        axes.spines["bottom"].set_visible(False)
    rows[-1].set_xlabel("iteration")


def reconfigurations(run: Sequence[Measurement]) -> list[int]:
    """The iterations at which a run went on with another config."""
    return [after.iteration for before, after in pairwise(run) if after.config != before.config]


def _draw_run(axes: Axes, run: Sequence[Measurement], ink: str) -> None:
    starts = [window.iteration for window in run]
    axes.stairs(
        [window.mean_s for window in run], [*starts, starts[-1] + len(run[-1].step_s)], baseline=None, color=ink
    )
    axes.vlines(reconfigurations(run), 0.9, 1.05, transform=axes.get_xaxis_transform(), color=INK, linewidth=0.6)
    axes.set_xlim(0, starts[-1] + len(run[-1].step_s))


def _set_scale(axes: Axes, low: float, high: float) -> None:
    axes.set_yscale("log")
    axes.set_ylim(low / 1.15, high * 1.6)
    axes.yaxis.set_major_locator(ticker.FixedLocator([low, high] if high > 1.2 * low else [low]))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda seconds, _: format_seconds(seconds)))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
    axes.spines[["top", "right"]].set_visible(False)


def _samples(outcome: Outcome) -> int:
    """Samples that a step trains on."""
    job = outcome["job"]
    return int(job["batch_size"] * job["workers"] * job["accumulation"])
