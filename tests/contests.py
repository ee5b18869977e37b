"""A contest that is over in a second, and the folder that `autobyte compare --out` would make of it."""

import json
from pathlib import Path
from typing import Any

from autobyte.comparison.contest import Contest, hold
from autobyte.comparison.verdict import verdict
from autobyte.config import Space
from autobyte.job import Cluster, Job, Model
from autobyte.results import Results
from autobyte.scenario import STEADY, Scenario

TOY = Model.build(
    "toy",
    [("a", [("a.w", 40_000), ("a.b", 50)], 0.002, 0.004), ("b", [("b.w", 900_000)], 0.004, 0.008)],
    batch_size=8,
)


def small_contest(
    *,
    job: Job | None = None,
    tuners: tuple[str, ...] = ("default", "p3", "grid", "random"),
    space: Space | None = None,
    scenario: Scenario = STEADY,
) -> Contest:
    """Three windows, two seeds, and tuners of which two end alike."""
    job = job or Job(TOY, Cluster.uniform(4, 1.25e8))
    return Contest(job, tuners, 3, 2, space or Space(), scenario)


def held(contest: Contest, folder: Path) -> dict[str, Any]:
    """Hold it; compare.json and results.sqlite are in the folder, the verdict comes back as it is in the file."""
    with Results.open(folder / "results.sqlite", run=contest.to_json()) as results:
        runs = hold(contest, results, progress=lambda tuner, seed, number: None)
    path = folder / "compare.json"
    path.write_text(json.dumps(verdict(contest, runs, [contest.job.model])))
    outcome: dict[str, Any] = json.loads(path.read_text())
    return outcome
