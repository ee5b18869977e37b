"""How every figure looks: a column wide, safe for the colour-blind, labelled directly, the same bytes every time.

Importing it sets matplotlib up. A script makes a figure with `new`, labels lines at their ends with `label_ends`, and
writes both files with `save`:

    figure, axes = style.new(1.6)
    axes.plot(x, y, **style.look("bytescheduler"))
    style.label_ends(axes, {"ByteScheduler": (x[-1], y[-1], style.colour("bytescheduler"))})
    style.save(figure, "fig03_optimal_pairs", folder)
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLUMN, PAGE = 3.4, 7.0  # inches: a column and the full width of a two-column page
INK, MUTED, FAINT = "#1a1a1b", "#77787a", "#d5d6d8"
BLUE, ORANGE, TEAL, MAGENTA, CYAN, RED, PURPLE = (  # P. Tol's "vibrant" scheme, and his purple
    "#0077bb",
    "#ee7733",
    "#009988",
    "#ee3377",
    "#33bbee",
    "#cc3311",
    "#aa3377",
)

#: The same method has the same colour and dashes in every figure.
LOOKS: dict[str, tuple[str, Any]] = {
    "fifo": (MUTED, (0, (1, 0.8))),
    "wfbp": (MUTED, (0, (4, 1.2))),
    "ddp": (MUTED, "-"),
    "mg-wfbp": (PURPLE, (0, (4, 1.2))),
    "p3": (CYAN, (0, (4, 1.2))),
    "default": (CYAN, "-"),
    "bytescheduler": (CYAN, "-"),
    "usbyte": (TEAL, "-"),
    "usbyte-published": (BLUE, (0, (4, 1.2))),
    "constant": (PURPLE, "-"),
    "grid": (ORANGE, (0, (4, 1.2))),
    "grid-16": (ORANGE, (0, (1, 0.8))),
    "grid-12": (ORANGE, (0, (2, 1))),
    "random": (MUTED, (0, (2, 1))),
    "bayesian": (ORANGE, "-"),
    "bayesian-published": (RED, (0, (4, 1.2))),
    "released": (RED, "-"),
    "optuna": (MAGENTA, (0, (4, 1.2))),
    "descent": (TEAL, (0, (4, 1.2))),
    "twin": (TEAL, (0, (2, 1))),
    "metanet": (BLUE, "-"),
    "metanet-published": (MAGENTA, "-"),
    "robust": (CYAN, (0, (3, 1, 1, 1))),
    "hindsight": (PURPLE, (0, (2, 1))),
    "all-knowing": (INK, (0, (4, 1.2))),
    "oracle": (INK, (0, (1, 0.8))),
    "oracle-fused": (TEAL, (0, (1, 0.8))),
    "bound": (INK, "-"),
}
#: What they are called in a figure.
NAMES = {
    "fifo": "baseline",
    "wfbp": "WFBP",
    "ddp": "DDP, best bucket",
    "mg-wfbp": "MG-WFBP",
    "p3": "P3",
    "default": "ByteScheduler, default",
    "bytescheduler": "ByteScheduler",
    "usbyte": "US-Byte",
    "usbyte-published": "US-Byte, published",
    "constant": "best constant",
    "grid": "grid, 304 pairs",
    "grid-16": "grid, 16 of them",
    "grid-12": "grid, 2 … 8 MB × 1 … 4X",
    "random": "random",
    "bayesian": "BO",
    "bayesian-published": "BO, released settings",
    "released": "ByteScheduler, released",
    "optuna": "Optuna",
    "descent": "descent",
    "twin": "twin",
    "metanet": "AutoByte",
    "metanet-published": "AutoByte as published",
    "robust": "BO, robust",
    "hindsight": "best that never changes",
    "all-knowing": "best of each phase",
    "oracle": "optimum",
    "oracle-fused": "optimum with fusion",
    "bound": "bound",
}
MODELS = {
    "resnet50": "ResNet50",
    "vgg16": "VGG16",
    "alexnet": "AlexNet",
    "densenet121": "DenseNet121",
    "gpt2": "GPT-2",
}

matplotlib.use("Agg")
matplotlib.rcdefaults()  # whatever the user's matplotlibrc says
matplotlib.rcParams.update(
    {
        "axes.axisbelow": True,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.labelpad": 2,
        "axes.linewidth": 0.6,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titlepad": 4,
        "axes.titlesize": 7.5,
        "figure.constrained_layout.use": True,
        "figure.constrained_layout.h_pad": 0.03,
        "figure.constrained_layout.w_pad": 0.03,
        "font.family": "DejaVu Sans",  # comes with matplotlib
        "font.size": 7,
        "grid.color": FAINT,
        "grid.linewidth": 0.5,
        "lines.linewidth": 1.3,
        "lines.markersize": 3,
        "pdf.fonttype": 42,  # text stays text
        "text.color": INK,
        "xtick.color": MUTED,
        "xtick.labelcolor": INK,
        "xtick.major.size": 2.5,
        "xtick.major.width": 0.6,
        "ytick.color": MUTED,
        "ytick.labelcolor": INK,
        "ytick.major.size": 2.5,
        "ytick.major.width": 0.6,
    }
)


def new(height: float, *, rows: int = 1, columns: int = 1, width: float = COLUMN, **how: Any) -> tuple[Figure, Any]:
    """Make a figure of that height (inches) and its axes; `how` goes to `plt.subplots`."""
    return plt.subplots(rows, columns, figsize=(width, height), **how)


def colour(method: str) -> str:
    """The colour of a method."""
    return LOOKS[method][0]


def look(method: str) -> dict[str, Any]:
    """Colour and dashes of a method's line."""
    return {"color": LOOKS[method][0], "linestyle": LOOKS[method][1]}


def band(axes: Axes, edges: Sequence[float], least: Sequence[float], most: Sequence[float], colour: str) -> None:
    """Draw the range of values between neighbouring edges, behind the line that is theirs."""
    area = axes.stairs(most, edges, baseline=least, fill=True, color=colour, alpha=0.18, linewidth=0)
    area.sticky_edges.y.clear()  # margins are wanted below it, too


def label_ends(
    axes: Axes, ends: Mapping[str, tuple[float, float, str]], *, room: float = 1.15, leaders: bool = False
) -> None:
    """Write names right of where lines end, moved apart where they would overlap. Call it when the limits are set.

    Args:
        axes: the lines' own; a linear or logarithmic y axis.
        ends: text to (x, y, colour), in data coordinates.
        room: between two labels, in lines of text.
        leaders: draw a thin line from where a line ends to its name.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # sets limits and layout
    width, height = axes.bbox.width / figure.dpi * 72, axes.bbox.height / figure.dpi * 72  # points
    gap = room * matplotlib.rcParams["font.size"] / height  # in parts of the axes
    order = sorted(ends, key=lambda text: ends[text][1])
    to_axes = axes.transData + axes.transAxes.inverted()
    xs, ys = np.array([to_axes.transform(ends[text][:2]) for text in order]).T
    for text, x, end, y in zip(order, xs, ys, _apart(ys, gap), strict=True):
        if leaders:
            line = {"arrowstyle": "-", "color": ends[text][2], "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0}
            places: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "axes fraction"}
            axes.annotate("", (x, end), xytext=(x + 11 / width, y), arrowprops=line, annotation_clip=False, **places)
        axes.annotate(
            text,
            (x, y),
            xytext=(12 if leaders else 3, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            va="center",
            color=ends[text][2],
            annotation_clip=False,
        )


def save(figure: Figure, name: str, folder: Path, *, what: str = "simulated") -> None:
    """Write NAME.pdf and NAME.png, without dates and versions in them; what the numbers are stands in the corner."""
    figure.text(0.995, 0.004, what, ha="right", va="bottom", fontsize=5.5, color=MUTED)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None, "Producer": None, "Creator": None})
    figure.savefig(folder / f"{name}.png", dpi=250, metadata={"Software": None})
    plt.close(figure)


def _apart(places: np.ndarray, gap: float) -> np.ndarray:
    """Move growing places as little as need be, so that neighbours are at least a gap apart."""
    groups: list[list[float]] = []  # each becomes evenly spaced around its mean
    for place in places:
        groups.append([float(place)])
        while len(groups) > 1 and _low(groups[-1], gap) < _low(groups[-2], gap) + len(groups[-2]) * gap:
            last = groups.pop()
            groups[-1] += last
    spaced = [_low(group, gap) + gap * np.arange(len(group)) for group in groups]
    return np.concatenate(spaced) if spaced else places


def _low(group: list[float], gap: float) -> float:
    return float(np.mean(group)) - gap * (len(group) - 1) / 2
