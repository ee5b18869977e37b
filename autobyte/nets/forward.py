"""The network as a tuner runs it: one state and a few hundred candidates, without Keras.

Keras takes seconds to import and milliseconds to begin, more than all the arithmetic of a decision; a job that trains
should not pay for it. A test holds the two equal. What is compiled is so once for a machine.
"""

from collections.abc import Sequence

import numpy as np

from autobyte.errors import InputError
from autobyte.features.schema import Choice
from autobyte.features.vector import Candidates, Vector
from autobyte.job import Floats
from autobyte.nets.lstm import lstm
from autobyte.nets.metanet import BRANCH, DENSE, EMBEDDING, LSTM, Array, Net, Scale

ENCODER = 12  # arrays of a member's; those of its head follow


class Forward(Net):
    """A fitted network.

    Args:
        variant, scale: as for every net.
        weights: of each member's encoder and head, in Keras's order.

    Raises:
        InputError: an unknown variant, or weights of other shapes.
    """

    def __init__(self, variant: str, scale: Scale, weights: Sequence[Array]) -> None:
        super().__init__(variant, scale)
        shapes = _shapes(self.variant.choice)
        if [np.shape(values) for values in weights] != self.variant.members * shapes:
            raise InputError(f"weights of other shapes than this '{variant}' network has")
        known = [np.asarray(values, dtype=np.float32) for values in weights]
        members = [known[first : first + len(shapes)] for first in range(0, len(known), len(shapes))]
        self._encoders = [np.stack(values) for values in zip(*(m[:ENCODER] for m in members), strict=True)]
        self.heads = [member[ENCODER:] for member in members]

    @property
    def heads(self) -> list[list[Array]]:
        """Arrays of each member's head; to be assigned, not changed in place."""
        return self._heads

    @heads.setter
    def heads(self, heads: list[list[Array]]) -> None:
        self._heads = heads
        stacked = [np.stack(values) for values in zip(*heads, strict=True)]
        self._together = [values if values.ndim > 2 else values[:, None] for values in stacked]  # biases as rows

    def encode(self, vector: Vector) -> Array:
        """A state as the heads take it, one member after the other; shape [members · (LSTM + 2 BRANCH)]."""
        layer, bandwidth, static = (part[0] for part in self.inputs(vector))
        embed, embed_bias, *layers, by, by_bias, of, of_bias = self._encoders
        rows = _relu(layer @ embed + embed_bias[:, None])
        for kernel, recurrent, bias in (layers[:3], layers[3:]):
            rows = lstm(rows @ kernel + bias[:, None], recurrent)
        code = np.concatenate([rows[:, -1], _relu(bandwidth @ by + by_bias), _relu(static @ of + of_bias)], axis=1)
        return code.reshape(-1)

    def rate(self, state: Array, asked: Candidates) -> Floats:
        """What the heads say of each candidate: the mean of their outputs, shape [configs].

        Args:
            state: one for all, or one for each candidate, shape [configs, .].
            asked: the candidates.
        """
        members = state.reshape(-1, self.variant.members, LSTM + 2 * BRANCH).swapaxes(0, 1)
        *_, output = head(self._together, members, self.scored("candidate", asked.table))
        rated: Floats = output[..., 0].mean(axis=0).astype(np.float64)
        return rated


def head(weights: Sequence[Array], state: Array, candidate: Array) -> tuple[Array, Array, Array, Array]:
    """Run the head: the branch of the candidates, both dense layers, and the output."""
    known, known_bias, branch, branch_bias, asked, dense, dense_bias, out, out_bias = weights
    a = _relu(candidate @ branch + branch_bias)
    b = _relu((state @ known + known_bias) + a @ asked)
    c = _relu(b @ dense + dense_bias)
    return a, b, c, c @ out + out_bias


def _relu(values: Array) -> Array:
    return np.maximum(values, np.float32(0))


def _shapes(choice: Choice) -> list[tuple[int, ...]]:
    joined = LSTM + 2 * BRANCH
    return [
        *((len(choice.layer), EMBEDDING), (EMBEDDING,)),
        *((EMBEDDING, 4 * LSTM), (LSTM, 4 * LSTM), (4 * LSTM,)),
        *((LSTM, 4 * LSTM), (LSTM, 4 * LSTM), (4 * LSTM,)),
        *((len(choice.bandwidth), BRANCH), (BRANCH,), (len(choice.static), BRANCH), (BRANCH,)),
        *((joined, DENSE), (DENSE,), (len(choice.candidate), BRANCH), (BRANCH,), (BRANCH, DENSE)),
        *((DENSE, DENSE), (DENSE,), (DENSE, 1), (1,)),
    ]
