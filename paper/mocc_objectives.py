"""What MOCC promises of objectives: preferences that show, unseen weights, quick adaptation, nothing forgotten.

    python paper/mocc_objectives.py
    python paper/mocc_objectives.py --parts preferences,adaptation --unseen 10 --adapted 3   # a small part of it

Simulated, on the paper's range of links. It trains many networks one after the other, and continues where it was
stopped. Its tables are not committed, and no test runs it. Writes, each with a row for every seed:

data/mocc_preferences.csv   what objectives get, by three networks that were trained with seeds 0, 1 and 2
data/mocc_unseen.csv        reward of weights that are no landmarks, beside that of a specialist for each
data/mocc_adaptation.csv    environment steps until an unseen objective has 99 % of its specialist's reward, by MOCC
                            and by a single-objective learner from scratch (paper: 14.2 times faster)
data/mocc_forgetting.csv    reward of the landmarks while a new objective is learned, with replay and without
data/mocc_ablations.csv     modes and networks at equal steps

The network of seed 0 is the one that ships; the others are trained first, and kept in out/mocc. A specialist is
trained for its objective alone, with fewer updates than MOCC, as one objective needs fewer.
"""

import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import sheet

from autobyte.congestion.adapt import LINKS, STEPS, adapted
from autobyte.congestion.evaluate import serve
from autobyte.congestion.halfway import discard_half
from autobyte.congestion.model import ActorCritic
from autobyte.congestion.objectives import Objective, landmarks, sample_objectives
from autobyte.congestion.policy import RatePolicy
from autobyte.congestion.ranges import range_of
from autobyte.congestion.stored import load_policy, save_policy, shipped
from autobyte.congestion.train import FIRST_RATE, Recipe, specialist, train

PARTS = ("preferences", "unseen", "adaptation", "forgetting", "ablations")
KEPT = Path("out/mocc")
DRAW = range_of("paper").draw
SHOWN = tuple(
    Objective(*w) for w in ((0.8, 0.1, 0.1), (0.6, 0.3, 0.1), (0.4, 0.5, 0.1), (0.1, 0.8, 0.1), (0.1, 0.1, 0.8))
)
ALONE = Recipe(mode="mixed", iterations=120)  # of a specialist, once its mode is individual
ENOUGH = 0.99  # of the specialist's reward
MOST_LEARNING, LOOK = 200, 2  # updates of a learner at most, and between two looks at its reward
MOST_UPDATES, EVERY = 40, 4  # of the curves of forgetting, and between two points

parser = sheet.options(__doc__)
parser.add_argument("--parts", default=",".join(PARTS), help="which tables (default: all)")
parser.add_argument("--unseen", type=int, default=100, help="number of unseen objectives (default: 100)")
parser.add_argument("--adapted", type=int, default=10, help="of them, those that are adapted to (default: 10)")
parser.add_argument("--seeds", type=int, default=3, help="networks (default: 3)")
options = parser.parse_args()
MOCC, JUDGED = Recipe(), 32
if options.quick:
    MOCC, ALONE = Recipe(iterations=2, links=36), Recipe(mode="mixed", iterations=2, links=8)
    MOST_UPDATES, MOST_LEARNING, JUDGED, options.unseen, options.adapted, options.seeds = 4, 4, 4, 2, 1, 2
    KEPT = options.out / "kept"


def network(name: str, recipe: Recipe) -> RatePolicy:
    """A network that was trained before by the same recipe, or is now."""
    path = KEPT / f"{name}.{hashlib.sha256(repr(recipe).encode()).hexdigest()[:12]}.npz"
    if not path.exists():
        half = path.with_suffix(".half.npz")
        policy = train(recipe, keep=half)
        save_policy(policy, path, about=recipe.to_json() | {"what": "simulated", "objective": str(recipe.objective)})
        discard_half(half)
    return load_policy(path)


def mocc(seed: int) -> RatePolicy:
    return shipped() if seed == 0 else network(f"mocc{seed}", Recipe(**vars(MOCC) | {"seed": seed}))


def reward_of(policy: RatePolicy, objectives: tuple[Objective, ...]) -> np.ndarray:
    return np.array([one.reward for one in serve(policy, objectives, DRAW, links=JUDGED, seed=options.seed)])


def special(number: int, objective: Objective) -> RatePolicy:
    return network(f"specialist{number}", specialist(objective, ALONE))


UNSEEN = sample_objectives(options.unseen, seed=options.seed)


def preferences() -> Iterator[dict]:
    for seed in range(options.seeds):
        for range_ in ("paper", "paper-test"):
            for one in serve(mocc(seed), SHOWN, range_of(range_).draw, links=2 * JUDGED, seed=options.seed):
                numbers = {name: getattr(one, name) for name in ("reward", "utilisation", "latency_ratio", "loss")}
                yield {"seed": seed, "range": range_, "objective": str(one.objective)} | numbers


def unseen() -> Iterator[dict]:
    rewards = [reward_of(mocc(seed), UNSEEN) for seed in range(options.seeds)]
    for number, objective in enumerate(UNSEEN):
        (own,) = serve(special(number, objective), [objective], DRAW, links=JUDGED, seed=options.seed)
        for seed, of_seed in enumerate(rewards):
            share = of_seed[number] / own.reward
            row = {"seed": seed, "objective": str(objective), "reward": of_seed[number], "specialist": own.reward}
            yield row | {"share": share, "specialist_loss": own.loss}


def adaptation() -> Iterator[dict]:
    for number, objective in enumerate(UNSEEN[: options.adapted]):
        target = ENOUGH * reward_of(special(number, objective), (objective,))[0]
        for seed in range(options.seeds):
            learned, fresh = mocc(seed), ActorCritic(seed=10 + seed).policy()
            learners = {
                "mocc": (learned, adapted(learned, objective, DRAW, pool=landmarks(), seed=seed)),
                "scratch": (
                    fresh,
                    adapted(fresh, objective, DRAW, pool=(), seed=seed, replay=False, rate=FIRST_RATE),
                ),
            }
            row = {"seed": seed, "objective": str(objective), "target": target}
            for who, (first, policies) in learners.items():
                updates, reward = 0, reward_of(first, (objective,))[0]
                row[f"{who}_at_first"] = reward
                while reward < target and updates < MOST_LEARNING:
                    policy, updates = next(policies), updates + 1
                    reward = reward_of(policy, (objective,))[0] if updates % LOOK == 0 else reward
                row |= {f"{who}_steps": updates * LINKS * STEPS, f"{who}_reached": reward >= target}
            yield row


def forgetting() -> Iterator[dict]:
    wish = Objective(0.9, 0.05, 0.05)
    for seed in range(options.seeds):
        for replay in (True, False):
            policies = adapted(mocc(seed), wish, DRAW, pool=landmarks(), seed=seed, replay=replay)
            curve = [(0, mocc(seed)), *enumerate(islice(policies, MOST_UPDATES), 1)]
            for updates, policy in curve[::EVERY]:
                old, new = reward_of(policy, landmarks()), reward_of(policy, (wish,))
                yield {
                    "seed": seed,
                    "replay": replay,
                    "updates": updates,
                    "old": old.mean(),
                    "old_least": old.min(),
                } | {"new": new[0]}


def ablations() -> Iterator[dict]:
    for name, changes in (
        ("two-phase", {}),
        ("mixed", {"mode": "mixed"}),
        ("plain concatenation", {"preference": False}),
        ("3 landmarks", {"mode": "mixed", "grid": 4}),
        ("6 landmarks", {"mode": "mixed", "grid": 5}),
        ("10 landmarks", {"mode": "mixed", "grid": 6}),
    ):
        for seed in range(options.seeds):
            policy = mocc(seed)
            if changes:
                policy = network(f"{name.replace(' ', '_')}{seed}", Recipe(**vars(MOCC) | {"seed": seed} | changes))
            served = serve(policy, UNSEEN, DRAW, links=JUDGED // 2, seed=options.seed)
            rewards = [one.reward for one in served]
            yield {"seed": seed, "variant": name, "reward": np.mean(rewards), "p5": np.percentile(rewards, 5)} | {
                "loss": np.mean([one.loss for one in served])
            }


if not options.redraw:
    for part in options.parts.split(","):
        rows = {"preferences": preferences, "unseen": unseen, "adaptation": adaptation, "forgetting": forgetting}
        sheet.write((rows | {"ablations": ablations})[part](), f"mocc_{part}", options.out)
