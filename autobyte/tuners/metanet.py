"""AutoByte: a network that was trained before the job began predicts every candidate, and goes on learning.

After every window the statistics of Table II become a state; the network encodes it once and says what a step takes
under each candidate. The job changes to the best where that is worth it, and where prediction and observation differ
by more than 10 % the network learns from the job, in the background.

Reference: AutoByte, sec. III.
"""

import logging
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autobyte.config import Config, Space
from autobyte.errors import InputError
from autobyte.features.runtime import State, Watch
from autobyte.features.static import Static
from autobyte.features.vector import Candidates, Vector, candidates, describe
from autobyte.job import Floats, Model
from autobyte.nets import stored
from autobyte.nets.adaptation import Adaptation, Lesson
from autobyte.nets.metanet import Array
from autobyte.trace import Measurement
from autobyte.tuners.base import Tuner
from autobyte.tuners.choosing import NOISE, OCTAVES, ahead, blindly, choice, every, measured_alone, worth
from autobyte.tuners.noise import Noise
from autobyte.tuners.trigger import OURS, PAPER, Backoff, Misses
from autobyte.tuners.twin_process import Process
from autobyte.units import format_bytes

log = logging.getLogger(__name__)

ADAPT = 0.10  # of the observed step time: a prediction that is off by more is a lesson (AutoByte, sec. III-B)
#: Of log(measured / predicted).
RESIDUAL = Process(common=0.3, regime=0.1, block=0.06, flight=0.06, octaves=3.0, rough=0.04)
WANDERS = 1.5  # times what links drift by in a window: how far steps wander within a regime
CAUTION = 0.03  # of the step time, for each octave of bytes in flight beyond any that ran: networks may collapse
MIXED = 0.03  # standard error of a window in which the job changed, at least: of two jobs, it says little of either
TRIALS, PRIOR = 12, 3.0  # that tell how wrong the network is; as many were as expected, before any was seen
SOON = 3  # windows in which it knows too little to want a whole one
REGIMES = 16  # that are remembered
KEEP, ALIKE = 32, 3  # windows that are remembered; of them under one config in one regime
LEAVE, NEW = 2.0, 8.0  # what a regime must explain better than the one before; what none explains after a change
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
        self._net = _Network("paper", model, seed=seed)
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
        self._net = _Network("improved", model, seed=seed)
        self._memory = _Memory()
        self._unseen: list[tuple[Config, float, float]] = []  # windows without statistics
        self._known = Misses()  # of configs that had run in their regime before
        self._doubt = _Doubt()  # about those that had not
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


class _Network:
    """The network on one job: the state that windows show, what it predicts there, and lessons.

    Args:
        variant: of the weights that come with the package.
        model: what is trained.
        seed: of what is replayed.
    """

    def __init__(self, variant: str, model: Model, *, seed: int) -> None:
        self._net, replay = stored.shipped(variant)
        self._adaptation = Adaptation(self._net, replay, seed=seed)
        self._watches = {0: Watch(model)}  # of the latest regimes, by number; the one that saw the latest window last
        self._number = 1  # of the next
        self._regimes: dict[tuple[int, int], int] = {}  # a watch has several where links drift, and come to rest
        self._warned = False
        self._known: tuple[State, Vector, Array] | None = None

    @property
    def ready(self) -> bool:
        """Whether a window has shown a state yet."""
        return self._known is not None

    @property
    def regime(self) -> int:
        """Number of the regime of the latest window."""
        return self._regimes.setdefault((next(reversed(self._watches)), self.state.regime), len(self._regimes))

    @property
    def state(self) -> State:
        """Of the job, as the latest window with statistics showed it."""
        assert self._known is not None
        return self._known[0]

    @property
    def code(self) -> Array:
        """The state as the head takes it."""
        assert self._known is not None
        return self._known[2]

    def note(self, measurement: Measurement, *, changed: bool = False) -> bool:
        """Take in a window, before which the job changed or did not; whether its statistics are of use."""
        try:
            state = self._watch_of(measurement, changed=changed).add(measurement)
        except InputError as error:
            if not self._warned:
                log.warning("the network has no statistics to predict from: %s", error)
            self._warned = True
            return False
        vector = describe(state)
        self._known = state, vector, self._net.encode(vector)
        return True

    def _watch_of(self, measurement: Measurement, *, changed: bool) -> Watch:
        """That of the most likely regime: the one before, an old one that has come back, or a new one."""
        before = next(reversed(self._watches))
        cost = {
            number: watch.surprise(measurement) + LEAVE * (number != before)
            for number, watch in self._watches.items()
        }
        if changed:
            cost[before] += 2 * LEAVE
        likely = min(sorted(cost), key=lambda number: cost[number])
        if cost[likely] <= (NEW if changed else math.inf) and math.isfinite(cost[likely]):
            watch = self._watches.pop(likely)
        else:
            likely, watch = self._number, self._watches[before].anew()
            self._number += 1
        self._watches[likely] = watch
        if len(self._watches) > REGIMES:
            del self._watches[next(iter(self._watches))]
        return watch

    def asked(self, configs: Sequence[Config]) -> Candidates:
        """Configs as numbers, in the latest state."""
        return candidates(self.state, configs)

    def log_s(self, asked: Candidates, *, codes: Array | None = None, samples: Floats | None = None) -> Floats:
        """Logarithm of predicted step times, shape [configs]; in the latest state, or each in one of its own."""
        rated = self._net.rate(self.code if codes is None else codes, asked)
        predicted_s = self._net.seconds(rated, asked.floor_s, self.state.samples if samples is None else samples)
        return np.log(np.maximum(predicted_s, 1e-12))

    def learn(self) -> None:
        """Learn what configs took in this regime."""
        if self._known is None:
            return
        state, vector, _ = self._known
        asked = self.asked(list(state.seen))
        took_s = np.array(list(state.seen.values()))
        self._adaptation.learn(Lesson(vector, asked, took_s, state.samples))


@dataclass(eq=False)
class _Window:
    """A window, and the state it ran in, as the network takes them."""

    config: Config
    row: Floats  # see `Process`
    step_s: float
    error: float  # of the mean, relative
    code: Array
    asked: Candidates
    samples: int


class _Doubt:
    """How far from config to config the network may be wrong: as it was, beyond noise, and no further than usual.

    A job that never rests makes every prediction wrong; put down to the network, that led to trials at random.
    """

    def __init__(self) -> None:
        self._surprises: deque[float] = deque(maxlen=TRIALS)

    def note(self, miss: float, noise: float) -> None:
        """Take in a trial: logarithm of predicted by observed, and the standard error of what was observed."""
        self._surprises.append(max(0.0, miss**2 - noise**2) / RESIDUAL.local**2)

    @property
    def process(self) -> Process:
        """RESIDUAL, or a narrower one."""
        return RESIDUAL.wider(
            min(1.0, math.sqrt((PRIOR + math.fsum(self._surprises)) / (PRIOR + len(self._surprises))))
        )


class _Memory:
    """Windows, and what they say of the network's errors."""

    def __init__(self) -> None:
        self.windows: list[_Window] = []
        self.noise = Noise()
        self._now = 0.0
        self.number = 0  # windows so far
        self._places: dict[Config, tuple[float, float]] = {}  # of configs, for a job of so many bytes
        self._total = 0.0

    @property
    def here(self) -> set[Config]:
        """What ran in the current regime."""
        return {window.config for window in self.windows if window.row[0] == self._now}

    @property
    def is_trial(self) -> bool:
        """Whether the latest window is the first of its config in this regime."""
        latest = self.windows[-1]
        return latest.config not in {w.config for w in self.windows[:-1] if w.row[0] == self._now}

    def is_mixed(self, measurement: Measurement) -> bool:
        """Whether steps of a window differ as if the job had changed within it."""
        usual = float(np.median([window.error for window in self.windows])) if self.windows else math.inf
        return measurement.error > max(MIXED, 4 * usual)

    def note(self, net: _Network, measurement: Measurement) -> bool:
        """Remember a window; whether something has changed but the config."""
        state, config = net.state, measurement.config
        new = float(net.regime) != self._now
        if new:
            self._now = float(net.regime)
        self.number += 1
        row = self.rows(state, [config])[0]
        asked = net.asked([config])
        error = self.noise.error(measurement)
        window = _Window(config, row, measurement.mean_s, error, net.code, asked, state.samples)
        like = [w for w in self.windows if w.config == config and w.row[0] == row[0]]
        drop = like[: max(0, len(like) - ALIKE + 1)]
        self.windows = [*[other for other in self.windows if other not in drop][-KEEP + 1 :], window]
        return new

    def residual(self, net: _Network, *, at: Floats, process: Process) -> tuple[Floats, Floats]:
        """What to add to the logarithm of predicted times, and its variance; shape [configs].

        Args:
            net: what predicts.
            at: rows of the configs of which it is asked.
            process: of the logarithm of measured by predicted.
        """
        rests = not net.state.drift
        here = [w for w in self.windows if w.row[0] == self._now and (rests or w.row[1] == self.number)]
        there = [window for window in self.windows if window not in here]
        predicted = net.log_s(net.asked([window.config for window in here]))
        if there:
            asked = Candidates(
                np.concatenate([window.asked.table for window in there]),
                np.concatenate([window.asked.floor_s for window in there]),
            )
            codes, samples = np.stack([w.code for w in there]), np.array([float(w.samples) for w in there])
            predicted = np.concatenate([predicted, net.log_s(asked, codes=codes, samples=samples)])
        known = [*here, *there]
        took = np.log([max(window.step_s, 1e-12) for window in known])
        noise = np.array([max(window.error, NOISE) for window in known])
        rows = np.array([window.row for window in known])
        mean, variance = process.posterior(rows, took - predicted, noise, at=at)
        return mean, np.minimum(variance, process.local**2)

    @property
    def flight(self) -> float:
        """Log2 of the most bytes that any window let into flight."""
        return max(float(window.row[3]) for window in self.windows)

    def rows(self, state: State, configs: Sequence[Config]) -> Floats:
        """Configs as the process takes them, if they ran now; shape [configs, 4]."""
        static = state.static
        if static.total_bytes != self._total:
            self._places, self._total = {}, static.total_bytes
        head, rows = (self._now, float(self.number)), []
        for config in configs:
            place = self._places.get(config)
            if place is None:
                flight = min(config.credit_bytes, max(static.total_bytes, 1.0))
                place = self._places[config] = math.log2(_block(static, config)), math.log2(flight)
            rows.append((*head, *place))
        return np.array(rows)


def _block(static: Static, config: Config) -> float:
    """Size of the block that the mean byte travels in."""
    size, tensors, total = float(config.partition_bytes), static.tensor_bytes, max(static.total_bytes, 1.0)
    if config.knobs.get("fusion", 0.0) >= 0.5:
        return min(size, total)
    whole = np.floor(tensors / size)
    rest = tensors - whole * size
    return max(1.0, float((whole * size * size + rest * rest).sum() / total))


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
