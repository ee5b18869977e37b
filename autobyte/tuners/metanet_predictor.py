"""The network in the place of a simulator: step times in a state that a calibration tells, and lessons."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

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
from autobyte.tuners.twin_windows import JobState, Load, nominal_s

VARIATIONS = 8  # windows, the latest, that tell how much steps vary


class Learned:
    """Predicts steps of a job with the network, as `twin.Predictor` has it, and learns from it.

    Attributes:
        off: logarithm of measured by closed form, of each config that ran in the regime that is asked about.

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
        self._latest: tuple[JobState, Mapping[Config, float], State, Vector, Array] | None = None  # encoded
        self.off: Mapping[Config, float] = {}

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

    def step_s(self, state: JobState, configs: Sequence[Config], stretch: Floats) -> Floats:
        """Time of a steady step under each config (s), shape [configs].

        Args:
            state: of workers and links.
            configs: what is to be predicted.
            stretch: how much longer bytes take than the state says, shape [configs].
        """
        described, _, code = self._encoded(state)
        return self.seconds(code, candidates(described, configs, stretch=stretch))

    def asked(self, state: JobState, config: Config) -> tuple[Array, Candidates]:
        """A state as the heads take it, and a config in it."""
        described, _, code = self._encoded(state)
        return code, candidates(described, [config], stretch=np.ones(1))

    def floor_s(self, state: JobState, config: Config) -> float:
        """The closed form of a step (s)."""
        return float(candidates(self._plain(state), [config], stretch=np.ones(1)).floor_s[0])

    def seconds(self, codes: Array, asked: Candidates) -> Floats:
        """Predicted step times (s), shape [configs], in one encoded state or each in one of its own."""
        predicted_s = self._net.seconds(self._net.rate(codes, asked), asked.floor_s, 1.0)
        return np.maximum(predicted_s, 1e-12)

    def learn(self, state: JobState, stretch: Floats) -> None:
        """Learn what configs that ran take beside the closed form, which holds however fast links were then.

        Args:
            state: of workers and links.
            stretch: how much longer bytes take than the state says under each config in `off`, shape [configs].
        """
        described, vector, _ = self._encoded(state)
        asked = candidates(described, list(self.off), stretch=stretch)
        took_s = asked.floor_s * np.exp(list(self.off.values()))
        self._adaptation.learn(Lesson(vector, asked, took_s, described.samples))

    def _encoded(self, state: JobState) -> tuple[State, Vector, Array]:
        """A state as features know it, as numbers, and as the heads take it; the latest is kept."""
        if self._latest is None or self._latest[0] is not state or self._latest[1] is not self.off:
            described = replace(self._plain(state), configs=len(self.off))
            vector = describe(described, np.array(list(self.off.values())))
            self._latest = state, self.off, described, vector, self._net.encode(vector)
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
