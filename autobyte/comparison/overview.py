"""Several comparisons on one page: tuners by scenarios, with intervals, and a way to each comparison's own page."""

from collections.abc import Container
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autobyte.comparison.oracle import COUNTS
from autobyte.comparison.outcome import read_outcome
from autobyte.comparison.page import NAME, save_page, write_page
from autobyte.comparison.table import percent
from autobyte.comparison.template import fill
from autobyte.comparison.title import title
from autobyte.errors import FileError

Outcomes = dict[str, dict[str, Any]]


def comparisons(folder: Path) -> list[Path]:
    """Folders directly within one that `autobyte compare --out` wrote, by name."""
    return sorted(path.parent for path in folder.glob("*/compare.json"))


def write_overview(folder: Path, *, names: Container[str] | None = None) -> Path:
    """Write the page of every comparison in a folder, and report.html in the folder itself, which leads to them.

    Args:
        folder: holds folders that `autobyte compare --out` wrote.
        names: of the folders that are meant; by default all.

    Returns:
        where the page is.

    Raises:
        FileError: one of the comparisons is damaged, or a report.html is somebody else's.
    """
    folders = [path for path in comparisons(folder) if names is None or path.name in names]
    if not folders:
        raise FileError(f"no comparison was finished in {folder}; run `autobyte compare --out {folder}` first")
    for path in folders:
        write_page(path)
    save_page(folder / NAME, render({path.name: read_outcome(path / "compare.json") for path in folders}))
    return folder / NAME


def render(outcomes: Outcomes) -> str:
    """Make the page: tuners by comparisons, a dash where a tuner did not take part."""
    names = list(dict.fromkeys(tuner["name"] for outcome in outcomes.values() for tuner in outcome["tuners"]))
    rows = [_row(name, [_cell(outcome, name) for outcome in outcomes.values()]) for name in names]
    rows.append(_row("best constant", [_constant(outcome) for outcome in outcomes.values()], reference=True))
    return fill(
        "comparison/overview.html",
        {
            "title": f"{len(outcomes)} comparisons",
            "columns": [
                {"link": f"{quote(folder)}/{NAME}", "name": _name(folder, outcome), "title": title(outcome)}
                for folder, outcome in outcomes.items()
            ],
            "rows": rows,
            "counts": f"{100 * COUNTS:g}",
        },
    )


def _row(name: str, cells: list[dict[str, str | None] | None], *, reference: bool = False) -> dict[str, Any]:
    return {"name": name, "cells": cells, "reference": reference}


def _name(folder: str, outcome: dict[str, Any]) -> str:
    scenario = str(outcome["job"].get("scenario") or "steady")
    return folder if scenario == "steady" else scenario


def _cell(outcome: dict[str, Any], name: str) -> dict[str, str | None] | None:
    """A tuner's speed in one comparison, as a part of the oracle's, with its spread and the gap that it closes."""
    tuner = next((tuner for tuner in outcome["tuners"] if tuner["name"] == name), None)
    oracle = _oracle(outcome)
    if tuner is None or oracle is None:
        return None
    low, high = (percent(speed / oracle) for speed in tuner["spread"]["samples_per_s"])
    closed = tuner.get("oracle_gap_closed")
    return {
        "speed": percent(tuner["samples_per_s"] / oracle),
        "spread": f"{low} … {high}",
        "gap": None if closed is None else percent(closed),
    }


def _constant(outcome: dict[str, Any]) -> dict[str, str | None] | None:
    oracle = _oracle(outcome)
    if oracle is None:
        return None
    speed = percent(outcome["oracle"]["best_constant_samples_per_s"] / oracle)
    return {"speed": speed, "spread": None, "gap": None}


def _oracle(outcome: dict[str, Any]) -> float | None:
    """Its speed; None in comparisons of an earlier version, which had none."""
    return None if outcome.get("oracle") is None else float(outcome["oracle"]["samples_per_s"])
