"""Fine-tune the network on the running job.

Encoders stay as they are; heads learn the job's own samples, mixed with offline ones (transfer learning;
AutoByte, sec. III-B, "online adapting"). Whoever calls `learn` decides when: a tuner does it in the background, and
what was learned shows in its next answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autobyte.features.vector import Candidates, Vector
from autobyte.job import Floats
from autobyte.nets.forward import Forward, head
from autobyte.nets.metanet import Array
from autobyte.nets.stored import Rehearsal

STEPS, RATE, REPLAYED, EMPHASIS = 24, 2e-3, 31, 16.0
BETA, BETA_SQUARE, EPSILON = 0.9, 0.999, 1e-7  # Adam (Kingma and Ba, 2015), as in Keras


@dataclass(frozen=True, eq=False)
class Lesson:
    """The job's own samples: a state, the configs that ran in it, and what they took (s), shape [configs]."""

    vector: Vector
    asked: Candidates
    step_s: Floats
    samples: int


@dataclass(frozen=True, eq=False)
class Batch:
    """What heads learn from: rows of candidates, each row with a state of its own.

    Args:
        state: of one member, or of all; shape [B, .].
        candidate: scaled, shape [B, K, .].
        target, weight: shape [B, K].
    """

    state: Array
    candidate: Array
    target: Array
    weight: Array


class Adaptation:
    """One network that goes on learning.

    >>> adaptation.learn(lesson)

    Args:
        net: its heads are changed by `learn`, and by nothing else.
        replay: offline samples.
        seed: of which of them are replayed.
    """

    def __init__(self, net: Forward, replay: Rehearsal, *, seed: int = 0) -> None:
        self._net = net
        self._replay = replay
        self._random = np.random.default_rng(seed)

    def learn(self, lesson: Lesson) -> bool:
        """Take some steps with copies of the heads, and use them if nothing in them went out of bounds.

        Returns:
            whether the network changed.
        """
        net, batch = self._net, self._batch(lesson)
        with np.errstate(over="ignore", invalid="ignore"):
            own = [replace(batch, state=part) for part in net.parts(batch.state)]
            learned = [adam(weights, part) for weights, part in zip(net.heads, own, strict=True)]
        if not all(np.isfinite(values).all() for head in learned for values in head):
            return False
        net.heads = learned
        return True

    def _batch(self, lesson: Lesson) -> Batch:
        """The lesson in front, replayed samples behind it; all rows of one length."""
        net, replay = self._net, self._replay
        width = replay.target.shape[1]
        rows = self._random.choice(len(replay), min(REPLAYED, len(replay)), replace=False)
        table = net.scored("candidate", lesson.asked.table)[-width:]
        target = net.target(lesson.step_s, lesson.asked.floor_s, lesson.samples)[-width:]
        own, wanted, weight = np.zeros_like(replay.candidate[:1]), *np.zeros((2, 1, width), dtype=np.float32)
        own[0, : len(table)], wanted[0, : len(table)] = table, target
        weight[0, : len(table)] = EMPHASIS / len(table)
        return Batch(
            np.concatenate([net.encode(lesson.vector)[None], replay.state[rows]]),
            np.concatenate([own, replay.candidate[rows]]),
            np.concatenate([wanted, replay.target[rows]]),
            np.concatenate([weight, replay.weight[rows]]),
        )


def adam(weights: Sequence[Array], batch: Batch, *, steps: int = STEPS, rate: float | None = None) -> list[Array]:
    """The head after some steps of Adam on a batch.

    Args:
        weights: of the head.
        batch: the same at every step.
        steps: how many.
        rate: of learning; None is RATE.
    """
    learned = [values.copy() for values in weights]
    mean, square = [np.zeros_like(w) for w in learned], [np.zeros_like(w) for w in learned]
    for step in range(1, steps + 1):
        scale = np.float32((RATE if rate is None else rate) * np.sqrt(1 - BETA_SQUARE**step) / (1 - BETA**step))
        for index, slope in enumerate(_slopes(learned, batch)):
            mean[index] += np.float32(1 - BETA) * (slope - mean[index])
            square[index] += np.float32(1 - BETA_SQUARE) * (slope * slope - square[index])
            learned[index] -= scale * mean[index] / (np.sqrt(square[index]) + np.float32(EPSILON))
    return learned


def _slopes(weights: Sequence[Array], batch: Batch) -> list[Array]:
    """Gradient of the mean weighted square error by each array of the head."""
    _, _, _, _, asked, dense, _, out, _ = weights
    state = batch.state[:, None]
    a, b, c, output = head(weights, state, batch.candidate)
    miss = batch.weight * (output[..., 0] - batch.target)
    off: Array = (2 / batch.target.size * miss)[..., None].astype(np.float32)
    by_c: Array = (off @ out.T) * (c > 0)
    by_b: Array = (by_c @ dense.T) * (b > 0)
    by_a: Array = (by_b @ asked.T) * (a > 0)
    by_known = by_b.sum(axis=1)
    return [
        *(batch.state.T @ by_known, by_known.sum(axis=0)),
        *(_outer(batch.candidate, by_a), by_a.sum(axis=(0, 1))),
        _outer(a, by_b),
        *(_outer(b, by_c), by_c.sum(axis=(0, 1))),
        *(_outer(c, off), off.sum(axis=(0, 1))),
    ]


def _outer(given: Array, by: Array) -> Array:
    """Sum over all rows of the products of what a layer was given and the gradient by what it put out."""
    slope: Array = given.reshape(-1, given.shape[-1]).T @ by.reshape(-1, by.shape[-1])
    return slope
