"""Networks that the scripts on MOCC share: each is trained once, and kept under the digest of what it is made from.

MOCC's network of seed 0 is the one that ships. Remove out/mocc after a change of how networks are trained.
"""

import hashlib
import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from autobyte.congestion.evaluate import Served, serve
from autobyte.congestion.halfway import discard_half
from autobyte.congestion.objectives import Objective, landmarks, sample_objectives
from autobyte.congestion.policy import RatePolicy
from autobyte.congestion.ranges import range_of
from autobyte.congestion.stored import digest, load_policy, save_policy, shipped
from autobyte.congestion.train import Recipe, specialist, train
from autobyte.drafts import draft_of

DRAW = range_of("paper").draw
SHOWN = tuple(
    Objective(*w) for w in ((0.8, 0.1, 0.1), (0.6, 0.3, 0.1), (0.4, 0.5, 0.1), (0.1, 0.8, 0.1), (0.1, 0.1, 0.8))
)
#: Landmarks that have specialists.
ALONE = (Objective(0.8, 0.1, 0.1), Objective(0.1, 0.8, 0.1))

STARTS = ("scratch", "mocc")
MOCC = Recipe()
#: Smaller updates than MOCC's: one objective learns more from as many intervals so.
LEARNER = Recipe(mode="mixed", iterations=160, links=16)
FEW = 75  # iterations of a network that is compared with others of as many


@dataclass(frozen=True)
class Study:
    """How much is trained and judged; scripts that agree on it share networks.

    Args:
        mocc: recipe of MOCC's networks, but for the seed.
        learner: recipe of a learner of one objective, but for the objective and the seed.
        kept: folder of networks.
        links: that a network is judged on, for each objective.
        seeds: networks of a kind.
        unseen: objectives that are no landmarks.
        alone: of them, those that have specialists: the first ones.
        steep: of the others, those with the most weight on latency, which have specialists, too.
        look: intervals between two looks at the reward of what learns alone.
        adapting: updates of an adaptation, as large as those of a learner of one objective, and half as many.
        forgetting: updates for each of three new objectives, where old ones may be forgotten, as large.
        seed: of the links that networks are judged on, and of the unseen objectives.
    """

    mocc: Recipe = MOCC
    learner: Recipe = LEARNER
    kept: Path = Path("out/mocc")
    links: int = 32
    seeds: int = 3
    unseen: int = 100
    alone: int = 6
    steep: int = 3
    look: int = 2 * 64 * 128
    adapting: int = 80
    forgetting: int = 80
    seed: int = 0

    @property
    def unseen_objectives(self) -> tuple[Objective, ...]:
        """Drawn uniformly."""
        return sample_objectives(self.unseen, seed=self.seed)

    @property
    def objectives(self) -> dict[Objective, str]:
        """All that are judged, and what they are."""
        return dict.fromkeys(landmarks(), "landmark") | dict.fromkeys(self.unseen_objectives, "unseen")

    @property
    def wished(self) -> dict[Objective, str]:
        """Unseen objectives that have specialists: the first that were drawn, and those that weigh latency most."""
        first, rest = self.unseen_objectives[: self.alone], self.unseen_objectives[self.alone :]
        steep = sorted(rest, key=lambda one: -one.latency)[: self.steep]
        return dict.fromkeys(first, "drawn first") | dict.fromkeys(steep, "most weight on latency")

    @property
    def learned_alone(self) -> tuple[Objective, ...]:
        """Those that have specialists."""
        return (*ALONE[: self.alone], *self.wished)


@dataclass(frozen=True)
class Learner:
    """What one objective got by a network that was trained for it, from scratch or on from MOCC's.

    Args:
        curve: monitor intervals and reward, at every look.
        loss: in the end.
    """

    curve: Sequence[tuple[int, float]]
    loss: float

    @property
    def reward(self) -> float:
        """In the end."""
        return self.curve[-1][1]


def study_of(options: Namespace) -> Study:
    """The sizes that a script's options ask for."""
    if not options.quick:
        return Study(seed=options.seed)
    recipe = Recipe(mode="mixed", iterations=2, links=36, steps=16)
    few = {"links": 2, "seeds": 1, "unseen": 2, "alone": 1, "steep": 0, "look": 128}
    few |= {"adapting": 8, "forgetting": 8}
    return Study(recipe, replace(recipe, links=8), options.out / "kept", seed=options.seed, **few)


def network(study: Study, name: str, recipe: Recipe) -> RatePolicy:
    """A network that was trained before by the same recipe, or is now."""
    path = study.kept / f"{name}.{_digest(recipe)}.npz"
    if not path.exists():
        half = path.with_suffix(".half.npz")
        about = recipe.to_json() | {"what": "simulated"}
        save_policy(train(recipe, keep=half), path, about=about)
        discard_half(half)
    return load_policy(path)


def mocc(study: Study, seed: int) -> RatePolicy:
    """MOCC's network of a seed."""
    return shipped() if seed == 0 else network(study, f"mocc{seed}", replace(study.mocc, seed=seed))


def variant(study: Study, changes: dict[str, Any], seed: int) -> RatePolicy:
    """A network that is trained in another way, in fewer iterations than those that ship."""
    iterations = min(FEW, study.mocc.iterations)
    return network(study, "variant", replace(study.mocc, iterations=iterations, seed=seed, **changes))


def judge(study: Study, policy: RatePolicy, objectives: Sequence[Objective]) -> list[Served]:
    """What objectives get on links that no network was trained on."""
    return serve(policy, objectives, DRAW, links=study.links, seed=study.seed)


def rewards(study: Study, policy: RatePolicy, objectives: Sequence[Objective]) -> np.ndarray:
    """The reward of each."""
    return np.array([one.reward for one in judge(study, policy, objectives)])


def learner(study: Study, objective: Objective, seed: int, start: str) -> Learner:
    """What one objective gets by a network that is trained for it alone.

    Args:
        study: sizes.
        objective: the only one.
        seed: of everything random.
        start: "scratch", or "mocc": MOCC's network, which knows many objectives, is trained further with half the
            updates.
    """
    recipe = replace(specialist(objective, study.learner), seed=1000 + seed)
    if start == "mocc":
        recipe = replace(recipe, iterations=recipe.iterations // 2)
    first = mocc(study, seed) if start == "mocc" else None
    began = () if first is None else (digest(first),)
    what = (recipe, study.links, study.look, study.seed, *began)
    found = kept(study, f"alone.{start}", what, lambda: asdict(_learned(study, recipe, objective, first)))
    return Learner(**found)


def kept(study: Study, name: str, what: tuple[object, ...], make: Callable[[], Any]) -> Any:
    """What was worked out before from the same, or is now: plain JSON."""
    path = study.kept / f"{name}.{_digest(*what)}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        found = json.dumps(make())
        with draft_of(path, what="rewards") as draft:
            draft.write_text(found)
    return json.loads(path.read_text())


def _learned(study: Study, recipe: Recipe, objective: Objective, first: RatePolicy | None) -> Learner:
    curve: list[tuple[int, float]] = []
    served: list[Served] = []

    def look(done: int, policy: RatePolicy) -> None:
        intervals = done * recipe.links * recipe.steps
        if intervals % study.look == 0:
            served[:] = judge(study, policy, [objective])
            curve.append((intervals, served[0].reward))

    train(recipe, start=first, look=look)
    return Learner(curve, served[0].loss)


def specialists(study: Study, objective: Objective) -> tuple[float, float]:
    """Reward and loss of specialists, in the mean over seeds: trained from scratch or on from MOCC's, if better."""
    kinds = [[learner(study, objective, seed, start) for seed in range(study.seeds)] for start in STARTS]
    best = max(kinds, key=lambda learners: np.mean([one.reward for one in learners]))
    return float(np.mean([one.reward for one in best])), float(np.mean([one.loss for one in best]))


def _digest(*what: object) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()[:12]
