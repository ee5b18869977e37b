"""All policies on the same links, each tuned: what simulation finds best is measured, and the fastest counts.

The search is the same for all: configs drawn from the policy's own space are simulated on a calibrated job. The best
two are measured, and what training begins with, and blocks of 1 MiB, one and two in flight, where a policy has them:
they differ by 3 % on links, and not in simulation. The fastest is measured again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import qmc

from autobyte.bench.bench import BUCKETS_MIB, Cell, Progress, entry, measure
from autobyte.comparison.policies import AUTO, Entrant
from autobyte.config import Config
from autobyte.exchange.planning import begin_with
from autobyte.simulator.calibrate import EngineCosts
from autobyte.simulator.landscape import survey
from autobyte.units import MIB

ENGINE = "allreduce"
DRAWN = 128  # configs of a policy that are simulated
FOUND = 2  # of them that are measured
STEADY = ((MIB, MIB), (MIB, 2 * MIB))  # partition and credit, of any policy that has them


def tuned(cell: Cell, name: str, costs: EngineCosts) -> list[Config]:
    """What to measure of a policy: what training begins with, `STEADY`, and what is best by simulation.

    Args:
        cell: what it runs on.
        name: of the policy, maybe with knobs.
        costs: of the engine; they are the only thing that is known of it.
    """
    job = costs.price(cell.job(servers=False, wire_dtype=None))
    space = Entrant(name).space(job)
    first = begin_with(Entrant(name).policy, workers=cell.hosts, servers=False)
    first = replace(first, knobs=space.default.knobs)
    steady = (replace(first, partition_bytes=partition, credit_bytes=credit) for partition, credit in STEADY)
    known = list(dict.fromkeys([first, *(config for config in steady if config in space)]))
    drawn = qmc.Sobol(len(space.names), seed=0).random(DRAWN) if space.names else []
    configs = list(dict.fromkeys(space.at(point.tolist()) for point in drawn)) or known
    land = survey(job, configs, effects=costs.effects)
    ranked = [configs[index] for index in np.argsort(land.step_s, kind="stable")]
    return list(dict.fromkeys([*known, *ranked[:FOUND]]))


def compared(
    cell: Cell,
    names: Sequence[str],
    costs: EngineCosts,
    *,
    steps: int,
    repeats: int,
    progress: Progress,
    plugins: Sequence[Path] = (),
) -> list[dict[str, Any]]:
    """Search, then measure what was found `repeats` times, DDP's buckets and `auto` beside it.

    Args:
        cell: what they run on.
        names: policies; `auto` searches for itself, in each of the repeats.
        costs: what simulation is told of the engine.
        steps: measured, of every config in every repeat.
        repeats: besides the search.
        plugins: files of the user's own that every rank loads.
        progress: shows how far it is.

    Returns:
        rows for `table`; none is of the search.
    """
    searching = [_searching(cell, name, costs) for name in names if name != AUTO]
    how: dict[str, Any] = {"steps": steps, "plugins": plugins, "progress": progress}
    fastest = _fastest(measure(cell, searching, **how)) if searching else {}
    again = [entry("ddp", "ddp", ENGINE, None, bucket_mib=bucket) for bucket in BUCKETS_MIB]
    for name in names:
        chosen = (
            {"policy": fastest[name].policy, "config": fastest[name].to_json()}
            if name in fastest
            else {"policy": AUTO}
        )
        again.append(entry(name, "autobyte", ENGINE, None, **chosen))
    rows = []
    for _ in range(repeats):
        rows += measure(cell, again, **how)
    return rows


def _searching(cell: Cell, name: str, costs: EngineCosts) -> dict[str, Any]:
    first, *more = [config.to_json() for config in tuned(cell, name, costs)]
    return entry(name, "autobyte", ENGINE, None, policy=Entrant(name).policy, config=first, more=more)


def _fastest(rows: Iterable[dict[str, Any]]) -> dict[str, Config]:
    """The fastest config of each policy."""
    best: dict[str, tuple[float, Config]] = {}
    for row in rows:
        step_s = float(np.median(row["steps_s"]))
        if row["name"] not in best or step_s < best[row["name"]][0]:
            best[row["name"]] = step_s, Config.from_json(row["config"])
    return {name: config for name, (_, config) in best.items()}
