"""Several comparisons on one page: tuners by scenarios, with intervals, and a way to each comparison's own page."""

from html import escape
from pathlib import Path
from typing import Any

from autobyte.comparison.oracle import COUNTS
from autobyte.comparison.outcome import read_outcome
from autobyte.comparison.page import NAME, save_page, shell, write_page
from autobyte.comparison.table import percent
from autobyte.comparison.title import title
from autobyte.errors import FileError

Outcomes = dict[str, dict[str, Any]]


def comparisons(folder: Path) -> list[Path]:
    """Folders directly within one that `autobyte compare --out` wrote, by name."""
    return sorted(path.parent for path in folder.glob("*/compare.json"))


def write_overview(folder: Path) -> Path:
    """Write the page of every comparison in a folder, and report.html in the folder itself, which leads to them.

    Args:
        folder: holds folders that `autobyte compare --out` wrote.

    Returns:
        where the page is.

    Raises:
        FileError: one of the comparisons is damaged, or a report.html is somebody else's.
    """
    folders = comparisons(folder)
    if not folders:
        raise FileError(f"no comparison was finished in {folder}; run `autobyte compare --out {folder}` first")
    for path in folders:
        write_page(path)
    save_page(folder / NAME, render({path.name: read_outcome(path / "compare.json") for path in folders}))
    return folder / NAME


def render(outcomes: Outcomes) -> str:
    """Make the page."""
    return shell(
        f"{len(outcomes)} comparisons",
        f"{table(outcomes)}\n"
        "<p><small>Speed as a part of the oracle’s, which chooses at the same decisions for what the last window "
        "showed: the median of all runs, and below it the 10th and the 90th percentile. Then the share of the "
        "gap that is closed between the best constant and the oracle, where that is at least "
        f"{100 * COUNTS:g}&nbsp;% of the oracle’s speed.</small></p>",
    )


def table(outcomes: Outcomes) -> str:
    """Tuners by comparisons; a dash where a tuner did not take part."""
    names = list(dict.fromkeys(tuner["name"] for outcome in outcomes.values() for tuner in outcome["tuners"]))
    heads = [
        f'<th scope="col"><a href="{escape(folder, quote=True)}/{NAME}">{escape(_name(folder, outcome))}</a><br>'
        f"<small>{escape(title(outcome))}</small></th>"
        for folder, outcome in outcomes.items()
    ]
    rows = [_row(name, [_cell(outcome, name) for outcome in outcomes.values()]) for name in names]
    constant = _row("best constant", [_constant(outcome) for outcome in outcomes.values()], kind="reference")
    return (
        f'<div class="wide"><table><thead><tr><th scope="col">tuner</th>{"".join(heads)}</tr></thead>\n'
        f"<tbody>{''.join(rows)}{constant}</tbody></table></div>"
    )


def _name(folder: str, outcome: dict[str, Any]) -> str:
    return outcome["job"].get("scenario") or folder


def _row(name: str, cells: list[str], *, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<tr{attribute}><th scope="row">{escape(name)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>\n'


def _cell(outcome: dict[str, Any], name: str) -> str:
    """A tuner's speed in one comparison, as a part of the oracle's."""
    tuner = next((tuner for tuner in outcome["tuners"] if tuner["name"] == name), None)
    oracle = _oracle(outcome)
    if tuner is None or oracle is None:
        return "–"
    low, high = (percent(speed / oracle) for speed in tuner["spread"]["samples_per_s"])
    closed = tuner.get("oracle_gap_closed")
    share = "" if closed is None else f"<br><small>gap {percent(closed)}&nbsp;%</small>"
    return f"{percent(tuner['samples_per_s'] / oracle)}&nbsp;%<br><small>{low} … {high}</small>{share}"


def _constant(outcome: dict[str, Any]) -> str:
    oracle = _oracle(outcome)
    return "–" if oracle is None else f"{percent(outcome['oracle']['best_constant_samples_per_s'] / oracle)}&nbsp;%"


def _oracle(outcome: dict[str, Any]) -> float | None:
    """Its speed; None in comparisons of an earlier version, which had none."""
    return None if outcome.get("oracle") is None else float(outcome["oracle"]["samples_per_s"])
