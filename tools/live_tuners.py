"""Tuners in real training loops on shaped links, one after the other in one launch. Emulated: compute by sleeping.

    python tools/live_tuners.py                  # docs/data/judge_live.csv; 40 minutes, root and an idle machine
    python tools/judge_tuners.py tables          # reads it, with all else that was judged

VGG16 with 33 MiB of gradients and 0.4 s of compute on 4 hosts: on links of 1 Gbit/s, and on links that go from 1 to
0.3 Gbit/s and back every 40 steps. Every tuner begins with the default and decides after ten steps, or five where it
knows little; the meta-network was fitted in simulation alone. Ranks have real-time priority. A row is ten steps; a
launch whose rows are there is not measured again.
"""

import argparse
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from judge_tables import append, read

from autobyte.bench.bench import Cell, entry, measure
from autobyte.bench.priority import undisturbed
from autobyte.cli.console import progress
from autobyte.exchange.planning import DEFAULT
from autobyte.testbed import Testbed

PATH = Path(__file__).parent.parent / "docs" / "data" / "judge_live.csv"
CELL = Cell("vgg16", 4, 1.25e8, compute_s=0.4, size_scale=0.063)  # as `make shaped` has it at 1 Gbit/s
TUNERS = ("default", "bayesian", "metanet", "twin")
WINDOWS = 16
LOW, EVERY = 0.3, 40  # of the rate, and steps at either
LINKS = {"1 Gbit/s": 1.0, "1 ↔ 0.3 Gbit/s": LOW}


def reshape(low: float) -> Callable[[Testbed, int], None]:
    """What a step's links are: as they began for so many steps, then a part of that, and so on."""

    def change(testbed: Testbed, step: int) -> None:
        rate = CELL.rate * (low if step // EVERY % 2 else 1.0)
        for host in range(CELL.hosts):
            if testbed.rates(host)[0] != rate:
                testbed.shape(host, up=rate, down=rate)

    return change


def windows(row: dict[str, Any]) -> list[dict[str, Any]]:
    """A run, window by window."""
    shared = {"tuner": row["name"], "other_cores": row["other_cores"], "unsound_links": row["unsound_links"]}
    return [
        shared
        | {"window": number, "partition_bytes": window["config"]["partition_bytes"]}
        | {"credit_bytes": window["config"]["credit_bytes"]}
        | {"mean_s": float(np.mean(window["steps_s"])), "median_s": float(np.median(window["steps_s"]))}
        for number, window in enumerate(row["watched"])
    ]


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="allreduce,ps")
    parser.add_argument("--repeats", type=int, default=1)
    given = parser.parse_args()
    kept = read(PATH).reindex(columns=["repeat", "engine", "links"])
    there = set(kept.itertuples(index=False, name=None))
    for repeat, engine, links in product(range(given.repeats), given.engines.split(","), LINKS):
        if (str(repeat), engine, links) in there:
            continue
        start = {"policy": DEFAULT.policy, "config": DEFAULT.to_json(), "watch": WINDOWS}
        runs = [
            entry(name, "autobyte", engine, None, **start, **({} if name == "default" else {"tuner": name}))
            for name in TUNERS
        ]
        with progress(f"{engine}, {links}") as shown, undisturbed():
            measured = measure(CELL, runs, steps=10, progress=shown, change=reshape(LINKS[links]))
        rows = [
            {"links": links, "engine": engine, "repeat": repeat} | row for run in measured for row in windows(run)
        ]
        append(PATH, rows)


if __name__ == "__main__":
    main()
