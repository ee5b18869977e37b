"""The network as a tuner runs it: one state and a few hundred candidates, in NumPy alone.

Keras takes seconds to import and milliseconds to begin, more than all the arithmetic of a decision; a job that trains
should not pay for it. A test holds the two equal.
"""

from collections.abc import Sequence

import numpy as np

from autobyte.errors import InputError
from autobyte.features.schema import Choice
from autobyte.features.vector import Candidates, Vector
from autobyte.job import Floats
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

    def encode(self, vector: Vector) -> Array:
        """A state as the heads take it, one member after the other; shape [members · (LSTM + 2 BRANCH)]."""
        layer, bandwidth, static = (part[0] for part in self.inputs(vector))
        embed, embed_bias, *lstm, by, by_bias, of, of_bias = self._encoders
        rows = _relu(layer @ embed + embed_bias[:, None])
        last = _lstm(_lstm(rows, *lstm[:3]), *lstm[3:])[:, -1]
        code = np.concatenate([last, _relu(bandwidth @ by + by_bias), _relu(static @ of + of_bias)], axis=1)
        return code.reshape(-1)

    def rate(self, state: Array, asked: Candidates) -> Floats:
        """What the heads say of each candidate: the mean of their outputs, shape [configs].

        Args:
            state: one for all, or one for each candidate, shape [configs, .].
            asked: the candidates.
        """
        table = self.scored("candidate", asked.table)
        pairs = zip(self.heads, self.parts(state), strict=True)
        said: Floats = np.mean([head(weights, part, table)[-1][..., 0] for weights, part in pairs], axis=0)
        return said.astype(np.float64)


def head(weights: Sequence[Array], state: Array, candidate: Array) -> tuple[Array, Array, Array, Array]:
    """Run the head: the branch of the candidates, both dense layers, and the output."""
    known, known_bias, branch, branch_bias, asked, dense, dense_bias, out, out_bias = weights
    a = _relu(candidate @ branch + branch_bias)
    b = _relu((state @ known + known_bias) + a @ asked)
    c = _relu(b @ dense + dense_bias)
    return a, b, c, c @ out + out_bias


def _lstm(rows: Array, kernel: Array, recurrent: Array, bias: Array) -> Array:
    """One layer of all members over rows in turn; Keras's order of gates: input, forget, cell, output."""
    fed = rows @ kernel + bias[:, None]
    units = recurrent.shape[1]
    state, cell = np.zeros((2, len(rows), units), dtype=np.float32)
    states = np.empty((*rows.shape[:2], units), dtype=np.float32)
    for row, given in enumerate(fed.swapaxes(0, 1)):
        gates = given + (state[:, None] @ recurrent)[:, 0]
        opened = 1.0 / (1.0 + np.exp(-gates))
        fresh = np.tanh(gates[:, 2 * units : 3 * units])
        cell = opened[:, units : 2 * units] * cell + opened[:, :units] * fresh
        state = opened[:, 3 * units :] * np.tanh(cell)
        states[:, row] = state
    return states


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
