"""What CSVs of figures say, for the claims: gains, ranges, and how they are written."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import sheet

Rows = list[dict[str, Any]]
Range = tuple[float, ...]  # a number, or the least and the largest

TUNERS = {"metanet-published": "meta-network as published", "twin": "twin", "metanet": "our meta-network"}


def median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))


def span(values: Iterable[float]) -> Range:
    """The least and the largest."""
    values = list(values)
    return (min(values), max(values))


def percent(values: Range) -> str:
    """0.064, 0.23 as '6.4 … 23.0 %'."""
    return " … ".join(dict.fromkeys(f"{100 * value:.1f}".replace("-", "−") for value in values)) + " %"


def times(values: Range) -> str:
    """1.28 as '1.28x'."""
    return " … ".join(dict.fromkeys(f"{value:.2f}" if value >= 0.1 else f"{value:.2g}" for value in values)) + "x"


def over(ours: Range, published: Range) -> str:
    """Ours by the paper's, of speeds: a gain of 10 % is 1.1."""
    return " … ".join(f"{mine / theirs:.2f}" for mine, theirs in zip(ours, published, strict=True))


def gain_over(ours: Range, published: Range) -> str:
    """The same of gains."""
    return over(tuple(1 + value for value in ours), tuple(1 + value for value in published))


def known(rows: Rows, key: str = "method") -> list[str]:
    """Those of AutoByte's tuners that a file has."""
    there = {line[key] for line in rows}
    return [name for name in TUNERS if name in there]


def gains(rows: Rows, method: str, reference: str, **where: Any) -> list[float]:
    """Gain of one method over another at each bandwidth of each model, of medians over seeds."""
    found = []
    here = sheet.where(rows, **where)
    for model, gbit in dict.fromkeys((line["model"], line["gbit"]) for line in here):
        speed = {
            name: median(sheet.column(sheet.where(here, model=model, gbit=gbit, method=name), "samples_per_s"))
            for name in (method, reference)
        }
        found.append(speed[method] / speed[reference] - 1)
    return found


def phases(rows: Rows, method: str, reference: str, **where: Any) -> list[float]:
    """Gain of one method over another in every phase of 20 iterations but the first, medians over seeds."""
    steps: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for line in sheet.where(rows, **where):
        if line["method"] in (method, reference) and line["iteration"] >= 20:
            key = (line["architecture"], line["model"], line["iteration"] // 20, line["seed"])
            steps.setdefault(key, {}).setdefault(line["method"], []).append(1 / line["samples_per_s"])
    by_phase: dict[tuple[Any, ...], list[float]] = {}
    for key, both in steps.items():
        by_phase.setdefault(key[:3], []).append(np.mean(both[reference]) / np.mean(both[method]) - 1)
    return [median(values) for values in by_phase.values()]


def bound_to(rows: Rows, key: str, *needed: str, **where: Any) -> bool:
    """Whether all of these are in a column."""
    return set(needed) <= {line[key] for line in sheet.where(rows, **where)}
