"""Tuners that are led by preferences: weights of speed, of how long first layers wait, and of what searching costs.

    python paper/mocc_tuners.py        # a minute

Simulated: ResNet50 on 8 workers, all-reduce at 3 Gbit/s, 30 windows. MOCC's weights are of a link's throughput,
latency and loss; here they are of a training's (`autobyte/comparison/preference.py` says what of). Writes

data/mocc_tuners.csv    each tuner's score under weights from a grid, and what they weigh, by seed: led by these
                        weights, and led by speed alone but scored by them; `best` is what the best config would score
                        that costs nothing to find
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import runs
import sheet

from autobyte.comparison.contest import Contest, Run, hold
from autobyte.comparison.preference import NAMES, Preference
from autobyte.comparison.truth import Truth
from autobyte.comparison.verdict import rewards_of
from autobyte.config import Space
from autobyte.job import Cluster, Job
from autobyte.models import load
from autobyte.results import DATABASE, Results

NAME = "mocc_tuners"
JOB = Job(load("resnet50"), Cluster.uniform(8, 3.75e8))
TUNERS = ("default", "random", "descent", "twin")
GRID = (  # the inner points of a grid of five steps, and speed alone
    *((1.0, 0.0, 0.0), (0.6, 0.2, 0.2), (0.4, 0.4, 0.2), (0.4, 0.2, 0.4)),
    *((0.2, 0.6, 0.2), (0.2, 0.4, 0.4), (0.2, 0.2, 0.6)),
)
BUDGET, SEEDS = 30, 5

parser = sheet.options(__doc__)
options = parser.parse_args()
if options.quick:
    BUDGET, SEEDS, GRID, TUNERS = 4, 1, GRID[1:2], TUNERS[:2]


def held(cell: tuple[Preference | None, str]) -> list[Run]:
    """Runs of one tuner under one preference; None: it looks for speed."""
    wish, tuner = cell
    contest = Contest(JOB, (tuner,), BUDGET, SEEDS, Space(), objective=wish)
    with TemporaryDirectory() as folder, Results.open(Path(folder) / DATABASE, run=contest.to_json()) as results:
        return hold(contest, results, progress=lambda *_: None)


def score(wish: Preference, runs_: list[Run], led: str) -> list[sheet.Row]:
    """A row for every run."""
    contest = Contest(JOB, TUNERS, BUDGET, SEEDS, Space(), objective=wish)
    tried = [config for run in runs_ for d in run.decisions for config in (d.measurement.config, d.config)]
    truth, configs = Truth(contest, tried), [*contest.space.grid(), *tried]
    best = contest.rewards.best(list(dict.fromkeys(configs)), wish)
    most = wish.score((*contest.rewards.of(best, 0), 1.0))
    rows = []
    for run in runs_:
        rewards = rewards_of(contest, run, truth)
        row = {"weights": str(wish), "tuner": run.tuner, "led_by": led, "seed": run.seed}
        row |= {"config": run.decisions[-1].config.label, "score": wish.score(rewards), "best": most}
        rows.append(row | {f"reward_{name}": reward for name, reward in zip(NAMES, rewards, strict=True)})
    return rows


if not options.redraw:
    wishes = [Preference(*weights) for weights in GRID]
    cells = [(wish, tuner) for wish in (None, *wishes) for tuner in TUNERS]
    found = dict(zip(cells, runs.spread(held, cells), strict=True))
    rows = [
        row
        for wish in wishes
        for tuner in TUNERS
        for led, which in (("weights", wish), ("speed", None))
        for row in score(wish, found[which, tuner], led)
    ]
    sheet.write(rows, NAME, options.out)
