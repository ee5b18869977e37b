"""What tuning asks of a training, whatever front end computes its gradients."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from autobyte.config import Config
from autobyte.exchange.control import Control
from autobyte.exchange.progress import Progress
from autobyte.exchange.session import Session
from autobyte.job import Floats, Job
from autobyte.scheduler.plan import Plan


class KnownWaits(Protocol):
    """Waits of the model for averages."""

    def forget(self) -> None:
        """Let waits so far count that are known to be over, and no others."""


class TunedExchange(Protocol):
    """What moves gradients."""

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """By the names of gradients that travel."""

    @property
    def plan(self) -> Plan:
        """In force from the next step on."""

    @property
    def waits(self) -> KnownWaits:
        """Of the model for averages."""

    @property
    def exposed_s(self) -> float:
        """For how long the model has stood still for averages, in all steps (s)."""

    @property
    def out(self) -> int:
        """Steps until all ranks know what one has announced."""

    @property
    def reduction(self) -> object | None:
        """What hands gradients to PyTorch's reducer; None while they travel as blocks."""

    def has_changed(self) -> bool:
        """Whether averages were changed between a pass and its step, since this was asked last."""

    @property
    def ahead_of_ranks(self) -> bool:
        """Whether a device waits for other ranks, and no thread may."""


class TunedTraining(Protocol):
    """One rank of a training that is tuned."""

    @property
    def rank(self) -> int:
        """Of this process."""

    @property
    def size(self) -> int:
        """How many ranks train."""

    @property
    def engine(self) -> str:
        """That gradients travel by where a config names no other."""

    @property
    def ways(self) -> Sequence[str]:
        """Engines between which tuning may choose, that one first."""

    @property
    def fingerprint(self) -> str:
        """Of the parameters, the same on all ranks."""

    @property
    def job(self) -> Job:
        """Model, as far as it is known, and cluster."""

    @property
    def config(self) -> Config:
        """In force."""

    @property
    def progress(self) -> Progress:
        """Counts steps."""

    @property
    def control(self) -> Control:
        """What ranks say to each other."""

    @property
    def session(self) -> Session:
        """What starts blocks."""

    @property
    def exchange(self) -> TunedExchange:
        """What moves gradients."""

    def replan(self, job: Job, config: Config, order: Sequence[int] | None) -> None:
        """Use another plan from the next step on. Collective."""

    def fitting(self, config: Config) -> Config:
        """A config that was found elsewhere, as it can be used here."""


class LayerClock(Protocol):
    """Knows layers' times."""

    def sample(self) -> Any:
        """What the latest step has shown, for `read`; None if that was asked for already."""

    def read(self, samples: Sequence[Any]) -> tuple[Floats, Floats]:
        """Forward and backward times in steps (s), shapes [samples, layers]."""

    def be_exact(self, exact: bool) -> None:
        """Say whether the next step must be measured exactly."""
