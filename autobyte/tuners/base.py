"""The interface of tuners, which choose the next config: ask and tell, and nothing else."""

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
    a random seed, and the number of windows (None if it is not known). It sees measurements and nothing else: neither
    the cluster's true rates nor what is going to change. The loop runs `space.default` first and tells the tuner what
    it measured. Then it asks and tells in turn.

    >>> @Tuner.register("mine")
    ... class Mine(Tuner):
    ...     def __init__(self, space, *, model, seed=0, budget=None): ...
    ...     def ask(self): ...
    ...     def tell(self, measurement): ...

    Inherit `autobyte.testing.TunerContract` to test one.

    Four attributes say more about a tuner:

    - `needs` names further arguments of the constructor. It gets None for what nobody can provide. Known names are
      `predictor` (see `tuners.twin`), `after` (for how many windows the config of the last one stays in force),
      `storage` (a URL), and `anew` (a name in that storage for a run that must not continue an earlier one).
    - `one_shot` is true if the tuner searches once and then rests. The loop decides when it has to search again. In
      training it has 30 windows by default; other tuners go on for as long as training does.
    - `tunes_knobs` is false if the tuner leaves a policy's own knobs unchanged.
    - `brief` is true while half a window is enough for the next config. It may change after every ask.
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
        """Return the config for the next window, or None to run the best one so far."""

    @abstractmethod
    def tell(self, measurement: Measurement) -> None:
        """Take note of a window. Its config may be one that the tuner did not ask for."""

    def work(self) -> None:  # noqa: B027, few tuners have any
        """Prepare the next answer while training goes on; called after every answer."""

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
        "optuna-cmaes": "autobyte.tuners.optuna_cmaes:OptunaCmaEs",
        "optuna-random": "autobyte.tuners.optuna:OptunaRandom",
        "descent": "autobyte.tuners.descent:Descent",
        "twin": "autobyte.tuners.twin:Twin",
        "metanet": "autobyte.tuners.metanet:Metanet",
        "metanet-published": "autobyte.tuners.metanet:MetanetPublished",
    },
    group="autobyte.tuners",
)
