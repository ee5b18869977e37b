"""What `autobyte bench --frontend` does: front ends beside their frameworks' own ways."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autobyte.bench.bench import Cell


def bench_front_end(
    cells: Iterable["Cell"],
    name: str,
    engine: str,
    *,
    settings: dict[str, Any],
    out: Path | None,
    real_time: bool,
    json: bool,
) -> int:
    """Measure a front end on every model and rate, and show what its ways come to; the exit status.

    Args:
        cells: models and links.
        name: of the front end.
        engine: that AutoByte moves blocks by.
        settings: tuner, windows, steps and repeats, as `compared` has them.
        out: a folder for the outcomes as JSON; what it holds is not measured again.
        real_time: whether ranks have real-time priority.
        json: whether one JSON object is printed, instead of tables.

    Raises:
        InputError: no such front end or engine, or real-time priority is not granted.
        MissingExtra: the framework is not installed.
        FileError: the folder holds another measurement.
        TestbedError: there is no testbed, or a rank failed.
    """
    from autobyte.bench.frontends import check
    from autobyte.cli.console import print_json

    check(name, engine)
    outcomes = []
    for cell in cells:
        outcomes.append(_kept(cell, name, engine, settings, out=out, real_time=real_time))
        if not json:
            _show(outcomes[-1])
    if json:
        print_json(outcomes[0] if len(outcomes) == 1 else {"cells": outcomes})
    return 0


def _kept(
    cell: "Cell", name: str, engine: str, settings: dict[str, Any], *, out: Path | None, real_time: bool
) -> dict[str, Any]:
    """One cell: measured, or read where it was."""
    import json
    from contextlib import nullcontext

    from autobyte.bench.frontends import compared
    from autobyte.bench.priority import undisturbed
    from autobyte.cli.console import progress
    from autobyte.cli.files import write_json
    from autobyte.errors import FileError, InputError

    how = settings | {"real_time": real_time}
    title = f"{name}-{engine}-{Path(cell.model).stem}-{cell.rate * 8e-6:g}Mbit"
    path = out / f"{title}.json" if out is not None else None
    if path is not None and path.exists():
        kept: dict[str, Any] = json.loads(path.read_text())
        if kept.get("settings") != how or kept.get("emulated") != cell.describe():
            raise FileError(f"{path} holds another measurement: name another folder, or remove it")
        return kept
    with progress(title) as step, undisturbed() if real_time else nullcontext(enter_result=True) as granted:
        if not granted:
            raise InputError("--real-time needs root, and sight of the kernel's threads: leave it out in containers")
        outcome = compared(cell, name, engine, **settings, progress=step)
    outcome |= {"settings": how}
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, outcome)
    return outcome


def _show(outcome: dict[str, Any]) -> None:
    from autobyte.bench.bench import label
    from autobyte.cli.console import print_line, print_table

    print_line(outcome["emulated"])
    rows = [
        (
            row["title"] + ("" if row["own"] else f" on {outcome['engine']}"),
            "–" if row["config"] is None else label(row["config"]),
            f"{row['step_s'] * 1e3:.0f} ms",
            f"{(row['step_high_s'] - row['step_low_s']) / 2 * 1e3:.0f}",
            "–" if row.get("exposed_s") is None else f"{row['exposed_s'] * 1e3:.0f} ms",
            f"{row['over_bound']:.2f}x",
            f"{row['speedup']:.2f}x",
        )
        for row in outcome["rows"]
    ]
    print_table(("way", "config", "step", "±", "exposed", "bound", "speedup"), rows, spare=("±", "exposed"))
    if outcome["warning"]:
        print_line(f"{outcome['warning']}: measure again")
    print_line("exposed: part of the step in which the model stands still for averages, as AutoByte reports it.")
    print_line("bound: step over the least that is possible. speedup: over the fastest of the framework's own ways.")
