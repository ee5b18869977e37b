"""The meta-network: layer times through an LSTM, bandwidths, static facts, and ⟨S_p, S_c⟩, to the step time.

                 T, per layer ── embedding ── LSTM ── LSTM ──┐
                 B_d, B_u ──────── dense ────────────────────┼── state ──┐
                 n, l, arc, m ──── dense ────────────────────┘           ├── dense ── dense ── prediction
                 ⟨S_p, S_c⟩, any number of them ─────────────────────────┘

What is left of the last joint is the *encoder*: it runs once per state. What is right of it is the *head*: it takes
all candidates in one batch. The `paper` variant takes in Table II as published and predicts V. The `improved` one
takes in ratios alone and predicts log(step / floor), `floor` being the closed form of `features/vector.py`. It is an
ensemble: several such networks that began with other weights, and the mean of what they say.

Reference: AutoByte, sec. III-A, fig. 4a, eq. (1) and (2); ensembles: Lakshminarayanan et al. (NIPS'17).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autobyte.errors import InputError, unknown
from autobyte.features.schema import PAPER, RATIOS, ROWS, Choice
from autobyte.features.vector import Candidates, Vector
from autobyte.job import Floats
from autobyte.nets.backend import arrays, keras, lstm, modestly

Array = npt.NDArray[np.float32]

EMBEDDING, LSTM, BRANCH, DENSE = 16, 32, 16, 64  # widths
MEMBER = 10_000  # between the seeds of two members: each uses some
CLIP = 8.0  # standard deviations: what is farther from all that was seen is not taken at its word


@dataclass(frozen=True)
class Variant:
    """What a network takes in, and what it puts out.

    Args:
        name: `paper` or `improved`.
        choice: the columns that enter.
        speed: it predicts V, samples/s, scaled to mean 0 and deviation 1; else log(step / floor).
        members: networks, of whose predictions the mean counts.
    """

    name: str
    choice: Choice
    speed: bool
    members: int


VARIANTS = {
    "paper": Variant("paper", PAPER, speed=True, members=1),
    "improved": Variant("improved", RATIOS, speed=False, members=5),
}


@dataclass(frozen=True, eq=False)
class Scale:
    """Mean and deviation of every column, and of the target of the `paper` variant; from the training set."""

    mean: dict[str, Array]
    deviation: dict[str, Array]
    target: tuple[float, float] = (0.0, 1.0)

    def of(self, group: str, values: npt.ArrayLike) -> Array:
        """Standard scores, clipped."""
        scores = (np.asarray(values, dtype=np.float32) - self.mean[group]) / self.deviation[group]
        clipped: Array = np.clip(scores, -CLIP, CLIP)
        return clipped


class Net(ABC):
    """A network with its scales: the two parts of it, and what they take in and put out.

    >>> net.step_s(state.samples, describe(state), candidates(state, configs))

    Args:
        variant: `paper` or `improved`.
        scale: of its columns.

    Raises:
        InputError: an unknown variant.
    """

    def __init__(self, variant: str, scale: Scale) -> None:
        if variant not in VARIANTS:
            raise unknown("variant of the meta-network", variant, VARIANTS)
        self.variant = VARIANTS[variant]
        self.scale = scale

    @abstractmethod
    def encode(self, vector: Vector) -> Array:
        """A state as the heads take it, one member after the other; shape [members · (LSTM + 2 BRANCH)]."""

    @abstractmethod
    def rate(self, state: Array, asked: Candidates) -> Floats:
        """What the heads say of each candidate: the mean of their outputs, shape [configs]."""

    def parts(self, state: Array) -> list[Array]:
        """Encoded states, shape [., members · (LSTM + 2 BRANCH)], as each member's head takes them."""
        return np.split(state, self.variant.members, axis=-1)

    def step_s(self, samples: int, vector: Vector, asked: Candidates) -> Floats:
        """Predict the step time under each candidate (s), shape [configs].

        Args:
            samples: of a step of the whole job.
            vector: the state.
            asked: the candidates.
        """
        return self.seconds(self.rate(self.encode(vector), asked), asked.floor_s, samples)

    def seconds(self, rated: Floats, floor_s: npt.ArrayLike, samples: npt.ArrayLike) -> Floats:
        """Step times (s) from the head's output."""
        if not self.variant.speed:
            seconds: Floats = np.asarray(floor_s, dtype=np.float64) * np.exp(np.clip(rated, -10, 10))
            return seconds
        mean, deviation = self.scale.target
        speed = np.maximum(mean + deviation * rated, 1e-2 * mean)  # a network may predict a speed below zero
        return np.asarray(samples, dtype=np.float64) / speed

    def target(self, step_s: npt.ArrayLike, floor_s: npt.ArrayLike, samples: npt.ArrayLike) -> Array:
        """What the head should have said of observed step times (s); the inverse of `seconds`."""
        step_s = np.asarray(step_s, dtype=np.float64)
        if not self.variant.speed:
            ratio: Array = np.log(step_s / np.asarray(floor_s, dtype=np.float64)).astype(np.float32)
            return ratio
        mean, deviation = self.scale.target
        speed: Array = ((np.asarray(samples, dtype=np.float64) / step_s - mean) / deviation).astype(np.float32)
        return speed

    def scored(self, group: str, values: npt.ArrayLike) -> Array:
        """The chosen columns of a group, scaled; rows without a layer stay zero."""
        chosen = np.asarray(values, dtype=np.float32)[..., self.variant.choice.places(group)]
        scores = self.scale.of(group, chosen)
        if group == "layer":
            present = self.variant.choice.layer.index("present")
            scores = np.where(chosen[..., present, None] > 0, scores, np.float32(0))
        return scores

    def inputs(self, vector: Vector) -> list[Array]:
        """A state as the encoder takes it: layers, bandwidths, static facts, one row each."""
        return [self.scored(name, getattr(vector, name)[None]) for name in ("layer", "bandwidth", "static")]


class MetaNet(Net):
    """The network in Keras: what is fit.

    Args:
        variant, scale: as for every net.
        seed: of the weights it begins with.
    """

    def __init__(self, variant: str, scale: Scale, *, seed: int = 0) -> None:
        super().__init__(variant, scale)
        seeds = [seed + MEMBER * member for member in range(self.variant.members)]
        self.encoders = [make_encoder(self.variant.choice, seed=own) for own in seeds]
        self.heads = [make_head(self.variant.choice, seed=own) for own in seeds]

    def encode(self, vector: Vector) -> Array:
        """A state as the heads take it, one member after the other; shape [members · (LSTM + 2 BRANCH)]."""
        inputs = self.inputs(vector)
        return np.concatenate([_run(encoder, inputs)[0] for encoder in self.encoders])

    def rate(self, state: Array, asked: Candidates) -> Floats:
        """What the heads say of each candidate: the mean of their outputs, shape [configs]."""
        table = self.scored("candidate", asked.table)[None]
        pairs = zip(self.heads, self.parts(state), strict=True)
        output: Floats = np.mean([_run(head, [part[None], table])[0, :, 0] for head, part in pairs], axis=0)
        return output.astype(np.float64)

    @property
    def weights(self) -> list[Array]:
        """Of each member's encoder and head, in order."""
        return arrays([weight for model in self._models for weight in model.weights])

    @weights.setter
    def weights(self, values: Sequence[Array]) -> None:
        shapes = [w.shape for w in self.weights]
        if [w.shape for w in values] != shapes:
            raise InputError(f"weights of other shapes than this '{self.variant.name}' network has")
        left = list(values)
        for model in self._models:
            count = len(model.weights)
            model.set_weights(left[:count])
            del left[:count]

    @property
    def _models(self) -> list[Any]:
        return [model for pair in zip(self.encoders, self.heads, strict=True) for model in pair]


def make_encoder(choice: Choice, *, seed: int) -> Any:
    """The three branches that describe a state, joined; a Keras model of [layer, bandwidth, static]."""
    k, start = keras(), _Starts(seed)
    layer = k.Input((ROWS, len(choice.layer)))
    bandwidth, static = k.Input((len(choice.bandwidth),)), k.Input((len(choice.static),))
    x = k.layers.Dense(EMBEDDING, activation="relu", kernel_initializer=start())(layer)
    for last in (False, True):
        x = lstm()(
            LSTM,
            return_sequences=not last,
            kernel_initializer=start(),
            recurrent_initializer=k.initializers.Orthogonal(seed=start.next()),
        )(x)
    branches = [k.layers.Dense(BRANCH, activation="relu", kernel_initializer=start())(b) for b in (bandwidth, static)]
    return k.Model([layer, bandwidth, static], k.layers.Concatenate()([x, *branches]))


def make_head(choice: Choice, *, seed: int) -> Any:
    """Two dense layers over state and candidate, and the output; a Keras model of [state, candidates].

    A dense layer over a concatenation is the sum of one over each part; so the state's part is computed once, and not
    once per candidate.
    """
    k, start = keras(), _Starts(seed + 1000)
    state, candidate = k.Input((LSTM + 2 * BRANCH,)), k.Input((None, len(choice.candidate)))
    known = k.layers.Reshape((1, DENSE))(k.layers.Dense(DENSE, kernel_initializer=start())(state))
    branch = k.layers.Dense(BRANCH, activation="relu", kernel_initializer=start())(candidate)
    asked = k.layers.Dense(DENSE, use_bias=False, kernel_initializer=start())(branch)
    x = k.layers.Activation("relu")(k.layers.Add()([known, asked]))
    x = k.layers.Dense(DENSE, activation="relu", kernel_initializer=start())(x)
    return k.Model([state, candidate], k.layers.Dense(1, kernel_initializer=start())(x))


class _Starts:
    """Initializers with seeds of their own, one after the other."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def next(self) -> int:
        self._seed += 1
        return self._seed

    def __call__(self) -> Any:
        return keras().initializers.GlorotUniform(seed=self.next())


def _run(model: Any, inputs: Sequence[Array]) -> Array:
    """One forward pass, without what a gradient would need."""
    with modestly(learning=False):
        return np.asarray(keras().ops.convert_to_numpy(model(inputs, training=False)))
