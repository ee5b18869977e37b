"""A layer of LSTM over a state, compiled: in NumPy each of its rows costs more calls than arithmetic.

The exponential is a polynomial, so that the loop compiles to vector instructions; gates are within 2e-7 of the
true ones.

Reference: Moshier's Cephes library, `expf`.
"""

import numpy as np

from autobyte.compiling import njit
from autobyte.nets.metanet import Array

HALF, ONE, TWO = np.float32(0.5), np.float32(1), np.float32(2)
LOG2E, LN2_HIGH, LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
C2, C3, C4 = np.float32(5.0000001201e-1), np.float32(1.6666665459e-1), np.float32(4.1665795894e-2)
C5, C6, C7 = np.float32(8.3334519073e-3), np.float32(1.3981999507e-3), np.float32(1.9875691500e-4)
MOST = np.float32(87)  # beyond which a float has no exponential


@njit(error_model="numpy")
def _sigmoid(x: np.float32) -> np.float32:
    """1 / (1 + exp(-x))"""
    x = min(max(-x, -MOST), MOST)
    whole = np.floor(x * LOG2E + HALF)
    rest = x - whole * LN2_HIGH - whole * LN2_LOW
    power = np.int32((np.int32(whole) + 127) << 23).view(np.float32)  # 2 ** whole
    series = (((((C7 * rest + C6) * rest + C5) * rest + C4) * rest + C3) * rest + C2) * rest * rest + rest + ONE
    share: np.float32 = ONE / (ONE + power * series)
    return share


@njit(cache=True, nogil=True, error_model="numpy")
def lstm(fed: Array, recurrent: Array) -> Array:
    """Run a layer of all members over rows in turn; Keras's order of gates: input, forget, cell, output.

    Args:
        fed: what each row adds to the gates, shape [members, rows, 4 · units].
        recurrent: what the state adds to them, shape [members, units, 4 · units]; a multiple of 4 units.

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
            for index in range(gates):
                gate[index] = fed[member, row, index]
            for unit in range(0, units, 4):  # four at a time, or it is gates that are loaded and stored
                one, two, three, four = state[unit], state[unit + 1], state[unit + 2], state[unit + 3]
                by = recurrent[member, unit : unit + 4]
                for index in range(gates):
                    gate[index] = (
                        gate[index]
                        + one * by[0, index]
                        + two * by[1, index]
                        + three * by[2, index]
                        + four * by[3, index]
                    )
            for index in range(2 * units, 3 * units):
                gate[index] *= TWO  # tanh(x) = 2 / (1 + exp(-2x)) - 1
            for index in range(gates):
                gate[index] = _sigmoid(gate[index])
            for unit in range(units):
                fresh = TWO * gate[2 * units + unit] - ONE
                cell[unit] = gate[units + unit] * cell[unit] + gate[unit] * fresh
            for unit in range(units):
                state[unit] = _sigmoid(TWO * cell[unit])
            for unit in range(units):
                state[unit] = gate[3 * units + unit] * (TWO * state[unit] - ONE)
                states[member, row, unit] = state[unit]
    return states
