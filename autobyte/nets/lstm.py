"""A layer of LSTM over a state, compiled: in NumPy each of its rows costs more calls than arithmetic.

The exponential is a polynomial, so that the loop compiles to vector instructions: within 1e-7 of the true one.

Reference: Moshier's Cephes library, `expf`.
"""

import numpy as np
from numba import njit

from autobyte.nets.metanet import Array

ONE, HALF = np.float32(1), np.float32(0.5)
LOG2E, LN2_HIGH, LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
C2, C3, C4 = np.float32(5.0000001201e-1), np.float32(1.6666665459e-1), np.float32(4.1665795894e-2)
C5, C6, C7 = np.float32(8.3334519073e-3), np.float32(1.3981999507e-3), np.float32(1.9875691500e-4)
MOST = np.float32(87)  # beyond which a float has no exponential


@njit(inline="always")
def _sigmoid(x: np.float32) -> np.float32:
    """1 / (1 + exp(-x))"""
    x = min(max(-x, -MOST), MOST)
    whole = np.floor(x * LOG2E + HALF)
    rest = x - whole * LN2_HIGH - whole * LN2_LOW
    power = np.int32((np.int32(whole) + 127) << 23).view(np.float32)  # 2 ** whole
    series = (((((C7 * rest + C6) * rest + C5) * rest + C4) * rest + C3) * rest + C2) * rest * rest + rest + ONE
    share: np.float32 = ONE / (ONE + power * series)
    return share


@njit(inline="always")
def _tanh(x: np.float32) -> np.float32:
    return _sigmoid(x + x) * (ONE + ONE) - ONE


@njit(cache=True, nogil=True, error_model="numpy")
def lstm(fed: Array, recurrent: Array) -> Array:
    """Run a layer of all members over rows in turn; Keras's order of gates: input, forget, cell, output.

    Args:
        fed: what each row adds to the gates, shape [members, rows, 4 · units].
        recurrent: what the state adds to them, shape [members, units, 4 · units].

    Returns:
        the state after each row, shape [members, rows, units].
    """
    members, rows, gates = fed.shape
    units = gates // 4
    states = np.empty((members, rows, units), dtype=np.float32)
    gate = np.empty(gates, dtype=np.float32)
    for member in range(members):
        state, cell = np.zeros(units, dtype=np.float32), np.zeros(units, dtype=np.float32)
        for row in range(rows):
            gate[:] = fed[member, row]
            for unit in range(units):
                for index in range(gates):
                    gate[index] += state[unit] * recurrent[member, unit, index]
            for index in range(2 * units):
                gate[index] = _sigmoid(gate[index])
            for index in range(2 * units, 3 * units):
                gate[index] = _tanh(gate[index])
            for index in range(3 * units, gates):
                gate[index] = _sigmoid(gate[index])
            for unit in range(units):
                cell[unit] = gate[units + unit] * cell[unit] + gate[unit] * gate[2 * units + unit]
                state[unit] = gate[3 * units + unit] * _tanh(cell[unit])
                states[member, row, unit] = state[unit]
    return states
