"""Is `auto`, once it has decided, ever slower than DDP at its best bucket, and the default than DDP's? Emulated.

    python tools/never_slower.py                         # 3 launches of each cell of docs/data/bench and dilated
    python tools/never_slower.py --rates 2 --minutes 30  # begins no launch after 30 minutes; the next call goes on
    python tools/never_slower.py --table                 # only the table, from what is there

Root and an idle machine; ranks compute by sleeping, at real-time priority. In a launch, turns of DDP, of `auto`,
of the default and of DDP's default bucket follow on each other, so all see the same links. The first launch of a cell
measures DDP's four bucket sizes and lets `auto` decide, which takes most of its time; those after it begin with what
was found (`out/never`). docs/data/never has every step, and the table in docs/benchmarks.md is made from it.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from judge_tables import fill
from shaped_tables import DATA, ROOT, kept, never

from autobyte.bench.bench import BUCKETS_MIB, Cell, entry, measure
from autobyte.bench.priority import undisturbed
from autobyte.cli.console import print_line, progress

NEVER, FOUND = DATA / "never", ROOT / "out" / "never"
STEPS = 8  # measured in a turn
DECISIONS = 30  # windows of ten steps that `auto` may take to decide, for the launch's time limit
STAYS = ("config", "reduced", "decided_after", "bucket_mib", "buckets_s", "cpu_s", "ddp_cpu_s", "other_cores")
STAYS += ("default_cpu_s", "ddp_default_cpu_s")
SECONDS = ("steps_s", "ddp_s", "default_s", "ddp_default_s")

Launch = dict[str, Any]


def known() -> list[Cell]:
    """The cells of the bench."""
    return [Cell(**outcome["cell"]) for folder in ("bench", "dilated") for outcome in kept(folder)]


def rate_of(cell: Cell) -> float:
    """The rate that a cell stands for (Gbit/s)."""
    return round(cell.stands_for * 8e-9, 6)


def cells(rates: Sequence[float]) -> Iterator[Cell]:
    """The cells of the bench at these rates (Gbit/s), those with dilated time last."""
    for dilated, rate in product((False, True), rates):
        yield from (cell for cell in known() if rate_of(cell) == rate and (cell.dilation != 1) == dilated)


def name_of(cell: Cell) -> str:
    """The name of a cell's file, as `autobyte bench` has it."""
    dilated = f"-dilated{cell.dilation:g}" if cell.dilation != 1 else ""
    return f"{Path(cell.model).stem}-{cell.stands_for * 8e-6:g}Mbit{dilated}"


def launch(cell: Cell, before: Sequence[Launch], *, turns: int) -> Launch:
    """Measure a cell once.

    Args:
        cell: what to measure.
        before: launches of it that were measured.
        turns: of DDP, and as many of all others.
    """
    FOUND.mkdir(parents=True, exist_ok=True)
    found = FOUND / f"{name_of(cell)}.toml"
    if not before:
        found.unlink(missing_ok=True)  # it decides now
    buckets = [before[0]["bucket_mib"]] if before else list(BUCKETS_MIB)
    how = {"policy": "auto", "beside": buckets, "turns": turns, "keep": str(found)}
    run = entry("auto", "autobyte", "allreduce", None, **how, windows=DECISIONS)
    with progress(f"{name_of(cell)}, launch {len(before) + 1}") as shown, undisturbed():
        (row,) = measure(cell, [run], steps=STEPS, progress=shown)
    rounded = {key: [round(seconds, 6) for seconds in row[key]] for key in SECONDS}
    return {key: row[key] for key in STAYS} | {"unsound_links": row["unsound_links"]} | rounded


def missing(chosen: Sequence[Cell], launches: int) -> Iterator[tuple[Cell, list[Launch]]]:
    """What is to be measured next, one after the other: cells of one rate in turn, and then those of the next.

    Yields:
        a cell, and its launches so far; read when it is asked for, so what was measured before is among them.
    """
    rates = list(dict.fromkeys((cell.rate, cell.dilation) for cell in chosen))
    for rate, number in product(rates, range(launches)):
        for cell in chosen:
            path = NEVER / f"{name_of(cell)}.json"
            before = json.loads(path.read_text(encoding="utf-8"))["launches"] if path.exists() else []
            if (cell.rate, cell.dilation) == rate and len(before) == number:
                yield cell, before


def keep(cell: Cell, launches: Sequence[Launch]) -> None:
    """Write what was measured of a cell."""
    NEVER.mkdir(parents=True, exist_ok=True)
    about = {"model": cell.model, "hosts": cell.hosts, "rate": cell.rate, "compute_s": cell.compute_s}
    about |= {"size_scale": cell.size_scale, "dilation": cell.dilation}
    told = {"cell": about, "emulated": cell.describe(), "launches": list(launches)}
    (NEVER / f"{name_of(cell)}.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Measure what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="2,0.5,1", help="Gbit/s, in this order")
    parser.add_argument("--models", default="", help="separated by commas; default: all")
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--turns", type=int, default=4, help="of eight steps, of each of the four in a launch")
    parser.add_argument("--table", action="store_true", help="measure nothing, only write the table")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no launch begins")
    given = parser.parse_args()
    until_s = time.monotonic() + 60 * given.minutes
    all_models, all_rates = {cell.model for cell in known()}, {rate_of(cell) for cell in known()}
    models = given.models.split(",") if given.models else list(all_models)
    rates = [float(rate) for rate in given.rates.split(",")]
    for option, asked, there in (("--models", models, all_models), ("--rates", rates, all_rates)):
        if absent := [each for each in asked if each not in there]:
            parser.error(f"no cell for {option} {absent[0]}; there are {', '.join(map(str, sorted(there)))}")
    wanted = [cell for cell in cells(rates) if cell.model in models]
    for cell, before in () if given.table else missing(wanted, given.launches):
        if time.monotonic() > until_s:
            break
        began_s = time.monotonic()
        keep(cell, [*before, launch(cell, before, turns=given.turns)])
        print_line(f"{name_of(cell)}, launch {len(before) + 1}: {time.monotonic() - began_s:.0f} s")
    fill(ROOT / "docs" / "benchmarks.md", {"never": never()})


if __name__ == "__main__":
    main()
