"""The numbers behind the figures: written to CSV, drawn from CSV; what a clock measured stays apart from them."""

import argparse
import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Row = dict[str, Any]


def options(text: str, *, testbed: bool = False) -> argparse.ArgumentParser:
    """Make a parser with the options that all scripts have.

    Args:
        text: the script's docstring.
        testbed: whether the figure can be measured on shaped links, too.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer points: shows that it works, and nothing more")
    parser.add_argument("--seed", type=int, default=0, help="of everything drawn at random (default: 0)")
    parser.add_argument("--redraw", action="store_true", help="draw what data/ holds, without running anything")
    if testbed:
        parser.add_argument("--testbed", action="store_true", help="measure on shaped links (Linux, root), and go on")
    parser.add_argument("--out", type=Path, default=HERE, help="where data/ and figures/ are (default: here)")
    return parser


def write(rows: Iterable[Mapping[str, Any]], name: str, folder: Path, *, what: str = "simulated") -> None:
    """Write rows to data/NAME.csv, and what they are into the first column.

    Numbers get six figures: more would only differ between machines.
    """
    rows = [{"what": what, **row} for row in rows]
    path = folder / "data" / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _text(value) for key, value in row.items()} for row in rows)


def read(name: str, folder: Path) -> list[Row]:
    """Read data/NAME.csv: what looks like a number is one."""
    with (folder / "data" / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def where(rows: Iterable[Row], **equal: Any) -> list[Row]:
    """The rows in which columns have these values."""
    return [row for row in rows if all(row[key] == value for key, value in equal.items())]


def column(rows: Iterable[Row], name: str) -> list[Any]:
    """One column of rows."""
    return [row[name] for row in rows]


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
