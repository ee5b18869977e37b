"""What a claim is: a line of a table, what the paper says, the file of our numbers, and the function that judges."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd
import sheet
from reading import TUNERS, Range, percent
from style import MODELS

ARCHITECTURES = {"ps": "servers", "allreduce": "all-reduce"}
OLDER = "22 and 23 November 2026"  # rows without a date
UNMEASURED = "not recorded: `make paper-testbed`"
NAMES = {
    "default": "ByteScheduler's default",
    "grid": "grid, 304 pairs",
    "grid-16": "grid, 16 pairs of these",
    "grid-12": "grid, 2 … 8 MB × 1 … 4X",
    "random": "random",
    "released": "ByteScheduler, released",
    "bayesian-published": "BO, released settings on both knobs",
    "bayesian": "BO, repaired",
    "optuna": "Optuna",
    "descent": "descent",
    "twin": TUNERS["twin"],
    "metanet-published": TUNERS["metanet-published"],
    "metanet": TUNERS["metanet"],
}


class Numbers:
    """The files of a folder's `data/`, each read once.

    >>> Numbers(Path("paper"))["fig02_credit"]
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read = cache(sheet.read)

    def __getitem__(self, name: str) -> pd.DataFrame:
        """The rows of data/NAME.csv; none where there is no such file."""
        there = (self._folder / "data" / f"{name}.csv").exists()
        return self._read(name, self._folder) if there else pd.DataFrame()


Cells = Sequence[str]


@dataclass(frozen=True)
class Claim:
    """One line of a table.

    Args:
        text: what is claimed, or whose numbers the line has.
        file: of the numbers, in data/.
        judge: works out our cells from that file's rows; other files are at hand. None: there is nothing to show.
        paper: what the paper says; None in tables without such a column.
    """

    text: str
    file: str
    judge: Callable[[pd.DataFrame, Numbers], Cells | None]
    paper: str | None = None


@dataclass(frozen=True)
class Table:
    """Claims under one head.

    Args:
        columns: heads, worked out from the numbers: tuners that a file does not have get no column.
        claims: its lines.
        above: lines of Markdown before it.
    """

    columns: Callable[[Numbers], Iterable[str]]
    claims: Iterable[Claim]
    above: Sequence[str] = ()


@dataclass(frozen=True)
class Notes:
    """What explains the differences: sentences with numbers in them; empty ones are left out."""

    write: Callable[[Numbers], Iterable[str]]


@dataclass(frozen=True)
class Section:
    """A figure or a table of a paper.

    Args:
        source: where in the paper, and what it is about: the heading.
        figure: name of ours, in figures/.
        parts: of the section, in order.
    """

    source: str
    figure: str
    parts: Sequence[Table | Notes]


def emulated(
    measured: pd.DataFrame,
    judge: Callable[[pd.DataFrame], Range | None],
    why_not: str = UNMEASURED,
    write: Callable[[Range], str] = percent,
) -> str:
    """What was measured on shaped links, or why nothing was; `judge` works on rows like the simulated ones."""
    judged = None if measured.empty else judge(measured)
    return write(judged) if judged else why_not


def launches(measured: pd.DataFrame) -> str:
    """Which cells were measured on shaped links, and how many times; nothing where none was."""
    if measured.empty:
        return ""
    on = "gbit" if "gbit" in measured else "architecture"
    by_number: dict[int, list[str]] = {}
    for (model, place), number in measured.groupby(["model", on], sort=False)["seed"].nunique().items():
        where = f"at {place:g} Gbit/s" if on == "gbit" else f"on {ARCHITECTURES[place]}"
        by_number.setdefault(int(number), []).append(f"{MODELS[model]} {where}")
    parts = [
        f"{'one launch' if number == 1 else f'{number} launches'} each of {', '.join(cells)}"
        for number, cells in sorted(by_number.items())
    ]
    return f"Emulated is {'; '.join(parts)}{dates(measured)}"


def dates(measured: pd.DataFrame) -> str:
    """When rows on shaped links were measured; nothing where they do not say."""
    days = sorted(set(measured["date"]) - {""}) if "date" in measured else []
    return f" (measured from {days[0]} to {days[-1]}; others on {OLDER})" if days else ""
