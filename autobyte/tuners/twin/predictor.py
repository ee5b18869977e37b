"""What the twin is given: something that predicts steps, and settings that depend on how well it does."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from autobyte.config import Config
from autobyte.job import Floats
from autobyte.tuners.twin.calibration import JobCalibration
from autobyte.tuners.twin.process import Process
from autobyte.tuners.twin.windows import JobState, Load

STEPS = Process(common=0.3, regime=0.05, block=0.03, flight=0.03, octaves=3.0)  # of log(measured / simulated)


class Predictor(Protocol):
    """Predicts steps of the running job: `autobyte.prediction` by simulation, `tuners.metanet` by a network."""

    def load(self, config: Config, *, workers: int, servers: int) -> Load:
        """Return what a step puts on the links."""
        ...

    def step_s(self, state: JobState, configs: Sequence[Config], stretch: Floats, past: JobCalibration) -> Floats:
        """Return the time of a steady step under each config (s), shape [configs].

        Args:
            state: of workers and links.
            configs: what is to be predicted.
            stretch: how much longer bytes take than the state says, shape [configs].
            past: what has been calibrated so far.
        """
        ...

    def ran_s(self, past: JobCalibration, now: JobState) -> Floats:
        """Return what it predicts of the windows that ran, each in its own state (s), shape [windows].

        Args:
            past: which windows.
            now: the state of the latest.
        """
        ...


class Scope(Enum):
    """Which candidates are predicted before a decision."""

    PROMISING = "promising"  # in batches, until none that is left can win
    POSSIBLE = "possible"  # at once, without those that let too much into flight or whose blocks alone take too long
    ALL = "all"


@dataclass(frozen=True)
class Settings:
    """What the twin makes of its predictor; the defaults are those of a simulator.

    Args:
        name: of the predictor, in log lines.
        lacks: of log(measured / predicted).
        gain: the least that a change must promise, as a part of the step time.
        unlikely: kinds of links that are less likely than this are left out.
        scope: which candidates are predicted.
        alone: in the first windows, each candidate is valued by its own expected improvement.
    """

    name: str = "the twin"
    lacks: Process = STEPS
    gain: float = 0.0025
    unlikely: float = 0.0
    scope: Scope = Scope.PROMISING
    alone: bool = False
