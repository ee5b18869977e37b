"""The numbers of a comparison in HTML: the references, and a row for each tuner."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from autobyte.comparison.oracle import lack
from autobyte.comparison.panels.look import Outcome
from autobyte.comparison.title import count
from autobyte.config import Config
from autobyte.tuning import WINDOW
from autobyte.units import format_seconds

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


def references(outcome: Outcome) -> str:
    """What tuners are compared with, as steps and as speeds; where something changes, the oracle."""
    job, times = outcome["job"], outcome["references"]
    samples = job["batch_size"] * job["workers"] * job["accumulation"]
    names = {"bound_s": "the bound", "ddp_best_s": "DDP at its best bucket", "fifo_s": "FIFO, nothing overlapping"}
    boxes = [
        f"<div><dt>{name}{_when(outcome)}</dt><dd>{format_seconds(times[key])} "
        f"<small>a step, {samples / times[key]:,.1f} samples/s</small></dd></div>"
        for key, name in names.items()
    ]
    if oracle := _oracle(outcome):
        boxes.append(
            f"<div><dt>the oracle, over the whole run</dt><dd>{oracle['samples_per_s']:,.1f} samples/s "
            f"<small>{lack(oracle['gap'])}</small></dd></div>"
        )
    return f'<dl class="facts">{"".join(boxes)}</dl>'


def table(outcome: Outcome) -> str:
    """Medians with spreads below them; the best constant and the optimum as the last rows."""
    heads = ["tuner", "⟨S<sub>p</sub>, S<sub>c</sub>⟩", *(head for head, _, _ in COLUMNS.values())]
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    rows = [_row(escape(tuner["name"]), tuner, tuner["spread"] | NO_SPREAD) for tuner in outcome["tuners"]]
    for key in ("best_constant", "optimum"):
        place = outcome[key]
        known = {"config": place, "samples_per_s": place["samples_per_s"], "regret": place["regret"]}
        rows.append(_row(key.replace("_", " ") + _when(outcome), known, {}, kind="reference"))
    body = "\n".join(rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def note(outcome: Outcome) -> str:
    """What the numbers of the table are."""
    speeds = "of the whole run" if outcome["changes"] else "of the config left in force, without noise"
    late = f"knows the truth, one window of {WINDOW} iterations late"
    other = f" The oracle {late}; gap closed is from DDP to the bound, not to the oracle." if _oracle(outcome) else ""
    return (
        f"Medians of {count(outcome['seeds'], 'run')}; below them the 10th and the 90th percentile, where runs "
        f"differ. Speeds are {speeds}. The config is that of the run in the middle. A tuner’s CPU time is measured, "
        f"all else is {escape(outcome['what'])}.{other}{_failures(outcome)}"
    )


def _oracle(outcome: Outcome) -> dict[str, Any] | None:
    """The oracle where something changes; comparisons of an earlier version have none."""
    return outcome.get("oracle") if outcome["changes"] else None


def _failures(outcome: Outcome) -> str:
    """Who failed, if anyone did."""
    failed = {tuner["name"]: tuner["failed_runs"] for tuner in outcome["tuners"] if tuner["failed_runs"]}
    return "".join(
        f" {escape(name)} failed in {count(runs, 'run')}; the best config so far went on."
        for name, runs in failed.items()
    )


def _when(outcome: Outcome) -> str:
    """Said of what holds for the cluster as it is before it changes."""
    return " at first" if outcome["changes"] else ""


def _row(name: str, numbers: dict[str, Any], spread: dict[str, Any], *, kind: str = "") -> str:
    config = Config(numbers["config"]["partition_bytes"], numbers["config"]["credit_bytes"])
    cells = [
        _cell(column, numbers[key], spread.get(key)) if key in numbers else "<td></td>"
        for key, column in COLUMNS.items()
    ]
    return f'<tr class="{kind}"><th scope="row">{name}</th><td>{escape(config.label)}</td>{"".join(cells)}</tr>'


def _cell(column: Column, median: float | None, spread: Sequence[float] | None) -> str:
    _, write, unit = column
    if median is None:
        return "<td>–</td>"
    low, high = (write(end) for end in spread or (median, median))
    return f"<td>{write(median)}{unit}{f'<small>{low} to {high}</small>' if low != high else ''}</td>"
