"""AutoByte: a network that was trained before the job began predicts every candidate, and goes on learning.

After every window the statistics of Table II become a state; the network encodes it once and says what a step takes
under each candidate. The job changes to the best where that is worth it, and where prediction and observation differ
by more than 10 % the network learns from the job, in the background.

Reference: AutoByte, sec. III.
"""

import logging
import math
from dataclasses import replace

import numpy as np

from autobyte.config import Config, Space
from autobyte.job import Floats, Model
from autobyte.trace import Measurement
from autobyte.tuners.base import Tuner
from autobyte.tuners.choosing import NOISE, OCTAVES, ahead, blindly, choice, every, measured_alone, worth
from autobyte.tuners.metanet_memory import Doubt, Memory
from autobyte.tuners.metanet_network import Network
from autobyte.tuners.trigger import OURS, PAPER, Backoff, Misses
from autobyte.units import format_bytes

log = logging.getLogger(__name__)

ADAPT = 0.10  # of the observed step time: a prediction that is off by more is a lesson (AutoByte, sec. III-B)
WANDERS = 1.5  # times what links drift by in a window: how far steps wander within a regime
CAUTION = 0.03  # of the step time, for each octave of bytes in flight beyond any that ran: networks may collapse
SOON = 3  # windows in which it knows too little to want a whole one
SEEN = Space()  # what the network was trained in


class MetanetPublished(Tuner):
    """As published: Table II raw, a prediction after every window, 5 % to change, adaptation beyond 10 %.

    Args:
        space, model, seed, budget: as for every tuner.

    Raises:
        FileError: the network's weights are missing, damaged, or for other features.
    """

    def __init__(self, space: Space, *, model: Model, seed: int = 0, budget: int | None = None) -> None:
        self._candidates = every(space)
        self._net = Network("paper", model, seed=seed)
        self._misses = Misses()
        self._running: Config | None = None
        self._expected: dict[Config, float] = {}
        _tell_of(space)

    def tell(self, measurement: Measurement) -> None:
        """Note by how much the prediction was off, and what the state is now."""
        self._running = measurement.config
        if measurement.config in self._expected:
            expected_s = self._expected[measurement.config]
            self._misses.note(predicted_s=expected_s, observed_s=measurement.mean_s)
        self._net.note(measurement)

    def ask(self) -> Config | None:
        """The config of the least predicted step time, where that is 5 % better; nothing without statistics."""
        if self._running is None or not self._net.ready:
            return None
        here_s, *predicted_s = np.exp(self._net.log_s(self._net.asked([self._running, *self._candidates]))).tolist()
        best = int(np.argmin(predicted_s))
        chosen = self._candidates[best] if PAPER.fires(here_s, predicted_s[best]) else self._running
        self._expected = {self._running: here_s, **dict(zip(self._candidates, predicted_s, strict=True))}
        return chosen

    def work(self) -> None:
        """Learn from a prediction that was wrong."""
        if abs(self._misses.last) > ADAPT:
            self._net.learn()


class Metanet(Tuner):
    """The network, and a memory of what it is wrong about.

    What was measured stands: the difference between measured and predicted steps is a Gaussian process over the
    configs, so that a config that ran is known as well as its windows were steady, others near it move with it, and
    the rest are predicted up to the scale that this job turned out to have. It chooses by the step time it expects
    and by what a trial could find: 1 % is the least for a change, and to go back to a config that ran, twice the
    error of what it knows. Regimes (times in which nothing but the config changes) are recognised when they come
    back. Without statistics it measures.

    Args:
        space, model, seed, budget: as for every tuner.

    Raises:
        FileError: the network's weights are missing, damaged, or for other features.
    """

    def __init__(self, space: Space, *, model: Model, seed: int = 0, budget: int | None = None) -> None:
        self._model = model
        self._candidates = every(space)
        self._net = Network("improved", model, seed=seed)
        self._memory = Memory()
        self._unseen: list[tuple[Config, float, float]] = []  # windows without statistics
        self._known = Misses()  # of configs that had run in their regime before
        self._doubt = Doubt()  # about those that had not
        self._wrong = self._mixed = False
        self._pace = Backoff()
        self._told = 0  # windows
        self.brief = True
        self._running: Config | None = None
        self._expected: dict[Config, float] = {}
        self._news = True
        _tell_of(space)

    def tell(self, measurement: Measurement) -> None:
        """Remember it, and note by how much it was expected otherwise."""
        self._told += 1
        self._news |= measurement.config != self._running
        self._running = measurement.config
        changed, self._mixed = self._mixed, not self._mixed and self._memory.is_mixed(measurement)
        if self._mixed:
            self._news = True
        elif not self._net.note(measurement, changed=changed):
            self._unseen.append((measurement.config, measurement.mean_s, self._memory.noise.error(measurement)))
            del self._unseen[:-64]
        elif self._memory.note(self._net, measurement):
            self._news = True
            self._wrong = False
        elif measurement.config in self._expected:
            expected_s, observed_s = self._expected[measurement.config], max(measurement.mean_s, 1e-12)
            self._wrong = abs(expected_s / observed_s - 1) > ADAPT
            if self._memory.is_trial:
                self._doubt.note(math.log(expected_s / observed_s), max(measurement.error, NOISE))
            else:
                self._known.note(predicted_s=expected_s, observed_s=observed_s)
        self._news |= self._net.ready and self._net.state.drift > 0

    def ask(self) -> Config | None:
        """The config in force, unless another is worth it."""
        self.brief = self._told < SOON or self._mixed
        if self._running is None or self._mixed or not self._pace.due(changed=self._news):
            return self._running
        self._news = False
        mean, deviation = self._believed()
        windows = ahead(self._memory.number) if self._memory.windows else blindly(len(self._unseen))
        value = worth(mean, deviation, windows=windows)
        self._expected = dict(zip(self._candidates, np.exp(mean).tolist(), strict=True))
        ran = self._memory.here
        chosen = choice(
            self._candidates,
            self._running,
            value,
            lambda config: OURS.bar(self._known.error) if config in ran else OURS.floor,
        )
        self.brief |= chosen not in (ran or {config for config, _, _ in self._unseen})
        return chosen

    def work(self) -> None:
        """Learn from a prediction that was wrong."""
        if self._wrong:
            self._net.learn()
        self._wrong = False

    def _believed(self) -> tuple[Floats, Floats]:
        """Logarithm of the step time under each candidate, and its standard deviation."""
        if not self._memory.windows:
            return measured_alone(self._model, self._unseen, self._candidates)
        process = replace(self._doubt.process, drift=WANDERS * self._net.state.drift)
        rows = self._memory.rows(self._net.state, self._candidates)
        residual, variance = self._memory.residual(self._net, at=rows, process=process)
        mean, deviation = self._net.log_s(self._net.asked(self._candidates)) + residual, np.sqrt(variance)
        flight, most = rows[:, 3], self._memory.flight
        mean += CAUTION * np.maximum(flight - most, 0.0)
        mean[flight > most + OCTAVES] = np.inf
        return mean, deviation


def _tell_of(space: Space) -> None:
    """Say where the network will predict what it never saw."""
    (least, most), (low, high) = space.partition_bytes, space.credit_ratio
    seen = {
        f"partitions of {format_bytes(least)} to {format_bytes(most)}": _within(
            space.partition_bytes, SEEN.partition_bytes
        ),
        f"credits of {low:g}x to {high:g}x": _within(space.credit_ratio, SEEN.credit_ratio),
        f"the policy '{space.default.policy}'": space.default.policy == SEEN.default.policy,
        **{f"the knob '{name}'": False for name in space.knobs},
    }
    strange = ", ".join(name for name, known in seen.items() if not known)
    if strange:
        log.warning("the network was not trained on %s: it predicts there all the same, and measures", strange)


def _within(some: tuple[float, float], all_: tuple[float, float]) -> bool:
    return all_[0] <= some[0] and some[1] <= all_[1]
