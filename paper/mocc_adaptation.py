"""What MOCC's network gets by adapting to an unseen objective, beside a learner from scratch; what old ones lose.

    python paper/mocc_adaptation.py        # after mocc_objectives.py

Simulated, on the paper's range of links. Two networks adapt: the one that ships, which was trained on 36 landmarks,
and one that was trained on 3 of them, in an eighth of the updates. Updates are as large as those of the learner from
scratch, learn as fast at first, and are half as many. Writes figures/mocc_adaptation.{pdf,png} and

data/mocc_adaptation.csv    monitor intervals until an unseen objective has 99 % of its specialists' reward (what
                            they are: mocc_objectives.py): by either network with requirement replay, and by a network
                            that learns this objective alone, from scratch. Who ends below that counts with all
                            intervals, and `reached` is 0
data/mocc_adapting.csv      reward while networks adapt
data/mocc_forgetting.csv    reward of the 36 landmarks, and of three new objectives, while the network is trained on
                            these in turn, with replay and without; each joins the pool that replay draws from
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import mocc_networks
import runs
import sheet
import style
from mocc_networks import DRAW, Study

from autobyte.congestion.adapt import STEPS, adapted
from autobyte.congestion.objectives import Objective, landmarks
from autobyte.congestion.train import FIRST_RATE

NAME = "mocc_adaptation"
ENOUGH = 0.99  # of the specialists' reward
WISHES = (Objective(0.9, 0.05, 0.05), Objective(0.05, 0.9, 0.05), Objective(0.05, 0.05, 0.9))
GRIDS = {36: 10, 3: 4}  # landmarks of a network, and the steps of their grid
EVERY = 8  # updates between two looks: as many intervals as between two looks at the learner from scratch
TURN = 2  # looks while the network is trained on one of three objectives
Curve = Sequence[tuple[int, float]]


def trained(study: Study, known: int, seed: int) -> mocc_networks.RatePolicy:
    """The network that knows so many landmarks."""
    few = {"mode": "mixed", "grid": GRIDS[known]}
    return mocc_networks.mocc(study, seed) if known == 36 else mocc_networks.variant(study, few, seed)


def prepare(cell: tuple[Study, int, int]) -> None:
    """Train a network, or find it."""
    study, seed, known = cell
    trained(study, known, seed)


def adapt(cell: tuple[Study, Objective, int, int]) -> Curve:
    """Monitor intervals and reward while a network learns an objective."""
    study, objective, seed, known = cell
    before = trained(study, known, seed)
    pool, size = landmarks(GRIDS[known]), {"rate": FIRST_RATE, "links": study.learner.links}
    updates = adapted(before, objective, DRAW, pool=pool, seed=seed, **size)
    policies = [before, *islice(updates, study.adapting)]
    return [
        (done * study.learner.links * STEPS, float(mocc_networks.rewards(study, policy, [objective])[0]))
        for done, policy in enumerate(policies)
        if done % EVERY == 0
    ]


def until(curve: Curve, target: float) -> tuple[int, bool]:
    """Intervals until a reward is reached, and whether it is."""
    for done, reward in curve:
        if reward >= target:
            return done, True
    return curve[-1][0], False


def forget(cell: tuple[Study, int, bool]) -> list[sheet.Row]:
    """Rewards while the network is trained on three objectives, one after the other."""
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
        row = {"seed": seed, "replay": int(replay), "updates": place * between, "old": old.mean()}
        row |= {"old_least": (old / first).min()}
        rows.append(row | {f"new_{number}": reward for number, reward in enumerate(new, 1)})
    return rows


options = sheet.options(__doc__).parse_args()
if not options.redraw:
    study = mocc_networks.study_of(options)
    seeds = range(study.seeds)
    runs.spread(prepare, [(study, seed, known) for seed in seeds for known in GRIDS])
    cells = [(study, objective, seed, known) for objective in study.wished for seed in seeds for known in GRIDS]
    curves = dict(zip(cells, runs.spread(adapt, cells), strict=True))
    rows, looks = [], []
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
            looks += [
                {"objective": str(objective), "seed": seed, "known": who, "intervals": done, "reward": reward}
                for who, curve in found.items()
                for done, reward in curve
            ]
    sheet.write(rows, NAME, options.out)
    sheet.write(looks, "mocc_adapting", options.out)
    kinds = [(study, seed, replay) for seed in seeds for replay in (True, False)]
    sheet.write((row for rows in runs.spread(forget, kinds) for row in rows), "mocc_forgetting", options.out)

specialists = sheet.read(NAME, options.out).groupby("objective")["specialist"].mean()
figure, (left, right) = style.new(1.7, columns=2, width=style.PAGE)
for name, chosen, text, colour in (
    ("mocc_adapting", {"known": "known_36"}, "MOCC, 36 landmarks", style.BLUE),
    ("mocc_adapting", {"known": "known_3"}, "3 landmarks", style.TEAL),
    ("mocc_alone", {"start": "scratch"}, "from scratch", style.ORANGE),
):
    learning = sheet.where(sheet.read(name, options.out), **chosen)
    learning = learning[learning["objective"].isin(specialists.index)]
    share = 100 * learning["reward"] / learning["objective"].map(specialists)
    groups = share.groupby(learning["intervals"] / 1e3)
    least, most = groups.min(), groups.max()
    left.plot(groups.median(), color=colour, label=text)
    left.fill_between(least.index, least, most, color=colour, alpha=0.18, linewidth=0)
left.axhline(100 * ENOUGH, color=style.MUTED, linewidth=0.6)
left.set_xlabel("monitor intervals (thousands)")
left.set_ylabel("of specialists' reward (%)")
left.set_title("(a) a new objective: median and range")
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
