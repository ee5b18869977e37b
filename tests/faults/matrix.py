"""Every fault on every engine beside every way to choose a config: `make faults` runs them all.

PYTHONPATH=tests python -m faults.matrix                       # all, kept in docs/data/faults and docs/faults.md
PYTHONPATH=tests python -m faults.matrix 'killed.*separate'     # those whose names match, to look at; nothing is kept
PYTHONPATH=tests python -m faults.matrix quick --out FILE.csv   # the quick column
"""

import argparse
import csv
import gc
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

from faults import page, rig
from faults.rows import QUICK, Row, all_rows
from faulty import SMALL
from jobs import make_job

from autobyte.exchange.tuning.audition import Audition
from autobyte.job import Cluster
from autobyte.scheduler.policies import POLICIES
from autobyte.simulator.world import World
from autobyte.tuning import make_tuner

AT_ONCE = 5  # rows; they wait for timeouts most of the time


def main(arguments: Sequence[str]) -> None:
    """Run rows, print what became of them, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="?", default="", help="a pattern of names, or `quick`")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    options = parser.parse_args(arguments)
    chosen = QUICK if options.rows == "quick" else [row for row in all_rows() if re.search(options.rows, row.name)]
    folder = Path(tempfile.mkdtemp(prefix="faults"))
    compile_once()
    gc.freeze()  # else every process would take seconds at its end to let go of what was imported before the fork
    if not run(list(chosen), folder, options.at_once):
        return
    outcomes = [
        rig.Outcome(**data)
        for row in chosen
        if (folder / row.name).exists()
        for data in json.loads((folder / row.name).read_text())
    ]
    for outcome in outcomes:
        print(*asdict(outcome).values(), sep=" | ")
    shutil.rmtree(folder)
    wrong = [outcome for outcome in outcomes if outcome.wrong]
    print(f"{len(chosen)} rows, {len(wrong)} of {len(outcomes)} processes not as they should be")
    out = options.out or (None if options.rows else page.DATA)
    if out is not None:
        write(out, outcomes)
    if out == page.DATA:
        page.fill(page.PAGE, page.DATA)


def compile_once() -> None:
    """Have numba compile what tuners simulate with, before processes are forked: each would do it again."""
    job = make_job(3000, 3000, 3000, cluster=Cluster(3))
    Audition().choose(lambda: job, SMALL, None)
    world = World(job)
    space = replace(POLICIES[SMALL.policy]().space(job), default=SMALL)
    tuner = make_tuner("twin", space, job=job, seed=0, budget=4)
    for _ in range(3):
        tuner.tell(world.measure(tuner.ask() or SMALL, iterations=10, warmup=2))


def run(rows: list[Row], folder: Path, at_once: int) -> bool:
    """Run rows, some at once, each in a process of its own; False in such a process."""
    left, running = list(rows), dict[int, int]()  # what each runner's row costs
    while left or running:
        if left and sum(running.values()) + _cost(left[0]) <= max(at_once, _cost(left[0])):
            row = left.pop(0)
            pid = os.fork()
            if pid == 0:
                rig.run(row, folder / row.name)
                return False
            running[pid] = _cost(row)
            continue
        pid, status = os.wait()
        del running[pid]
        if status:
            print("a row could not be run")
    return True


def _cost(row: Row) -> int:
    """So many rows at once: torchrun's ranks import everything themselves, twice."""
    return AT_ONCE if row.fault == "restart" else 1


def write(path: Path, outcomes: Sequence[rig.Outcome]) -> None:
    """Write outcomes as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [field.name for field in fields(rig.Outcome)], lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(outcome) for outcome in outcomes)


if __name__ == "__main__":
    main(sys.argv[1:])
