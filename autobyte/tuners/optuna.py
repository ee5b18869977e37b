"""Optuna's samplers, in a study that can be kept, shared, resumed, and watched in Optuna's own dashboard."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import ClassVar

from autobyte.config import Config, Space
from autobyte.errors import InputError, needs, require, unknown
from autobyte.job import Model
from autobyte.trace import Measurement
from autobyte.tuners.base import WINDOW, Tuner

with needs("tune", what="a search by Optuna"):
    import optuna
    from optuna.distributions import BaseDistribution, FloatDistribution
    from optuna.exceptions import ExperimentalWarning, StorageInternalError
    from optuna.samplers import BaseSampler
    from optuna.trial import Trial, TrialState, create_trial
    from sqlalchemy.exc import SQLAlchemyError

TRIALS = 15  # as many as the Bayesian search has; then it rests

logging.getLogger("optuna").setLevel(logging.ERROR)  # it would tell of every trial, and of what is slow


class Optuna(Tuner):
    """Any of Optuna's samplers on the unit cube; a trial is a window, its value the step time in seconds.

    A window that training gave up on, because its first steps were hopeless, is a pruned trial.
    Windows under configs that others chose, the default first, are added to the study as trials of their own. It
    rests after 15 windows; trials that a kept study has already do not count.

    >>> Optuna(space, model=model, sampler="gp", storage="sqlite:///search.db", study="vgg16 on 8 hosts")

    Args:
        space, model, seed, budget: as for every tuner.
        sampler: a class of `optuna.samplers`, with or without "Sampler" at its end, in any case; TPE by default.
        storage: a URL that Optuna takes; a study that is there already goes on. None keeps it in memory.
        study: its name in the storage; by default that of the model, and the seed.
        anew: the name of a study that begins anew instead: what the storage has under it is replaced.

    Raises:
        InputError: an unknown sampler, or a storage that cannot be used.
        MissingExtra: a sampler whose package is not installed.

    Reference: Akiba et al. (KDD'19).
    """

    needs = ("storage", "anew")
    one_shot = True
    named: ClassVar[str] = "tpe"

    def __init__(
        self,
        space: Space,
        *,
        model: Model,
        seed: int = 0,
        budget: int | None = None,
        sampler: str = "",
        storage: str | None = None,
        study: str = "",
        anew: str | None = None,
    ) -> None:
        self._space = space
        self._storage = storage
        self._left = TRIALS
        self._trial: tuple[Trial, Config] | None = None
        self._scale: dict[str, BaseDistribution] = {name: FloatDistribution(0.0, 1.0) for name in space.names}
        make_sampler = _sampler(sampler or self.named)
        with self._reported():
            if anew is not None and storage is not None:
                with suppress(KeyError):  # none yet
                    optuna.delete_study(study_name=anew, storage=storage)
            self._study = optuna.create_study(
                storage=storage,
                sampler=make_sampler(seed=seed),
                study_name=anew or study or f"autobyte {model.name}, seed {seed}",
                load_if_exists=True,
            )

    def ask(self) -> Config | None:
        """What the sampler suggests."""
        if self._left <= 0:
            return None
        with self._reported():
            if self._trial is None:
                trial = self._study.ask(self._scale)
                self._trial = trial, self._space.at([trial.params[name] for name in self._space.names])
        return self._trial[1]

    def tell(self, measurement: Measurement) -> None:
        """Keep the window as a trial."""
        self._left -= 1
        with self._reported():
            if self._trial is not None and self._trial[1] == measurement.config:
                self._close(self._trial[0], measurement)
                self._trial = None
            else:
                place = dict(zip(self._space.names, self._space.locate(measurement.config), strict=True))
                other = create_trial(params=place, distributions=self._scale, value=measurement.mean_s)
                self._study.add_trial(other)

    def _close(self, trial: Trial, measurement: Measurement) -> None:
        """End a trial; one whose window was cut short is pruned, and samplers know how far it came."""
        if len(measurement.step_s) < WINDOW:
            trial.report(measurement.mean_s, len(measurement.step_s))
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, measurement.mean_s)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Say whose fault it was, in a line; samplers of a new release are meant, whatever they warn of."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                yield
        except (StorageInternalError, SQLAlchemyError) as error:
            what = f"the study's storage '{self._storage}' cannot be used ({_cause(error):.120})"
            raise InputError(f"{what}; check that it is there and that no one else holds it") from error
        except ImportError as error:
            missing = f"Optuna's storage or sampler needs a package that is not there ({_cause(error)})"
            raise InputError(f"{missing}; install it") from error


class OptunaGP(Optuna):
    """Optuna's own Gaussian process."""

    named = "gp"


class OptunaRandom(Optuna):
    """Uniformly at random."""

    named = "random"


def _cause(error: Exception) -> str:
    return str(error.__cause__ or error).splitlines()[0]


def _sampler(name: str) -> Callable[..., BaseSampler]:
    known: dict[str, Callable[..., BaseSampler]] = {
        each.removesuffix("Sampler").lower(): getattr(optuna.samplers, each)
        for each in optuna.samplers.__all__
        if each.endswith("Sampler") and not each.startswith(("Base", "PartialFixed", "Grid"))
    }
    key = name.lower().removesuffix("sampler").replace("-", "")
    if key not in known:
        raise unknown("Optuna sampler", name, known)
    if key == "cmaes":  # Optuna misses it only at the second trial
        require("cmaes", extra="cmaes", what="Optuna's sampler 'cmaes'")
    return known[key]
