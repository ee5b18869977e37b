"""A comparison as one picture: regret curves above, the landscape below."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from autobyte.comparison.panels.landscape import draw_landscape, landscape_height
from autobyte.comparison.panels.look import Outcome, drawable, encoded, new_figure, styled
from autobyte.comparison.panels.regret import draw_regret, regret_height
from autobyte.comparison.title import count, title
from autobyte.drafts import draft_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_comparison(outcome: Outcome, path: Path) -> None:
    """Draw a comparison as a PNG, one column wide.

    Args:
        outcome: what `verdict` returned.
        path: a picture that is there already is replaced.

    Raises:
        FileError: it cannot be written.
    """
    with styled():
        data = encoded(picture(outcome), "png", dpi=300, metadata={"Software": None})
    with draft_of(path) as draft:
        draft.write_bytes(data)


def picture(outcome: Outcome) -> "Figure":
    """Draw both panels, to be called in `styled`."""
    heading = textwrap.wrap(drawable(title(outcome)), 58)
    figure, (above, below) = new_figure(
        regret_height(outcome, together=1.6), landscape_height(outcome), gap=0.77, top=0.3 + 0.13 * len(heading)
    )
    down = 0.06 / figure.get_figheight()
    figure.text(0.03, 1 - down, "\n".join(heading), va="top", fontsize=7.5, linespacing=1.15)
    draw_regret(above, outcome)
    draw_landscape(below, outcome)
    above.set_title(f"(a) regret, median of {count(outcome['seeds'], 'run')}", loc="left")
    when = " at first" if outcome["changes"] else ""
    below.set_title(f"(b) speed{when}, and where tuners end", loc="left", pad=16)
    return figure
