"""A bench as a picture, a bar per scheduler with the bound beside it; and simulated over measured step times."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autobyte.comparison.panels.look import drawable, encoded, new_figure, styled
from autobyte.drafts import draft_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {"allreduce": "all-reduce", "ps": "PS"}
ENGINE_COLOURS = {"allreduce": "#0072b2", "ps": "#d55e00"}
COLOURS = {"ddp-default": "#999999", "ddp-best": "#999999", "fifo": "#cccccc"}  # what is not ours to choose
OURS = "#0072b2"


def draw_bench(outcome: dict[str, Any], path: Path) -> None:
    """Draw step times as a PNG, one column wide.

    Args:
        outcome: as `bench --json` prints it.
        path: a picture that is there already is replaced.

    Raises:
        FileError: it cannot be written.
    """
    with styled():
        data = encoded(_picture(outcome), "png", dpi=300, metadata={"Software": None})
    _write(data, path)


def draw_validation(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw simulated over measured step times as a PNG, one column wide.

    Raises:
        FileError: it cannot be written.
    """
    with styled():
        figure, (axes,) = new_figure(2.6, top=0.1)
        for engine, colour in ENGINE_COLOURS.items():
            points = [(r["measured_s"] * 1e3, r["simulated_s"] * 1e3) for r in rows if r["architecture"] == engine]
            if points:
                axes.plot(*zip(*points, strict=True), "o", ms=2.5, color=colour, label=NAMES[engine], alpha=0.7)
        low, high = axes.get_xlim()
        axes.axline((low, low), slope=1, color="black", lw=0.7)
        axes.fill_between([low, high], [0.8 * low, 0.8 * high], [1.2 * low, 1.2 * high], color="#dddddd", zorder=0)
        axes.set_xlabel("measured step (ms), emulated models on the testbed")
        axes.set_ylabel("simulated step (ms); grey: ± 20 %")
        axes.legend(fontsize=6)
        data = encoded(figure, "png", dpi=300, metadata={"Software": None})
    _write(data, path)


def in_order(outcome: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows by dtype on the wire, the slowest first."""
    return sorted(outcome["rows"], key=lambda row: (row["wire_dtype"] or "", -row["step_s"]))


def height(outcome: dict[str, Any]) -> float:
    """Of its axes (inches)."""
    return 0.17 * len(outcome["rows"]) + 0.2


def draw_rows(axes: "Axes", outcome: dict[str, Any]) -> None:
    """Draw a bar per row, and the bound beside it; names stand on the left."""
    rows = in_order(outcome)
    box = axes.get_position()
    axes.set_position((0.45, box.y0, 0.51, box.height))  # names are long
    for place, row in enumerate(rows):
        step, bound = row["step_s"] * 1e3, row["bound_s"] * 1e3
        low, high = (row[f"step_{side}_s"] * 1e3 for side in ("low", "high"))
        axes.barh(place, step, color=COLOURS.get(row["scheduler"], OURS), height=0.7)
        axes.errorbar(step, place, xerr=[[step - low], [high - step]], color="black", lw=0.7, capsize=1.5)
        axes.plot([bound, bound], [place - 0.42, place + 0.42], color="#d55e00", lw=1.4)
        axes.text(high, place, f" {row['speedup_over_ddp']:.2f}x", va="center", fontsize=6)
    kinds = [f"{NAMES[row['architecture']]}, {row['wire_dtype'] or 'fp32'}" for row in rows]
    names = [row["scheduler"] for row in rows]
    if len(set(kinds)) > 1:
        names = [f"{name}, {kind}" for name, kind in zip(names, kinds, strict=True)]
    axes.set_yticks(range(len(rows)), names, fontsize=5.8)
    axes.invert_yaxis()
    axes.margins(x=0.22)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("step (ms)")


def _picture(outcome: dict[str, Any]) -> "Figure":
    summary = (
        f"{outcome['emulated']}. Red: the bound; beside the bars: speed over DDP at its best, same dtype on the wire."
    )
    heading = textwrap.wrap(drawable(summary), 62)
    figure, (axes,) = new_figure(height(outcome), top=0.2 + 0.13 * len(heading))
    figure.text(0.03, 1 - 0.06 / figure.get_figheight(), "\n".join(heading), va="top", fontsize=6.5)
    draw_rows(axes, outcome)
    return figure


def _write(data: bytes, path: Path) -> None:
    with draft_of(path) as draft:
        draft.write_bytes(data)
