"""What MOCC's parts bring, at equal steps; and a variant of ours with a bound on loss.

    python paper/mocc_ablations.py

Simulated. Every network is trained with an eighth of the updates of those that ship, three times each. Writes

data/mocc_ablations.csv    reward of 40 unseen objectives, on the paper's range of links
data/mocc_bounded.csv      reward and loss of five objectives on the release's links, whose queues are short: learned
                           by the weighted sum, and by the sum with a price for loss above 5 %, which is ours
"""

import mocc_networks
import numpy as np
import runs
import sheet
from mocc_networks import FEW, SHOWN, Study

from autobyte.congestion.evaluate import best_steady, serve
from autobyte.congestion.ranges import range_of

BOUND, JUDGED = 0.05, 40  # share of losses, and unseen objectives that variants are judged by
VARIANTS = {
    "two-phase": {},
    "mixed": {"mode": "mixed"},
    "mixed, 10 landmarks": {"mode": "mixed", "grid": 6},
    "mixed, 6 landmarks": {"mode": "mixed", "grid": 5},
    "mixed, 3 landmarks": {"mode": "mixed", "grid": 4},
    "two-phase, plain concatenation": {"preference": False},
}
BOUNDED = {
    "weighted sum": {"ranges": ("release",)},
    "loss bounded (ours)": {"ranges": ("release",), "loss_bound": BOUND},
}


def ablate(cell: tuple[Study, str, int, np.ndarray]) -> sheet.Row:
    """Train a variant, and let it serve objectives that are no landmarks."""
    study, name, seed, bound = cell
    what = (name, VARIANTS[name], seed, bound.tolist(), study.mocc, FEW, study.links, study.seed)
    row: sheet.Row = mocc_networks.kept(study, "ablated", what, lambda: _ablate(cell))
    return row


def _ablate(cell: tuple[Study, str, int, np.ndarray]) -> sheet.Row:
    study, name, seed, bound = cell
    policy = mocc_networks.variant(study, VARIANTS[name], seed)
    served = mocc_networks.judge(study, policy, study.unseen_objectives[:JUDGED])
    share = np.array([one.reward for one in served]) / bound
    row = {"variant": name, "seed": seed, "share": share.mean(), "share_p5": np.percentile(share, 5)}
    return row | {"reward": np.mean([one.reward for one in served]), "loss": np.mean([one.loss for one in served])}


def bound(cell: tuple[Study, str, int]) -> list[sheet.Row]:
    """Train on links with short queues, and look at what is lost."""
    study, name, seed = cell
    what = (name, BOUNDED[name], seed, study.mocc, FEW, study.links, study.seed)
    rows: list[sheet.Row] = mocc_networks.kept(study, "bounded", what, lambda: _bound(cell))
    return rows


def _bound(cell: tuple[Study, str, int]) -> list[sheet.Row]:
    study, name, seed = cell
    policy = mocc_networks.variant(study, BOUNDED[name], seed)
    served = serve(policy, SHOWN, range_of("release").draw, links=study.links, seed=study.seed)
    return [
        {"reward of training": name, "seed": seed, "objective": str(one.objective), "reward": one.reward}
        | {"utilisation": one.utilisation, "latency_ratio": one.latency_ratio, "loss": one.loss}
        for one in served
    ]


options = sheet.options(__doc__).parse_args()
if not options.redraw:
    study = mocc_networks.study_of(options)
    seeds = range(study.seeds)
    unseen = study.unseen_objectives[:JUDGED]
    known = {"links": study.links, "seed": study.seed}
    steady = np.array(
        mocc_networks.kept(
            study, "steady", (unseen, known), lambda: best_steady(unseen, mocc_networks.DRAW, **known).tolist()
        )
    )
    cells = [(study, name, seed, steady) for name in VARIANTS for seed in seeds]
    sheet.write(runs.spread(ablate, cells), "mocc_ablations", options.out)
    found = runs.spread(bound, [(study, name, seed) for name in BOUNDED for seed in seeds])
    sheet.write((row for rows in found for row in rows), "mocc_bounded", options.out)
