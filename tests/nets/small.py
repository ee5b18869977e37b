"""A data set and networks that are small enough for tests: seconds to make."""

from functools import cache

from autobyte import models
from autobyte.job import Model
from autobyte.nets.dataset import Groups, draw, episode, judged
from autobyte.nets.metanet import MetaNet
from autobyte.nets.stored import Rehearsal
from autobyte.nets.training import fit, replay_of
from autobyte.simulator.observe import truth_s, window

SEED = 3


@cache
def some_models() -> dict[str, Model]:
    """Those of the paper that are quick to simulate."""
    return {name: models.load(name) for name in ("alexnet", "resnet50")}


@cache
def groups() -> Groups:
    """Four environments, half of them with models of their own."""
    kinds = ("paper", "varied") * 2
    return Groups.join(
        episode(draw(number, some_models(), seed=SEED, kind=kind), window) for number, kind in enumerate(kinds)
    )


@cache
def truth() -> Groups:
    """A job with the truth of the whole grid."""
    return judged(draw(0, {"alexnet": models.load("alexnet")}, seed=SEED, kind="judged"), window, truth_s)


@cache
def fitted(variant: str = "improved") -> tuple[MetaNet, Rehearsal]:
    """A network after two epochs; not to be changed."""
    net, _ = fit(groups(), variant=variant, epochs=2)
    return net, replay_of(net, groups())
