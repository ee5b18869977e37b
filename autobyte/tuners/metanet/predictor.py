"""The network in the place of a simulator: step times in a state that a calibration tells, and lessons."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

from autobyte.config import Config
from autobyte.features.runtime import State
from autobyte.features.static import Static
from autobyte.features.vector import Candidates, Vector, candidates, describe
from autobyte.job import Cluster, Floats, Model
from autobyte.nets import stored
from autobyte.nets.adaptation import Adaptation, Lesson
from autobyte.nets.metanet import Array
from autobyte.trace import Measurement
from autobyte.tuners.twin.calibration import JobCalibration
from autobyte.tuners.twin.windows import JobState, JobWindow, Load, nominal_s

VARIATIONS = 8  # windows, the latest, that tell how much steps vary
SAME = 0.01  # relative, of what a block costs: windows are as they were
FEW = 3  # configs that ran, from which on more of them are no news to the network

Ratios = Mapping[Config, float]  # logarithm of measured by closed form


class Learned:
    """Predicts steps of a job with the network, as `twin.Predictor` has it, and learns from it.

    The network takes in by how much steps of configs that ran were longer than their closed form, so a state is
    encoded with the windows of its regime.

    Args:
        model: what is trained.
        seed: of what is replayed.
        weights: the file of them; by default those that come with the package.

    Raises:
        FileError: the network's weights are missing, damaged, or for other features.
    """

    def __init__(self, model: Model, *, seed: int, weights: Path | str | None = None) -> None:
        self._net, replay = stored.network("improved", weights)
        self._adaptation = Adaptation(self._net, replay, seed=seed)
        self._static = Static(model)
        self._noted = False
        self._accumulation = 1
        self._variations: deque[float] = deque(maxlen=VARIATIONS)
        self._latest: tuple[JobState, Ratios, State, Vector, Array] | None = None  # encoded
        self._codes: WeakKeyDictionary[JobWindow, tuple[tuple[float, int, float], Array, Candidates]] = (
            WeakKeyDictionary()
        )
        self._ratios: WeakKeyDictionary[JobWindow, tuple[float, float]] = WeakKeyDictionary()  # under an overhead

    def note(self, measurement: Measurement, *, torn: bool) -> None:
        """Take in what a window says beyond links and layers; steps of a torn one vary for another cause.

        What travels in a step is taken from the first window, and does not change.
        """
        stats = measurement.stats
        assert stats is not None
        if not self._noted and stats.wire_bytes and stats.wire_bytes != round(self._static.total_bytes):
            self._static = Static(self._static.model, wire_bytes=stats.wire_bytes)
        self._noted = True
        speed = float(stats.samples_per_s.mean()) * float(np.mean(measurement.step_s))
        if math.isfinite(speed):
            self._accumulation = max(1, round(speed / self._static.model.batch_size))
        if not torn:
            steps = np.array(measurement.step_s[measurement.warmup :])
            self._variations.append(float(steps.std() / max(steps.mean(), 1e-12)))

    def load(self, config: Config, *, workers: int, servers: int) -> Load:
        """What a step puts on the link of each host under a config."""
        static = self._static
        return Load(
            blocks=float(static.blocks(config).sum()),
            block_bytes=static.block_bytes(config),
            total_bytes=round(static.total_bytes),
            nbytes=_traffic(workers, servers) * static.total_bytes,
            block_s=nominal_s(workers),
        )

    def step_s(self, state: JobState, configs: Sequence[Config], stretch: Floats, past: JobCalibration) -> Floats:
        """Return the time of a steady step under each config (s), shape [configs].

        Args:
            state: of workers and links.
            configs: what is to be predicted.
            stretch: how much longer bytes take than the state says, shape [configs].
            past: what ran.
        """
        described, _, code = self._encoded(state, self._ran_in(past, past.regime))
        return self._seconds(code, candidates(described, configs, stretch=stretch))

    def ran_s(self, past: JobCalibration, now: JobState) -> Floats:
        """Return what it predicts of the windows that ran, each in its own state (s), shape [windows]."""
        ran = {regime: self._ran_in(past, regime) for regime in {float(window.row[0]) for window in past.windows}}
        codes, asked = zip(
            *(self._asked(window, ran[float(window.row[0])], past, now) for window in past.windows), strict=True
        )
        table, floor_s = (np.concatenate([getattr(each, name) for each in asked]) for name in ("table", "floor_s"))
        return self._seconds(np.stack(codes), Candidates(table, floor_s))

    def learn(self, past: JobCalibration) -> None:
        """Learn what configs that ran in this regime take beside the closed form, however fast links were then."""
        ran = self._ran_in(past, past.regime)
        described, vector, _ = self._encoded(past.now(), ran)
        stretch = np.exp(past.stretch(past.rows(list(ran))).mean)
        asked = candidates(described, list(ran), stretch=stretch)
        took_s = asked.floor_s * np.exp(list(ran.values()))
        self._adaptation.learn(Lesson(vector, asked, took_s, described.samples))

    def _seconds(self, codes: Array, asked: Candidates) -> Floats:
        """Predicted step times (s), shape [configs], in one encoded state or each in one of its own."""
        predicted_s = self._net.seconds(self._net.rate(codes, asked), asked.floor_s, 1.0)
        return np.maximum(predicted_s, 1e-12)

    def _asked(self, window: JobWindow, ran: Ratios, past: JobCalibration, now: JobState) -> tuple[Array, Candidates]:
        """A window's state and config as the heads take them; kept while what it was made from is about the same."""
        key, known = (past.overhead, min(len(ran), FEW), float(window.row[0])), self._codes.get(window)
        if known is None or known[0][1:] != key[1:] or abs(known[0][0] / key[0] - 1) > SAME:
            state = now if window is past.windows[-1] else past.of(window)
            described, _, code = self._encoded(state, ran)
            known = self._codes[window] = key, code, candidates(described, [window.config], stretch=np.ones(1))
        return known[1:]

    def _ran_in(self, past: JobCalibration, regime: float) -> Ratios:
        """Logarithm of measured by closed form, the mean of each config that ran in a regime."""
        ratios: dict[Config, list[float]] = {}
        for window in past.windows:
            if window.row[0] == regime:
                ratios.setdefault(window.config, []).append(self._ratio(window, past))
        return {config: math.fsum(values) / len(values) for config, values in ratios.items()}

    def _ratio(self, window: JobWindow, past: JobCalibration) -> float:
        known = self._ratios.get(window)
        if known is None or abs(known[0] / past.overhead - 1) > SAME:
            plain = self._plain(past.of(window))
            floor_s = float(candidates(plain, [window.config], stretch=np.ones(1)).floor_s[0])
            known = self._ratios[window] = past.overhead, math.log(max(window.step_s, 1e-12) / floor_s)
        return known[1]

    def _encoded(self, state: JobState, ran: Ratios) -> tuple[State, Vector, Array]:
        """A state as features know it, as numbers, and as the heads take it; the latest is kept."""
        if self._latest is None or self._latest[0] is not state or self._latest[1] != ran:
            described = replace(self._plain(state), configs=len(ran))
            vector = describe(described, np.array(list(ran.values())))
            self._latest = state, ran, described, vector, self._net.encode(vector)
        return self._latest[2:]

    def _plain(self, state: JobState) -> State:
        """A state as features know it, and nothing that ran."""
        workers = state.workers
        compute_s = (state.forward_s + state.backward_s).sum(axis=1)
        slowest = int(compute_s.argmax())
        traffic = _traffic(workers, state.servers) if workers > 1 else np.zeros(1)
        byte_s = traffic / np.minimum(state.up_bytes_per_s, state.down_bytes_per_s)
        return State(
            static=self._static,
            workers=workers,
            servers=state.servers,
            accumulation=self._accumulation,
            forward_s=state.forward_s.mean(axis=0),
            backward_s=state.backward_s.mean(axis=0),
            slowest_forward_s=state.forward_s[slowest],
            slowest_backward_s=state.backward_s[slowest],
            up_bytes_per_s=state.up_bytes_per_s,
            down_bytes_per_s=state.down_bytes_per_s,
            block_s=state.overhead * nominal_s(workers),
            byte_s=float(byte_s.max()),
            crowding=0.0,
            configs=0,
            mean_byte_s=float(byte_s.mean()),
            seen={},
            variation=math.fsum(self._variations) / max(1, len(self._variations)),
            regime=0,
            drift=0.0,
        )


@lru_cache
def _traffic(workers: int, servers: int) -> Floats:
    """Bytes that cross each host's link per byte of gradient, shape [workers]."""
    return Cluster(workers, servers).traffic
