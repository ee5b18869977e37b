"""Where in the landscape each tuner ends: samples/s over ⟨S_p, S_c⟩, with the optimum and the best constant."""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.text import Annotation

from autobyte.comparison.judge import TOLERANCE
from autobyte.comparison.panels import labels
from autobyte.comparison.panels.look import Outcome, wrapped
from autobyte.units import format_bytes

FEW = 8  # places with a mark
KEY = "☆ optimum   ◇ best constant   □ regret ≤ 3 %"

Place = tuple[float, float]  # log2 of the partition in bytes, log2 of credit / partition


def draw_landscape(axes: Axes, outcome: Outcome) -> None:
    """Draw the speed of every config of the grid, an outline around the good ones, and who ended where.

    Both axes are log2, as in the space that tuners search.
    """
    land = outcome["landscape"]
    across, up = edges(np.log2(land["partition_bytes"])), edges(np.log2(land["credit_ratio"]))
    speed = np.array(land["samples_per_s"]).T  # shape [credits, partitions]
    cells = axes.pcolormesh(across, up, speed, cmap="viridis", rasterized=True, zorder=0)
    good = speed >= (1 - TOLERANCE) * outcome["optimum"]["samples_per_s"]
    fence = [[(across[column], up[row]) for column, row in edge] for edge in outline(good)]
    axes.add_collection(LineCollection(fence, colors="black", linewidths=0.8, capstyle="projecting"), autolim=False)
    _set_ticks(axes, land["partition_bytes"], land["credit_ratio"])
    _add_scale(axes, cells)
    names_at = places(outcome)
    x, y = np.array(list(names_at)).T
    axes.set_xlim(min(across[0], x.min() - 0.5), max(across[-1], x.max() + 0.5))
    axes.set_ylim(min(up[0], y.min() - 0.5), max(up[-1], y.max()))
    for place, (references, tuners) in names_at.items():
        _mark(axes, place, references, tuners)
    _name(axes, names_at)
    axes.text(0, 1.045, KEY, transform=axes.transAxes, fontsize=6.5)


def landscape_height(outcome: Outcome) -> float:
    """Of the axes of `draw_landscape` (inches): more where there are many names to write."""
    return 1.75 if len(places(outcome)) <= FEW else 2.5


def places(outcome: Outcome) -> dict[Place, tuple[list[str], list[str]]]:
    """Every place where somebody stands, with the references and the tuners that stand there."""
    names: dict[Place, tuple[list[str], list[str]]] = {}
    references = [(0, name.replace("_", " "), outcome[name]) for name in ("optimum", "best_constant")]
    for kind, name, config in references + [(1, tuner["name"], tuner["config"]) for tuner in outcome["tuners"]]:
        partition = config["partition_bytes"]
        place = math.log2(partition), math.log2(config["credit_bytes"] / partition)
        names.setdefault(place, ([], []))[kind].append(name)
    return names


def edges(centres: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Where cells around these centres begin and end.

    >>> edges(np.array([1.0, 2.0, 4.0])).tolist()
    [0.5, 1.5, 3.0, 5.0]
    """
    gaps = np.diff(centres) / 2 if len(centres) > 1 else np.array([0.5])
    return np.concatenate([centres[:1] - gaps[:1], centres[:-1] + gaps[: len(centres) - 1], centres[-1:] + gaps[-1:]])


def outline(cells: npt.NDArray[np.bool_]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """The edges between cells that are set and cells that are not, as (column, row) corners.

    >>> len(list(outline(np.array([[True, True]]))))
    6
    """
    padded = np.pad(cells, 1)
    for row, column in np.argwhere(padded[:, 1:] != padded[:, :-1]).tolist():
        yield (column, row - 1), (column, row)
    for row, column in np.argwhere(padded[1:] != padded[:-1]).tolist():
        yield (column - 1, row), (column, row)


def _set_ticks(axes: Axes, partitions: list[int], ratios: list[float]) -> None:
    last = len(partitions) - 1
    step = next(step for step in range(max(1, -(-last // 4)), last + 2) if last % step == 0)
    axes.set_xticks(np.log2(partitions[::step]), [format_bytes(partition) for partition in partitions[::step]])
    axes.set_xticks(np.log2(partitions), minor=True)
    rows = [ratio for ratio in ratios if math.log2(ratio).is_integer()] or ratios[:1]
    axes.set_yticks(np.log2(rows), [f"{ratio:g}x" for ratio in rows])
    axes.set_xlabel("partition $S_p$", parse_math=True)
    axes.set_ylabel("credit $S_c$", parse_math=True)
    axes.yaxis.set_label_coords(-0.205, 0.5)


def _add_scale(axes: Axes, cells: QuadMesh) -> None:
    """A colour scale to the right."""
    low, high = cells.get_clim()
    if low == high:
        low, high = 0.0, high or 1.0
        cells.set_clim(low, high)
    scale = axes.inset_axes((1.04, 0, 0.04, 1))
    ramp = np.linspace(low, high, 256)[:, None]
    scale.imshow(ramp, cmap=cells.get_cmap(), origin="lower", aspect="auto", extent=(0, 1, low, high))
    scale.set_xticks([])
    scale.yaxis.tick_right()
    scale.yaxis.set_label_position("right")
    scale.set_ylabel("samples/s")


def _mark(axes: Axes, place: Place, references: list[str], tuners: list[str]) -> None:
    """A star for the optimum, a diamond for the best constant, a dot for tuners."""
    shapes = {"optimum": ("*", 9.0), "best constant": ("D", 5.0)}
    marks = [(*shapes[name], "white", "black") for name in references[::-1]]
    marks += [("o", 3.4, "black", "white")] if tuners else []
    for order, (marker, size, face, edge) in enumerate(marks):
        axes.plot(
            *([value] for value in place),
            linestyle="",
            marker=marker,
            markersize=size,
            markerfacecolor=face,
            markeredgecolor=edge,
            markeredgewidth=0.6,
            clip_on=False,
            zorder=4 + 0.1 * order,
        )


def _name(axes: Axes, names_at: dict[Place, tuple[list[str], list[str]]]) -> None:
    """Write beside every place who stands there."""
    scale, frame = 72 / axes.figure.dpi, axes.get_window_extent()
    width, height = frame.width * scale, frame.height * scale  # points
    named = {place: tuners for place, (_, tuners) in names_at.items() if tuners}
    drawn = [_write(axes, "\n".join(wrapped(tuners, 20)), place) for place, tuners in named.items()]
    extents = [text.get_window_extent() for text in drawn]
    sizes = [(extent.width * scale + 3, extent.height * scale + 3) for extent in extents]
    marks = [tuple((axes.transData.transform(place) - frame.p0) * scale) for place in [*named, *names_at]]
    corners = labels.place(marks, sizes, within=(1, 1, width - 1, height - 1))
    for text, mark, corner, size in zip(drawn, marks, corners, sizes, strict=False):
        text.set_position((corner[0] - mark[0] + 1.5, corner[1] - mark[1] + 1.5))
        line = [(x / width, y / height) for x, y in labels.leader(mark, corner, size)]
        if line:
            _lead(axes, line)


def _write(axes: Axes, text: str, place: Place) -> Annotation:
    """A label that its position moves away from its place, in points; its lower left corner counts."""
    box = {"boxstyle": "square,pad=0.15", "facecolor": "white", "alpha": 0.85, "linewidth": 0}
    return axes.annotate(
        text,
        place,
        (0, 0),
        textcoords="offset points",
        verticalalignment="bottom",
        color="black",
        fontsize=6.5,
        linespacing=1.1,
        bbox=box,
        zorder=6,
    )


def _lead(axes: Axes, line: list[tuple[float, float]]) -> None:
    """A thin line from a mark to its label, seen on dark and on bright."""
    halo = [patheffects.withStroke(linewidth=1.6, foreground="white")]
    axes.plot(*zip(*line, strict=True), transform=axes.transAxes, color="black", linewidth=0.6, path_effects=halo)
