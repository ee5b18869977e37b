"""Tables I and II: what each method adapts to, and what the meta-network is told."""

from collections.abc import Iterator

import pandas as pd
import sheet
from claim import NAMES, Cells, Claim, Notes, Numbers, Section, Table
from jobs import BLOCK_COSTS
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


def adapts(block_cost: str, tuner: str) -> Claim:
    """What a tuner adapts to."""

    def judge(every: pd.DataFrame, _: Numbers) -> Cells | None:
        rows = sheet.where(every, block_cost=block_cost)
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
    agree, lengths = [], []
    for cost, rows in numbers[METHODS].groupby("block_cost", sort=False):
        seeds = rows["seed"].nunique()
        lengths.append(f"{BLOCK_COSTS[cost]} has {'one seed' if seeds == 1 else f'{seeds} seeds'}")
        cells = [cell for tuner in rows["tuner"].unique() for cell in regrets(rows, tuner) if cell[1] is not None]
        same = sum((regret <= TOLERANCE) == ticked for regret, ticked in cells)
        agree.append(f"{same} of {len(cells)} with {BLOCK_COSTS[cost]}")
    yield (
        "The numbers are simulated regrets at the end, against the best of 304 pairs, medians over seeds. "
        f"{', '.join(lengths)}. A tick means at most 3 %. Cells that agree with the paper: {', '.join(agree)}. Ours "
        "are found by running each method, so a method that adapts in principle, but stays on a bad pair for too "
        "long, has no tick."
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
        *(
            Table(
                lambda numbers, at=at: (f"method, {BLOCK_COSTS[at]}", *numbers[METHODS]["factor"].unique()),
                [adapts(at, tuner) for tuner in TUNERS_OF],
                ("",) * (at != next(iter(BLOCK_COSTS))),
            )
            for at in BLOCK_COSTS
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
