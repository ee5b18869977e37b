"""What `autobyte bench --out` measured, as one self-contained page: a picture and a table for every cell."""

import json
from pathlib import Path
from typing import Any

from autobyte.bench.bench import label
from autobyte.bench.plot import NAMES, draw_rows, height, in_order
from autobyte.comparison.page import NAME, save_page
from autobyte.comparison.panels.look import svg
from autobyte.comparison.template import fill
from autobyte.errors import FileError

COLUMNS = ("scheduler", "engine", "wire", "config", "step", "from … to", "samples/s", "over DDP", "over bound", "gap")


def cells(folder: Path) -> dict[str, dict[str, Any]]:
    """What `autobyte bench --out` wrote in a folder, by the names of its files.

    Raises:
        FileError: a file cannot be read.
    """
    outcomes = {}
    for path in sorted(folder.glob("*.json")):
        try:
            outcome = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FileError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
        if isinstance(outcome, dict) and {"cell", "emulated", "rows"} <= outcome.keys():
            outcomes[path.stem] = outcome
    return outcomes


def write_bench_page(folder: Path) -> Path:
    """Write report.html beside the cells that it shows; an earlier one is replaced.

    Returns:
        where the page is.

    Raises:
        FileError: there are no cells, one is damaged, or report.html is somebody else's.
    """
    outcomes = cells(folder)
    if not outcomes:
        raise FileError(f"nothing was measured in {folder}; run `autobyte bench --out {folder}` first")
    try:
        shown = [_shown(name, outcome) for name, outcome in outcomes.items()]
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"a cell in {folder} is not what `autobyte bench` writes: {error!r}") from None
    heading = f"Step times on shaped links: {', '.join(outcomes)}"
    save_page(folder / NAME, fill("bench/page.html", {"title": heading, "columns": COLUMNS, "cells": shown}))
    return folder / NAME


def _shown(name: str, outcome: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of a cell."""
    picture = svg(lambda axes: draw_rows(axes[0], outcome), height(outcome), name=name, what=f"step times of {name}")
    rows = [_texts(row) for row in in_order(outcome)]
    return {"name": name, "emulated": outcome["emulated"], "picture": picture, "rows": rows}


def _texts(row: dict[str, Any]) -> list[str]:
    closed = row["gap_closed"]
    return [
        row["scheduler"],
        NAMES[row["architecture"]],
        row["wire_dtype"] or "fp32",
        label(row["config"]),
        f"{1e3 * row['step_s']:.0f} ms",
        f"{1e3 * row['step_low_s']:.0f} … {1e3 * row['step_high_s']:.0f}",
        f"{row['samples_per_s']:.1f}",
        f"{row['speedup_over_ddp']:.2f}x",
        f"{row['over_bound']:.2f}x",
        "–" if closed is None else f"{100 * closed:.0f} %",
    ]
