"""What commands do with `--gpu`: real models, all ranks on this machine's GPU, links shaped."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from autobyte.bench.real import RealCell
    from autobyte.testbed.rig import Rig

GpuOption = Annotated[
    bool,
    typer.Option(
        "--gpu",
        help="on this machine's GPU, which all ranks share; NCCL over the hosts' links. Needs root, and NVIDIA's MPS",
    ),
]
RehearseOption = Annotated[
    bool,
    typer.Option(
        "--rehearse", help="what --gpu does, on CPUs: gloo stands for NCCL. Shows that it runs, and measures nothing"
    ),
]

LIMIT_S = 3600.0  # of one batch size
STALL_S = 300.0  # without a word from any rank


def bench_real(cells: Sequence["RealCell"], rigs: Sequence["Rig"], *, out: Path | None, json: bool) -> int:
    """Measure real models on the rig, and show what they come to; the exit status, 1 if a launch failed.

    Args:
        cells: one launch for each on every rig.
        rigs: hosts, links and device.
        out: a folder for the records, as JSON lines; None keeps none.
        json: whether one JSON object is printed, instead of tables.

    Raises:
        InputError: a model that there is not.
        FileError: the folder has such records already.
        TestbedError: there is no rig.
    """
    from tempfile import TemporaryDirectory

    from autobyte.bench import networks, real
    from autobyte.bench.records import provenance
    from autobyte.bench.verdict import add_verdicts
    from autobyte.cli.console import print_json, warn
    from autobyte.errors import FileError
    from autobyte.testbed import TestbedError

    for cell in cells:
        networks.check(cell.model)
    known = provenance(rigs[0].find())
    outcomes: list[dict[str, Any]] = []
    failures = []
    with TemporaryDirectory() as folder:
        place = out or Path(folder)
        launches = [(cell, rig, place / _file(cell.model, rig.rate)) for rig in rigs for cell in cells]
        for *_, file in launches:
            if file.exists():
                raise FileError(f"{file} exists already: name another folder, or remove it")
        place.mkdir(parents=True, exist_ok=True)
        for cell, rig, file in launches:
            limit_s = LIMIT_S * max(1, len(cell.ratios))
            told = real.told(rig, "rows", cell.spec(), out=file, provenance=known, limit_s=limit_s)
            try:
                with told as path:
                    rig.run([*real.RANK, str(path)], limit_s=limit_s, stall_s=STALL_S, show=_progress)
            except TestbedError as error:
                if not file.exists():
                    raise
                failures.append(f"{cell.model}: {error}")
            if file.exists():
                add_verdicts(file)
            found = real.cells(real.read(file))
            outcomes += found
            for outcome in [] if json else found:
                _show(outcome)
    if json:
        print_json({**known, "ranks_on_card": rigs[0].hosts, "cells": outcomes, "failures": failures})
    for failure in failures:
        warn(f"{failure}; what was measured before is shown")
    return 1 if failures else 0


def _file(model: str, rate: float) -> str:
    """What the file of a model's records is called."""
    return f"{Path(model.replace(':', '-')).name.replace('.py-', '-')}-{rate * 8e-6:g}Mbit.jsonl"


def _progress(rank: int, line: str) -> None:
    """Tell what the first rank says; of the others only what goes wrong ends a launch, and is told then."""
    from autobyte.cli.console import warn

    if rank == 0 and line[2:3] == ":":  # it begins with the time
        warn(line)


def _show(outcome: dict[str, Any]) -> None:
    from autobyte.cli.console import print_line, print_table
    from autobyte.config import Config
    from autobyte.units import format_rate

    ratio = "" if outcome["ratio"] is None else f", communication {outcome['ratio']:.2f} of compute"
    what = "measured" if outcome["what"] == "measured" else "a rehearsal, which measures nothing"
    print_line(
        f"{outcome['model']}, batch {outcome['batch']} on each of {outcome['ranks']} ranks, links of "
        f"{format_rate(outcome['rate'])}{ratio} · {outcome['card']}, torch {outcome['torch']} · {what}"
    )
    rows = [
        (
            row["method"],
            row.get("engine") or "–",
            Config.from_json(row["config"]).full_label if "config" in row else "–",
            f"{row['step_s'] * 1e3:.1f} ms",
            f"{(row['step_high_s'] - row['step_low_s']) / 2 * 1e3:.1f}",
            f"{row['host_s'] * 1e3:.1f} ms",
            f"{row['samples_per_s']:.1f}",
            _times(row["speedup_over_ddp"], 2) + (" best" if row["is_best_ddp"] else ""),
            _times(row["over_bound"], 3),
        )
        for row in outcome["rows"]
    ]
    columns = ("method", "engine", "config", "step", "±", "host", "samples/s", "over DDP", "bound")
    print_table(columns, rows, spare=("±", "samples/s", "host"))
    if outcome["doctor"] is not None:
        print_line(_verdict(outcome["doctor"]))
    if outcome["left_out"]:
        print_line(f"no time was left for: {', '.join(outcome['left_out'])}")
    print_line("over DDP: the fastest of DDP's with the same dtype on the wire. bound: step over the least possible.")


def _verdict(doctor: Mapping[str, Any]) -> str:
    """Doctor's verdict beside what was measured, in words."""
    expected = f"doctor says {doctor['verdict']}, and expects {100 * doctor['expected_gain']:.0f} % over DDP's best"
    if doctor["measured_gain"] is None:
        return f"{expected}; nothing of AutoByte's was measured"
    right = {None: "", True: ": right", False: ": wrong"}[doctor["right"]]
    return f"{expected}; measured: {100 * doctor['measured_gain']:.0f} % by {doctor['method']}{right}"


def _times(ratio: float | None, digits: int) -> str:
    return "–" if ratio is None else f"{ratio:.{digits}f}x"
