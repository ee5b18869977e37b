"""The numbers that the page of a comparison shows: the references, and a row for each tuner."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autobyte.comparison.oracle import lack
from autobyte.comparison.panels.look import Outcome
from autobyte.config import Config
from autobyte.units import format_seconds


@dataclass(frozen=True)
class Fact:
    """A number to compare tuners with, what it is, and what else there is to say of it."""

    name: str
    number: str
    remark: str


@dataclass(frozen=True)
class TableCell:
    """A median with its unit, and below it the 10th and the 90th percentile, where runs differ."""

    median: str
    spread: str = ""


@dataclass(frozen=True)
class TableRow:
    """A tuner, or a config that no tuner chose."""

    name: str
    config: str
    cells: list[TableCell]
    reference: bool


Column = tuple[str, Callable[[float], str], str]  # its head, how numbers are written, their unit


def three(number: float) -> str:
    """Write a number with three figures, or more where it is large.

    >>> three(5370.6), three(36.24), three(0.0042)
    ('5,371', '36.2', '0.0042')
    """
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def percent(part: float) -> str:
    """Write a share in percent, without the sign for it.

    >>> percent(-0.5)
    '−50.0'
    """
    return f"{100 * part:.1f}".replace("-", "−")


COLUMNS: dict[str, Column] = {
    "samples_per_s": ("samples/s", "{:,.1f}".format, ""),
    "speedup_over_fifo": ("over FIFO", "{:.2f}".format, "x"),
    "gap_closed": ("gap closed", percent, " %"),
    "regret": ("regret", percent, " %"),
    "iterations": ("iterations", "{:.0f}".format, ""),
    "search_cost_s": ("search cost", three, " s"),
    "switches": ("switches", "{:.0f}".format, ""),
    "tuner_cpu_s": ("tuner’s CPU", lambda seconds: three(1e3 * seconds), " ms"),
}
NO_SPREAD: dict[str, Any] = {"tuner_cpu_s": None}  # the noise of a machine


def references(outcome: Outcome) -> list[Fact]:
    """What tuners are compared with, as steps and as speeds; where something changes, the oracle."""
    job, times = outcome["job"], outcome["references"]
    samples = job["batch_size"] * job["workers"] * job["accumulation"]
    names = {"bound_s": "the bound", "ddp_best_s": "DDP at its best bucket", "fifo_s": "FIFO, nothing overlapping"}
    facts = [
        Fact(name + _when(outcome), format_seconds(times[key]), f"a step, {samples / times[key]:,.1f} samples/s")
        for key, name in names.items()
    ]
    oracle = outcome.get("oracle")  # comparisons of an earlier version have none
    if outcome["changes"] and oracle:
        speed = f"{oracle['samples_per_s']:,.1f} samples/s"
        facts.append(Fact("the oracle, over the whole run", speed, lack(oracle["gap"])))
    return facts


def table(outcome: Outcome) -> list[TableRow]:
    """Medians with spreads below them; the best constant and the optimum as the last rows."""
    rows = [_row(tuner["name"], tuner, tuner["spread"] | NO_SPREAD) for tuner in outcome["tuners"]]
    for key in ("best_constant", "optimum"):
        place = outcome[key]
        known = {"config": place, "samples_per_s": place["samples_per_s"], "regret": place["regret"]}
        rows.append(_row(key.replace("_", " ") + _when(outcome), known, {}, reference=True))
    return rows


def _when(outcome: Outcome) -> str:
    """Said of what holds for the cluster as it is before it changes."""
    return " at first" if outcome["changes"] else ""


def _row(name: str, numbers: dict[str, Any], spread: dict[str, Any], *, reference: bool = False) -> TableRow:
    config = Config(numbers["config"]["partition_bytes"], numbers["config"]["credit_bytes"])
    cells = [
        _cell(column, numbers[key], spread.get(key)) if key in numbers else TableCell("")
        for key, column in COLUMNS.items()
    ]
    return TableRow(name, config.label, cells, reference)


def _cell(column: Column, median: float | None, spread: Sequence[float] | None) -> TableCell:
    _, write, unit = column
    if median is None:
        return TableCell("–")
    low, high = (write(end) for end in spread or (median, median))
    return TableCell(write(median) + unit, f"{low} to {high}" if low != high else "")
