"""Tables I and II: what each method adapts to, and what the meta-network is told."""

from collections.abc import Iterator

import pandas as pd
import sheet
from claim import NAMES, Cells, Claim, Notes, Numbers, Section, Table
from reading import TUNERS, percent

from autobyte.comparison.judge import TOLERANCE

METHODS, FEATURES = "table1_methods", "table2_features"
TUNERS_OF = ("default", "grid", "random", "released", "bayesian-published", "bayesian", "optuna", "descent", "twin")
TUNERS_OF += ("metanet-published", "metanet")
TICKED = {  # the paper's ticks; AutoByte has all of them, and the twin is not in the paper
    "default": (),
    "grid": ("architecture", "model", "network"),
    "bayesian": ("architecture", "model", "network"),
}
Cell = tuple[float, bool | None]  # a regret, and whether the paper ticks it; None: not in the paper


def regrets(rows: pd.DataFrame, tuner: str) -> list[Cell]:
    """A tuner's median regret after each change, beside the paper's tick."""
    factors = rows["factor"].unique()
    middle = sheet.where(rows, tuner=tuner).groupby("factor")["regret"].median()
    published = tuner in (*TICKED, *TUNERS) and tuner != "twin"
    return [(middle[f], f in TICKED.get(tuner, factors) if published else None) for f in factors]


def adapts(tuner: str) -> Claim:
    """What a tuner adapts to."""

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells | None:
        if tuner not in set(rows["tuner"]):
            return None
        paper = {None: "", True: " (paper: ✓)", False: " (paper: –)"}
        return [
            f"{'✓' if regret <= TOLERANCE else '✗'} {percent((regret,))}{paper[ticked]}"
            for regret, ticked in regrets(rows, tuner)
        ]

    return Claim("grid, as far as it gets" if tuner == "grid" else NAMES[tuner], METHODS, judge)


def on_methods(numbers: Numbers) -> Iterator[str]:
    """Why table I differs."""
    rows = numbers[METHODS]
    cells = [cell for tuner in rows["tuner"].unique() for cell in regrets(rows, tuner) if cell[1] is not None]
    agree = sum((regret <= TOLERANCE) == ticked for regret, ticked in cells)
    yield (
        "The numbers are simulated regrets at the end, against the best of 304 pairs, medians over seeds. A tick "
        "means at most 3 %. "
        f"{agree} of {len(cells)} cells agree with the paper. Ours are found by running each method, so a "
        "method that adapts in principle, but stays on a bad pair for too long, has no tick."
    )
    yield (
        "All methods have the same number of windows. In them grid search tries 32 evenly spread pairs and keeps the "
        "best."
    )
    yield "Not emulated, because it would take as many windows as all other figures together."


def quantities(rows: pd.DataFrame, _: Numbers) -> Cells:
    """What of the paper's list the network has."""
    listed = rows[rows["symbol"] != ""]
    return str(listed["symbol"].nunique()), f"the same {listed['symbol'].nunique()}, in {len(listed)} columns"


def beyond(rows: pd.DataFrame, _: Numbers) -> Cells:
    """What it has besides."""
    return "–", f"{(rows['symbol'] == '').sum()}, most of them ratios without units"


def entering_published(rows: pd.DataFrame, _: Numbers) -> Cells:
    """What enters the network as published."""
    return "all", str(rows.loc[rows["group"] != "target", "paper"].sum())


def entering_ours(rows: pd.DataFrame, _: Numbers) -> Cells:
    """What enters ours."""
    return "–", str(rows["improved"].sum())


TABLE_1 = Section(
    "Table I: what each method adapts to",
    METHODS,
    (
        Table(
            lambda numbers: ("method", *numbers[METHODS]["factor"].unique()),
            tuple(adapts(tuner) for tuner in TUNERS_OF),
        ),
        Notes(on_methods),
    ),
)
TABLE_2 = Section(
    "Table II: what the network is told",
    FEATURES,
    (
        Table(
            lambda _: ("", "paper", "ours"),
            (
                Claim("quantities", FEATURES, quantities),
                Claim("columns beyond them", FEATURES, beyond),
                Claim("that enter the network as published", FEATURES, entering_published),
                Claim("that enter ours", FEATURES, entering_ours),
            ),
        ),
        Notes(
            lambda _: (
                "The paper's vectors B and T have an entry for each worker, so its network fits only one number of "
                "workers. Ours uses summaries of them instead.",
            )
        ),
    ),
)
SECTIONS = (TABLE_1, TABLE_2)
