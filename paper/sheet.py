"""The numbers behind the figures: written to CSV, drawn from CSV; what a clock measured stays apart from them."""

import argparse
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

HERE = Path(__file__).parent
LAUNCHES = 3
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
        parser.add_argument("--launches", type=int, default=LAUNCHES, help=f"of every cell (default: {LAUNCHES})")
        parser.add_argument("--minutes", type=float, default=math.inf, help="begin no launch after so many")
    parser.add_argument("--out", type=Path, default=HERE, help="where data/ and figures/ are (default: here)")
    return parser


def write(rows: Iterable[Mapping[str, Any]], name: str, folder: Path, *, what: str = "simulated") -> None:
    """Write rows to data/NAME.csv, and what they are into the first column.

    Numbers get six figures: more would only differ between machines.
    """
    table = pd.DataFrame([{"what": what} | {key: _text(value) for key, value in row.items()} for row in rows])
    path = folder / "data" / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, lineterminator="\n")


def read(name: str, folder: Path) -> pd.DataFrame:
    """Read data/NAME.csv; an empty cell is NaN among numbers, and empty text elsewhere."""
    path = folder / "data" / f"{name}.csv"
    table = pd.read_csv(path, keep_default_na=False, na_values=[""])
    texts = [column for column in table if not is_numeric_dtype(table[column])]
    return table.fillna(dict.fromkeys(texts, ""))


def where(table: pd.DataFrame, **equal: Any) -> pd.DataFrame:
    """The rows in which columns have these values."""
    for column, value in equal.items():
        table = table[table[column] == value]
    return table


def _text(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return str(value)
