"""How pictures look: a column wide, safe for the colour-blind, the same bytes every time, no global state."""

import io
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from html import escape
from typing import Any

from markupsafe import Markup
from matplotlib import font_manager, style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Outcome = dict[str, Any]  # what `verdict` returns and compare.json holds

WIDTH = 3.5  # inches: one column of a paper
LEFT, RIGHT, BOTTOM = 0.56, 0.9, 0.36  # margins around the axes (inches)
INK, MUTED = "#1a1a1b", "#77787a"
#: Five of P. Tol's "vibrant" scheme; the second round is dashed, the third dotted.
COLOURS = ("#0077bb", "#ee7733", "#009988", "#ee3377", "#33bbee")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.2)), (0, (1, 0.8)))

_STYLE = {
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.labelpad": 2,
    "axes.linewidth": 0.6,
    "axes.titlepad": 5,
    "axes.titlesize": 7.5,
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 7,
    "lines.linewidth": 1.3,
    "svg.hashsalt": "autobyte",
    "text.color": INK,
    "text.parse_math": False,  # a name with a dollar is a name
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "ytick.major.width": 0.6,
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw in this style, whatever the user's matplotlibrc says."""
    with style.context(["default", _STYLE]):
        yield


def new_figure(*heights: float, top: float, gap: float = 0.6) -> tuple[Figure, list[Axes]]:
    """Make a figure with axes of the given heights, one above the other (inches)."""
    total = top + sum(heights) + gap * (len(heights) - 1) + BOTTOM
    figure = Figure(figsize=(WIDTH, total))
    FigureCanvasAgg(figure)  # measures text
    axes, edge = [], total - top
    for height in heights:
        edge -= height
        axes.append(figure.add_axes((LEFT / WIDTH, edge / total, 1 - (LEFT + RIGHT) / WIDTH, height / total)))
        edge -= gap
    return figure, axes


def encoded(figure: Figure, kind: str, **how: Any) -> bytes:
    """The figure as a file of that kind."""
    file = io.BytesIO()
    figure.savefig(file, format=kind, **how)
    return file.getvalue()


def svg(
    draw: Callable[[list[Axes]], None], *heights: float, top: float = 0.08, gap: float = 0.6, name: str, what: str
) -> Markup:
    """Draw panels as an SVG element for a page: its ink is the page's text colour, and it refers to nothing outside.

    Args:
        draw: draws on the axes.
        heights: of the axes (inches).
        top, gap: above them and between them (inches).
        name: keeps its ids apart from those of other pictures on the page.
        what: is read out in its place.
    """
    with styled():
        figure, axes = new_figure(*heights, top=top, gap=gap)
        draw(axes)
        plain = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        text = encoded(figure, "svg", dpi=300, transparent=True, metadata=plain).decode()
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text[text.index("<svg") :])  # inside HTML both are known
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{name}-", text)
    text = text.replace(INK, "currentColor").replace(MUTED, "var(--muted)")
    return Markup(text.replace("<svg", f'<svg role="img" aria-label="{escape(what)}"', 1))


def look(index: int) -> dict[str, Any]:
    """Colour and dashes of a tuner by its place in the table."""
    turn, colour = divmod(index, len(COLOURS))
    return {"color": COLOURS[colour], "linestyle": DASHES[turn % len(DASHES)]}


def colour(outcome: Outcome, index: int) -> str:
    """Colour of a tuner's bar or row: its own while colours suffice, else one for all, because names stand beside."""
    return COLOURS[index] if len(outcome["tuners"]) <= len(COLOURS) else COLOURS[0]


def mark_changes(axes: Axes, outcome: Outcome) -> None:
    """Draw thin lines where a scenario changes the cluster."""
    for iteration in outcome["changes"]:
        axes.axvline(iteration, color=MUTED, linewidth=0.5, alpha=0.35, zorder=0)


def wrapped(names: Sequence[str], width: int, *, between: str = ", ") -> list[str]:
    """Names as lines of at most so many characters; a name that is longer breaks at its hyphens."""
    lines = textwrap.wrap(drawable(between.join(names)), width, break_on_hyphens=False, break_long_words=False)
    return [part for line in lines for part in textwrap.wrap(line, width)]


def drawable(text: str) -> str:
    """The text in one line, with a question mark for every character that the font lacks."""
    return "".join(c if ord(c) in _characters() else "?" for c in " ".join(text.split()))


@cache
def _characters() -> frozenset[int]:
    return frozenset(font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap())
