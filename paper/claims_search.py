"""Figure 10: what a search costs."""

from collections.abc import Callable, Iterator
from functools import partial

import pandas as pd
import sheet
from claim import NAMES, Cells, Claim, Notes, Numbers, Section, Table, emulated, launches
from jobs import BLOCK_COSTS
from reading import TUNERS, Range, bound_to, known, over, percent, span, times

NAME = "fig10_search_cost"
FIRST = next(iter(BLOCK_COSTS))
REDUCTION = (0.28, 0.81)  # how much less time than grid search the paper's AutoByte takes
METHODS = ("grid", "grid-16", "grid-12", "random", "released", "bayesian-published", "bayesian", "optuna", "descent")
METHODS += ("twin", "metanet-published", "metanet")


def costs(rows: pd.DataFrame) -> pd.Series:
    """Training time until a tuner has found it (s), medians."""
    return rows.groupby("tuner")["search_s"].median()


def shares(rows: pd.DataFrame, tuner: str, grid: str) -> Range:
    """What part of a grid's training time a search takes, over models and architectures, of medians over seeds."""
    took = rows.groupby(["model", "architecture", "tuner"])["search_s"].median().unstack("tuner")
    return span(took[tuner] / took[grid])


def reduction(rows: pd.DataFrame, tuner: str, grid: str) -> Range:
    """How much less that is."""
    least, most = shares(rows, tuner, grid)
    return (1 - most, 1 - least)


def successes(rows: pd.DataFrame, tuner: str = "") -> str:
    """How many of a tuner's runs, or of all, found it."""
    runs = sheet.where(rows, tuner=tuner) if tuner else rows
    return f"{runs['found'].sum()} of {len(runs)}"


def cost(tuner: str, block_cost: str) -> Claim:
    """What one method's searches cost, at a cost of a block."""

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells | None:
        rows = sheet.where(rows, block_cost=block_cost)
        runs = sheet.where(rows, tuner=tuner)
        if runs.empty:
            return None
        return (
            successes(rows, tuner),
            f"{runs['iterations'].median():.0f}",
            f"{runs['search_s'].median():.0f} s",
            f"{runs['lost_steps'].median():.0f}",
            *(times(shares(rows, tuner, grid)) for grid in ("grid", "grid-12")),
        )

    return Claim(NAMES[tuner], NAME, judge)


def for_tuner(
    tuner: str, block_cost: str, judge: Callable[[pd.DataFrame, Numbers], Cells]
) -> Callable[[pd.DataFrame, Numbers], Cells | None]:
    """The same of rows at a cost of a block, but nothing where the file does not have the tuner."""

    def judge_there(rows: pd.DataFrame, numbers: Numbers) -> Cells | None:
        return judge(sheet.where(rows, block_cost=block_cost), numbers) if tuner in known(rows, "tuner") else None

    return judge_there


def on_these_links(measured: str, block_cost: str) -> str:
    """What was measured, on the line of the first cost: on links a block costs what it costs there."""
    return measured if block_cost == FIRST else "as above"


def less_than_grid(tuner: str, block_cost: str) -> Claim:
    """How much less time a search takes than a small grid."""

    def on_links(measured: pd.DataFrame) -> Range | None:
        return reduction(measured, tuner, "grid-12") if bound_to(measured, "tuner", tuner, "grid-12") else None

    def judge(rows: pd.DataFrame, numbers: Numbers) -> Cells:
        less = reduction(rows, tuner, "grid-12")
        ratio = over(tuple(1 - part for part in less), tuple(1 - part for part in REDUCTION))
        measured = emulated(numbers[f"{NAME}.testbed"], on_links)
        return percent(less), f"{ratio} of the time", on_these_links(measured, block_cost)

    text = f"less time than grid search, 2 … 8 MB × 1 … 4X, {TUNERS[tuner]}, {BLOCK_COSTS[block_cost]}"
    return Claim(text, NAME, for_tuner(tuner, block_cost, judge), percent(REDUCTION))


def close_to_bo(tuner: str, block_cost: str) -> Claim:
    """Whether a search takes about as long as BO's."""

    def on_links(measured: pd.DataFrame) -> Range | None:
        return shares(measured, tuner, "bayesian") if bound_to(measured, "tuner", tuner, "bayesian") else None

    def judge(rows: pd.DataFrame, numbers: Numbers) -> Cells:
        cost_s = costs(rows)
        ours = (
            f"{cost_s[tuner] / cost_s['bayesian']:.2f} of BO's time, repaired; "
            f"{cost_s[tuner] / cost_s['bayesian-published']:.2f} as released"
        )
        measured = numbers[f"{NAME}.testbed"]
        there = emulated(measured, on_links, write=lambda part: f"{times(part)} of BO's time, repaired")
        return ours, "–", on_these_links(there, block_cost)

    text = f"close to BO, {TUNERS[tuner]}, {BLOCK_COSTS[block_cost]}"
    return Claim(text, NAME, for_tuner(tuner, block_cost, judge), "close")


def overhead(tuner: str, block_cost: str) -> Claim:
    """What a decision costs the CPU."""

    def judge(rows: pd.DataFrame, numbers: Numbers) -> Cells:
        decisions = sheet.where(numbers[f"{NAME}.measured"], tuner=tuner, block_cost=block_cost)
        own_ms = decisions["cpu_ms_per_decision"].median()
        runs = sheet.where(rows, tuner=tuner).query("iterations > 0")
        window_s = (10 * runs["search_s"] / runs["iterations"]).median()
        return (
            f"{percent((own_ms / 1e3 / window_s,))} of a core: {own_ms:.1f} ms, measured, in a window of "
            f"{window_s:.1f} s",
            "–",
            "in real training: `docs/benchmarks.md`" if tuner == "metanet" else "its real training not timed",
        )

    text = f"CPU overhead, {TUNERS[tuner]}, {BLOCK_COSTS[block_cost]}"
    return Claim(text, NAME, for_tuner(tuner, block_cost, judge), "< 1 %")


def on_costs(numbers: Numbers) -> Iterator[str]:
    """Why figure 10 differs."""
    for cost, name in BLOCK_COSTS.items():
        rows = sheet.where(numbers[NAME], block_cost=cost)
        yield f"{name}: {order(known(rows, 'tuner'), costs(rows))}"
    yield (
        "In the paper AutoByte and BO are close together and grid search is last. With NCCL's start-up, every method "
        "has one seed, as grid search has with US-Byte's. What follows is of US-Byte's."
    )
    rows = sheet.where(numbers[NAME], block_cost=FIRST)
    tuners, cost_s = known(rows, "tuner"), costs(rows)
    yield (
        "BO, repaired, searches partitions from 4 KB to 1024 MB, the paper's space. It pays for partitions of a few "
        "KB, whose steps take many times longer; a tuner that predicts never runs those. With the released settings, "
        "BO searches a linear space, in which small partitions are rare. So it costs less "
        f"({cost_s['bayesian-published']:.0f} s), and ends within 3 % of the best in "
        f"{successes(rows, 'bayesian-published')} runs."
    )
    yield (
        f"As released, with a partition that never changes, it does so in {successes(rows, 'released')}. The time of "
        "such a search says nothing, and the paper's figure 10 does not say what each search found."
    )
    yield (
        "What grid search costs depends on the grid, and the text has two: steps of 2 MB in one place, doubling from "
        f"4 KB to 1024 MB in another. {TUNERS[tuners[-1]].capitalize()} takes "
        f"{percent(reduction(rows, tuners[-1], 'grid'))} less time than all 304 pairs and "
        f"{percent(reduction(rows, tuners[-1], 'grid-12'))} less than 2 … 8 MB × 1 … 4X, where the paper has 28 … 81 "
        f"%. The small grid comes within 3 % of the best of the large one in {successes(rows, 'grid-12')} runs."
    )
    yield on_links(numbers[f"{NAME}.testbed"])


def order(tuners: list[str], cost_s: pd.Series) -> str:
    """Who is cheap, and who is close to BO."""
    cheapest_first = sorted((*tuners, "bayesian", "grid-12", "grid"), key=lambda tuner: cost_s[tuner])
    close = [TUNERS[tuner] for tuner in tuners if 1 / 2 <= cost_s[tuner] / cost_s["bayesian"] <= 2]
    away = [TUNERS[tuner] for tuner in tuners if TUNERS[tuner] not in close]
    return (
        "cheapest first, by training time: "
        + " < ".join(NAMES[tuner] for tuner in cheapest_first)
        + (f"; within a factor of two of BO: {', '.join(close)}" if close else "")
        + (f"; not close to it: {', '.join(away)}" if away else "")
        + "."
    )


def on_links(measured: pd.DataFrame) -> str:
    """What the searches on shaped links lost, which is more certain than when they were over."""
    if measured.empty:
        return ""
    lost = measured.groupby("tuner", sort=False)["lost_steps"].median().sort_values(kind="stable")
    steps = ", ".join(f"{NAMES[tuner]} {median:.0f}" for tuner, median in lost.items())
    return (
        f"{launches(measured)}. There the best is the fastest window of all, which is also the luckiest: "
        f"{successes(measured)} searches end within 3 % of it. Median steps lost, of 170: {steps}."
    )


def of_costs(_: Numbers, block_cost: str) -> Iterator[str]:
    """The heads of what every method costs, at a cost of a block."""
    yield from (
        f"method, simulated, {BLOCK_COSTS[block_cost]}; medians",
        "found, of its runs",
        "iterations",
        "training time until found",
    )
    yield from ("steps lost", "of the time of grid, 304", "of grid, 2 … 8 MB")


FIGURE_10 = Section(
    "Figure 10: what a search costs",
    NAME,
    (
        *(
            Table(partial(of_costs, block_cost=block_cost), [cost(tuner, block_cost) for tuner in METHODS], above)
            for block_cost, above in zip(BLOCK_COSTS, ((), ("",)), strict=True)
        ),
        Table(
            lambda _: ("claim", "paper", "simulated", "ratio", "emulated"),
            [
                make(tuner, block_cost)
                for block_cost in BLOCK_COSTS
                for tuner in TUNERS
                for make in (less_than_grid, close_to_bo, overhead)
            ],
            ("",),
        ),
        Notes(on_costs),
    ),
)
SECTIONS = (FIGURE_10,)
