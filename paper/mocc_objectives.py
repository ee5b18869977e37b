"""What objectives get of MOCC's networks: landmarks and unseen weights, beside networks trained for one objective.

    python paper/mocc_objectives.py        # 8 minutes of CPU time

Simulated, on the paper's range of links. It trains the networks that the other scripts on MOCC use, too, and goes on
where it was stopped. Writes figures/mocc_objectives.{pdf,png} and

data/mocc_objectives.csv    reward of 36 landmarks and 100 unseen weights by three networks. `bound` is the reward of
                            the best steady rate: it never changes, and is chosen with knowledge of the link; it is
                            no proven bound. `specialist` is the mean of three networks that were trained for the
                            objective, where there are any: from scratch, or MOCC's network, trained further,
                            whichever is better
data/mocc_alone.csv         reward of all these while they learn
data/mocc_preferences.csv   what five objectives get, on links for training and on links ten times as fast
data/mocc_paired.csv        what ⟨0.8, 0.1, 0.1⟩ gets more than ⟨0.1, 0.8, 0.1⟩ on the same links, with the same
                            losses and first rates: means over links and their standard errors, for each network
"""

import math
from collections.abc import Iterable
from itertools import product

import mocc_networks
import numpy as np
import runs
import sheet
import style
from mocc_networks import ALONE, SHOWN, STARTS, Study

from autobyte.congestion.evaluate import best_steady, differences, serve
from autobyte.congestion.objectives import Objective
from autobyte.congestion.ranges import range_of
from autobyte.congestion.stored import digest

NAME, RANGES = "mocc_objectives", ("paper", "paper-test")
PAIRED = 4  # times as many links, where two objectives are compared on the same ones


def train(cell: tuple[Study, int]) -> None:
    mocc_networks.mocc(*cell)


def learn(cell: tuple[Study, Objective, int, str]) -> mocc_networks.Learner:
    return mocc_networks.learner(*cell)


def judge(cell: tuple[Study, int]) -> list[sheet.Row]:
    """What every objective gets of a network."""
    study, seed = cell
    policy = mocc_networks.mocc(study, seed)
    served = mocc_networks.judge(study, policy, list(study.objectives))
    bound = best_steady(list(study.objectives), mocc_networks.DRAW, links=study.links, seed=study.seed)
    return [
        {
            "seed": seed,
            "network": digest(policy),
            "kind": study.objectives[one.objective],
            "objective": str(one.objective),
            "reward": one.reward,
        }
        | {"utilisation": one.utilisation, "latency_ratio": one.latency_ratio, "loss": one.loss, "bound": most}
        for one, most in zip(served, bound, strict=True)
    ]


def prefer(cell: tuple[Study, int]) -> list[sheet.Row]:
    """What a few objectives get of a network, on two ranges of links."""
    study, seed = cell
    policy = mocc_networks.mocc(study, seed)
    return [
        {"seed": seed, "range": name, "objective": str(one.objective), "reward": one.reward}
        | {"utilisation": one.utilisation, "latency_ratio": one.latency_ratio, "loss": one.loss}
        for name in RANGES
        for one in serve(policy, SHOWN, range_of(name).draw, links=study.links, seed=study.seed)
    ]


def compare(cell: tuple[Study, int]) -> list[sheet.Row]:
    """What weights change, link by link."""
    study, seed = cell
    rows, policy, links = [], mocc_networks.mocc(study, seed), PAIRED * study.links
    for name in RANGES:
        apart = differences(policy, *ALONE, range_of(name).draw, links=links, seed=study.seed)
        errors = apart.std(axis=0, ddof=1) / links**0.5
        row: sheet.Row = {"seed": seed, "range": name, "links": links}
        for what, mean, error in zip(("utilisation", "latency", "loss"), apart.mean(axis=0), errors, strict=True):
            row |= {what: float(mean), f"{what}_error": float(error)}
        rows.append(row)
    return rows


def flat(found: Iterable[list[sheet.Row]]) -> list[sheet.Row]:
    return [row for rows in found for row in rows]


options = sheet.options(__doc__).parse_args()
if not options.redraw:
    study = mocc_networks.study_of(options)
    seeds = [(study, seed) for seed in range(study.seeds)]
    runs.spread(train, seeds)
    cells = [(*cell, start) for cell in product([study], study.learned_alone, range(study.seeds)) for start in STARTS]
    alone = zip(cells, runs.spread(learn, cells), strict=True)
    looks = [
        {"objective": str(objective), "seed": seed, "start": start, "intervals": intervals, "reward": reward}
        for (_, objective, seed, start), one in alone
        for intervals, reward in one.curve
    ]
    known = {str(objective): mocc_networks.specialists(study, objective) for objective in study.learned_alone}
    rows = flat(runs.spread(judge, seeds))
    for row in rows:
        row["specialist"], row["specialist_loss"] = known.get(row["objective"], (math.nan, math.nan))
    sheet.write(rows, NAME, options.out)
    sheet.write(looks, "mocc_alone", options.out)
    sheet.write(flat(runs.spread(prefer, seeds)), "mocc_preferences", options.out)
    sheet.write(flat(runs.spread(compare, seeds)), "mocc_paired", options.out)

rows = sheet.read(NAME, options.out)
figure, axes = style.new(1.9)
for kind, reference, colour, dashes, text in (
    ("landmark", "specialist", style.ORANGE, "-", "landmarks, of specialists"),
    ("unseen", "specialist", style.BLUE, "-", "unseen, of specialists"),
    ("landmark", "bound", style.ORANGE, (0, (2, 1)), "landmarks, of the best steady rate"),
    ("unseen", "bound", style.BLUE, (0, (2, 1)), "unseen, of the best steady rate"),
):
    judged = sheet.where(rows, kind=kind).dropna(subset=[reference])
    share = np.sort(100 * judged["reward"] / judged[reference])
    axes.step(share, 100 * np.arange(1, len(share) + 1) / len(share), color=colour, linestyle=dashes, label=text)
axes.set_xlabel("reward, of a reference's (%)")
axes.set_ylabel("objectives and seeds (%)")
axes.set_ylim(0, 102)
axes.grid(axis="x")
figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False, fontsize=6)
style.save(figure, NAME, options.out / "figures")
