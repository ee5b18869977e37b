"""What MOCC's network gets by adapting to an unseen objective, beside a learner from scratch; what old ones lose.

    python paper/mocc_adaptation.py        # after mocc_objectives.py

Simulated, on the paper's range of links. Two networks adapt: the one that ships, which was trained on 36 landmarks,
and one that was trained on 3 of them, in an eighth of the updates. Updates are as large as those of the learner from
scratch, learn as fast at first, and are half as many. Writes figures/mocc_adaptation.{pdf,png} and

data/mocc_adaptation.csv    monitor intervals until an unseen objective has 99 % of its specialists' reward (what
                            they are: mocc_objectives.py): by either network with requirement replay, and by a network
                            that learns this objective alone, from scratch. Who ends below that counts with all
                            intervals, and `reached` is 0
data/mocc_forgetting.csv    reward of the 36 landmarks, and of three new objectives, while the network is trained on
                            these in turn, with replay and without; each joins the pool that replay draws from
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice

import mocc_networks
import numpy as np
import runs
import sheet
import style
from mocc_networks import DRAW, Study

from autobyte.congestion.adapt import STEPS, adapted
from autobyte.congestion.objectives import Objective, landmarks
from autobyte.congestion.policy import RatePolicy
from autobyte.congestion.stored import digest
from autobyte.congestion.train import FIRST_RATE

NAME = "mocc_adaptation"
ENOUGH = 0.99  # of the specialists' reward
WISHES = (Objective(0.9, 0.05, 0.05), Objective(0.05, 0.9, 0.05), Objective(0.05, 0.05, 0.9))
GRIDS = {36: 10, 3: 4}  # landmarks of a network, and the steps of their grid
EVERY = 8  # updates between two looks: as many intervals as between two looks at the learner from scratch
TURN = 2  # looks while the network is trained on one of three objectives
Curve = Sequence[tuple[int, float]]


def trained(study: Study, known: int, seed: int) -> RatePolicy:
    """The network that knows so many landmarks."""
    few = {"mode": "mixed", "grid": GRIDS[known]}
    return mocc_networks.mocc(study, seed) if known == 36 else mocc_networks.variant(study, few, seed)


def prepare(cell: tuple[Study, int, int]) -> None:
    """Train a network, or find it."""
    study, seed, known = cell
    trained(study, known, seed)


def adapt(cell: tuple[Study, Objective, int, int]) -> Curve:
    """Monitor intervals and reward while a network learns an objective, until it has enough of it."""
    study, objective, seed, known = cell
    now, enough = trained(study, known, seed), ENOUGH * mocc_networks.specialists(study, objective)[0]
    what = (digest(now), objective, seed, enough, study.links, study.seed, study.adapting, study.learner.links)
    curve: Curve = mocc_networks.kept(study, "adapted", what, lambda: _adapt(cell, now, enough))
    return curve


def _adapt(cell: tuple[Study, Objective, int, int], now: RatePolicy, enough: float) -> Curve:
    study, objective, seed, known = cell
    curve: list[tuple[int, float]] = []
    pool, size = landmarks(GRIDS[known]), {"rate": FIRST_RATE, "links": study.learner.links}
    updates = islice(adapted(now, objective, DRAW, pool=pool, seed=seed, **size), EVERY - 1, study.adapting, EVERY)
    for done, policy in enumerate(chain([now], updates)):
        reward = float(mocc_networks.rewards(study, policy, [objective])[0])
        curve.append((done * EVERY * study.learner.links * STEPS, reward))
        if reward >= enough:
            break
    return curve


def until(curve: Curve, target: float) -> tuple[int, bool]:
    """Intervals until a reward is reached, and whether it is."""
    for done, reward in curve:
        if reward >= target:
            return done, True
    return curve[-1][0], False


def forget(cell: tuple[Study, int, bool]) -> list[sheet.Row]:
    """Rewards while the network is trained on three objectives, one after the other."""
    study, seed, replay = cell
    what = (digest(mocc_networks.mocc(study, seed)), seed, replay, study.links, study.seed, study.forgetting)
    rows: list[sheet.Row] = mocc_networks.kept(study, "forgotten", what, lambda: _forget(cell))
    return rows


def _forget(cell: tuple[Study, int, bool]) -> list[sheet.Row]:
    study, seed, replay = cell
    few = replace(study, links=max(2, study.links // 4))  # of each of 39 objectives
    now, pool, between = mocc_networks.mocc(study, seed), list(landmarks()), max(1, study.forgetting // TURN)
    policies = [now]
    for turn, wish in enumerate(WISHES):
        key, size = len(WISHES) * seed + turn, {"rate": FIRST_RATE, "links": study.learner.links}
        updates = adapted(now, wish, DRAW, pool=pool, seed=key, replay=replay, **size)
        policies += islice(updates, between - 1, study.forgetting, between)
        now = policies[-1]
        pool.append(wish)
    first, rows = mocc_networks.rewards(few, policies[0], landmarks()), []
    for place, policy in enumerate(policies):
        old, new = (mocc_networks.rewards(few, policy, wishes) for wishes in (landmarks(), WISHES))
        row = {"seed": seed, "replay": int(replay), "updates": place * between, "old": float(old.mean())}
        row |= {"old_least": float((old / first).min())}
        rows.append(row | {f"new_{number}": float(reward) for number, reward in enumerate(new, 1)})
    return rows


options = sheet.options(__doc__).parse_args()
if not options.redraw:
    study = mocc_networks.study_of(options)
    seeds = range(study.seeds)
    runs.spread(prepare, [(study, seed, known) for seed in seeds for known in GRIDS])
    cells = [(study, objective, seed, known) for objective in study.wished for seed in seeds for known in GRIDS]
    curves = dict(zip(cells, runs.spread(adapt, cells), strict=True))
    rows = []
    for objective, kind in study.wished.items():
        specialist, _ = mocc_networks.specialists(study, objective)
        for seed in seeds:
            alone = mocc_networks.learner(study, objective, seed, "scratch").curve
            row = {"seed": seed, "objective": str(objective), "kind": kind, "specialist": specialist}
            found = {f"known_{known}": curves[study, objective, seed, known] for known in GRIDS}
            row |= {f"{who}_at_first": curve[0][1] for who, curve in found.items()}
            for who, curve in (found | {"alone": alone}).items():
                intervals, reached = until(curve, ENOUGH * specialist)
                row |= {f"{who}_intervals": intervals, f"{who}_reached": int(reached)}
            rows.append(row)
    sheet.write(rows, NAME, options.out)
    kinds = [(study, seed, replay) for seed in seeds for replay in (True, False)]
    sheet.write((row for rows in runs.spread(forget, kinds) for row in rows), "mocc_forgetting", options.out)

found = sheet.read(NAME, options.out)
figure, (left, right) = style.new(2.1, columns=2, width=style.PAGE)
most = found[[column for column in found if column.endswith("_intervals")]].to_numpy().max() / 1e3
for who, text, colour in (
    ("known_36", "MOCC, 36 landmarks", style.BLUE),
    ("known_3", "3 landmarks", style.TEAL),
    ("alone", "from scratch", style.ORANGE),
):
    for kind, dashes in (("drawn first", "-"), ("most weight on latency", (0, (2, 1)))):
        rows = sheet.where(found, kind=kind)
        there = np.sort(rows.loc[rows[f"{who}_reached"] == 1, f"{who}_intervals"].to_numpy()) / 1e3
        share = 100 * np.arange(len(there) + 1) / max(1, len(rows))
        xs, ys = np.concatenate([[0.0], there, [most]]), np.concatenate([share, share[-1:]])
        left.step(xs, ys, where="post", color=colour, linestyle=dashes, label=text if kind == "drawn first" else None)
left.set_ylim(-3, 103)
left.set_xlabel("monitor intervals (thousands)")
left.set_ylabel("have got there (%)")
left.set_title("(a) 99 % of specialists' reward; dashed: most weight on latency")
left.legend(frameon=False, fontsize=6, loc="lower right")
old = sheet.read("mocc_forgetting", options.out)
for replay, text, colour in ((1, "with replay", style.BLUE), (0, "without", style.ORANGE)):
    for seed, rewards in sheet.where(old, replay=replay).groupby("seed"):
        share = 100 * rewards["old"] / rewards["old"].iloc[0]
        right.plot(rewards["updates"], share, color=colour, label=text if seed == 0 else None)
right.set_xlabel("updates; three objectives, one after the other")
right.set_ylabel("reward of landmarks (%)")
right.set_title("(b) old objectives: three seeds")
right.legend(frameon=False, fontsize=6)
style.save(figure, NAME, options.out / "figures")
