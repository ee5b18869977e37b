"""What chooses the next config: ask and tell, and nothing else."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from autobyte.config import Config, Space
from autobyte.job import Model
from autobyte.registry import Registry
from autobyte.trace import Measurement

WINDOW = 10  # iterations per window (AutoByte, sec. III-A)


class Tuner(ABC):
    """Chooses configs from measurements.

    A tuner is made as `cls(space, model=..., seed=..., budget=...)`: the space to search, the model that is trained,
    a seed, and how many windows there will be (None: no end is known). It sees measurements and nothing else, never
    the cluster's true rates or what is going to change. The loop runs `space.default` first and tells it; then it
    asks and tells in turn.

    >>> @Tuner.register("mine")
    ... class Mine(Tuner):
    ...     def __init__(self, space, *, model, seed=0, budget=None): ...
    ...     def ask(self): ...
    ...     def tell(self, measurement): ...

    Inherit `autobyte.testing.TunerContract` to test one.

    A tuner that needs more than that names it in `needs`, and gets it as an argument of that name, or None where
    nobody has it to give: `predictor` (see `tuners.twin`), `storage` (a URL),
    `anew` (a name there, for what must not go on from an earlier run). One that searches once and then rests
    is `one_shot`: others decide when it has to search again, and in training it has 30 windows unless the user says
    otherwise, where one that is not lives as long as training does. One that leaves a policy's own knobs as they are
    says `tunes_knobs = False`. One that knows so little of what it asks for that half a window will do is `brief`,
    and may say otherwise after every ask.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    one_shot: ClassVar[bool] = False
    tunes_knobs: ClassVar[bool] = True
    brief: bool = False

    @abstractmethod
    def __init__(self, space: Space, *, model: Model, seed: int = 0, budget: int | None = None) -> None:
        """Get ready to be told about `space.default`."""

    @abstractmethod
    def ask(self) -> Config | None:
        """The config for the next window; None: nothing to try now, run the best so far."""

    @abstractmethod
    def tell(self, measurement: Measurement) -> None:
        """Take note of a window, whoever chose its config."""

    def work(self) -> None:  # noqa: B027, few tuners have any
        """Think on while training goes on, after every answer; what comes of it shows in the next one."""

    @classmethod
    def register(cls, name: str) -> "Callable[[type[Tuner]], type[Tuner]]":
        """Decorate a class to add it under a name; it shadows `ABCMeta.register` on purpose."""
        return TUNERS.register(name)


TUNERS: Registry[Tuner] = Registry(
    "tuner",
    {
        "default": "autobyte.tuners.fixed:Default",
        "p3": "autobyte.tuners.fixed:FixedP3",
        "grid": "autobyte.tuners.grid:Grid",
        "random": "autobyte.tuners.random:Random",
        "bayesian": "autobyte.tuners.bayesian:Bayesian",
        "bayesian-published": "autobyte.tuners.bayesian:BayesianPublished",
        "optuna": "autobyte.tuners.optuna:Optuna",
        "optuna-gp": "autobyte.tuners.optuna:OptunaGP",
        "optuna-cmaes": "autobyte.tuners.optuna:OptunaCmaEs",
        "optuna-random": "autobyte.tuners.optuna:OptunaRandom",
        "descent": "autobyte.tuners.descent:Descent",
        "twin": "autobyte.tuners.twin:Twin",
        "metanet": "autobyte.tuners.metanet:Metanet",
        "metanet-published": "autobyte.tuners.metanet:MetanetPublished",
    },
    group="autobyte.tuners",
)
