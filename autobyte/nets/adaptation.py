"""Fine-tune the network on the running job.

The encoder stays as it is; the head learns the job's own samples, mixed with offline ones (transfer learning;
AutoByte, sec. III-B, "online adapting"). Whoever calls `learn` decides when: a tuner does it in the background, and
what was learned shows in its next answer.
"""

from dataclasses import dataclass

import numpy as np

from autobyte.features.vector import Candidates, Vector
from autobyte.job import Floats
from autobyte.nets.backend import arrays, keras, modestly
from autobyte.nets.metanet import Array, MetaNet, make_head
from autobyte.nets.stored import Replay

STEPS, RATE, REPLAYED, EMPHASIS = 24, 2e-3, 31, 16.0


@dataclass(frozen=True, eq=False)
class Lesson:
    """The job's own samples: a state, the configs that ran in it, and what they took (s), shape [configs]."""

    vector: Vector
    asked: Candidates
    step_s: Floats
    samples: int


class Adaptation:
    """One network that goes on learning.

    >>> adaptation.learn(lesson)

    Args:
        net: its head is changed by `learn`, and by nothing else.
        replay: offline samples.
        seed: of which of them are replayed.
    """

    def __init__(self, net: MetaNet, replay: Replay, *, seed: int = 0) -> None:
        self._net = net
        self._replay = replay
        self._random = np.random.default_rng(seed)
        self._head = make_head(net.variant.choice, seed=0)
        optimizer = keras().optimizers.Adam(RATE)
        optimizer.build(self._head.trainable_variables)
        self._head.compile(optimizer=optimizer, loss="mean_squared_error")
        self._fresh = arrays(optimizer.variables)

    def learn(self, lesson: Lesson) -> bool:
        """Take some steps on a copy of the head, and use it if nothing in it went out of bounds.

        Returns:
            whether the network changed.
        """
        with modestly(learning=True):
            return self._learn(*self._batch(lesson))

    def _learn(self, inputs: list[Array], target: Array, weight: Array) -> bool:
        self._head.set_weights(arrays(self._net.head.weights))
        for variable, values in zip(self._head.optimizer.variables, self._fresh, strict=True):
            variable.assign(values)
        for _ in range(STEPS):
            self._head.train_on_batch(inputs, target, sample_weight=weight)
        learned = arrays(self._head.weights)
        if not all(np.isfinite(values).all() for values in learned):
            return False
        self._net.head.set_weights(learned)
        return True

    def _batch(self, lesson: Lesson) -> tuple[list[Array], Array, Array]:
        """The lesson in front, replayed samples behind it; all rows of one length."""
        net, replay = self._net, self._replay
        width = replay.target.shape[1]
        rows = self._random.choice(len(replay), min(REPLAYED, len(replay)), replace=False)
        table = net.scored("candidate", lesson.asked.table)[-width:]
        target = net.target(lesson.step_s, lesson.asked.floor_s, lesson.samples)[-width:]
        own, wanted, weight = np.zeros_like(replay.candidate[:1]), *np.zeros((2, 1, width), dtype=np.float32)
        own[0, : len(table)], wanted[0, : len(table)] = table, target
        weight[0, : len(table)] = EMPHASIS / len(table)
        state = net.encode(lesson.vector)[None]
        return (
            [np.concatenate([state, replay.state[rows]]), np.concatenate([own, replay.candidate[rows]])],
            np.concatenate([wanted, replay.target[rows]])[..., None],
            np.concatenate([weight, replay.weight[rows]]),
        )
