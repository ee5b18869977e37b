"""The feature vector: a state and candidate configs as numbers, in the schema's order.

The *floor* is a closed form of the step time, and the scale on which candidates are told apart. With priorities, the
gradients of layers ≤ m have arrived, at the earliest, when layer m's is complete (its backward pass and those
before it), what less urgent blocks had been let out by then is through, and their own blocks are:

    floor = max( A·C, busy, max_m [ Σ_{k≥m} (f_k + b_k) + (A-1)·C + min(backlog_m, window) + busy(layers ≤ m) ] )

`busy` counts bytes and blocks on the slowest link, `backlog_m` is what of layers > m is not through yet, and `window`
what a credit lets out of it. Without blocks' cost and window this is the bound of `autobyte/bound.py`.

Reference: AutoByte, Table II; the closed form is ours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autobyte.compiling import njit
from autobyte.config import Config
from autobyte.features.runtime import State
from autobyte.features.schema import BANDWIDTH, CANDIDATE, LAYER, ROWS, STATIC
from autobyte.features.static import KNOWN_MODELS
from autobyte.job import Floats, Ints

LEAST = 1e-9  # so that a logarithm exists
COLUMNS = len(CANDIDATE)


@dataclass(frozen=True, eq=False)
class Vector:
    """A state as numbers.

    Args:
        layer: shape [ROWS, len(LAYER)], the backward pass from top to bottom.
        bandwidth: shape [len(BANDWIDTH)].
        static: shape [len(STATIC)].
    """

    layer: Floats
    bandwidth: Floats
    static: Floats


@dataclass(frozen=True, eq=False)
class Candidates:
    """Configs as numbers, shape [configs, len(CANDIDATE)]; the floor of the step under each (s), shape [configs]."""

    table: Floats
    floor_s: Floats


def describe(state: State, off: Floats | None = None) -> Vector:
    """Turn a state into numbers.

    Args:
        state: of the job.
        off: logarithms of measured by floor, of configs that ran; None: of those that the state has seen.
    """
    if off is None:
        took_s = np.maximum(list(state.seen.values()), LEAST)
        off = np.log(took_s / candidates(state, list(state.seen)).floor_s)
    return Vector(_layers(state), _bandwidth(state), _static(state, off))


def _layers(state: State) -> Floats:
    static = state.static
    of_layers = [
        *(state.backward_s, state.slowest_backward_s, state.forward_s, static.layer_bytes),
        *(state.slowest_forward_s, static.layer_bytes * state.byte_s),
    ]
    pooled = static.pooled(np.array(of_layers))
    count = pooled.shape[1]
    mean_s = max(state.compute_s / count, LEAST)
    table = np.zeros((ROWS, len(LAYER)))
    rows = table[ROWS - count :].T[:, ::-1]
    rows[:4] = np.log10(np.maximum(pooled[:4], [[LEAST], [LEAST], [LEAST], [1.0]]))
    rows[4] = 1.0
    rows[5:] = np.log1p(pooled[[1, 4, 5]] / mean_s)
    return table


def _bandwidth(state: State) -> Floats:
    compute_s = max(state.compute_s, LEAST)
    rates = np.array([state.up_bytes_per_s, state.down_bytes_per_s])
    logs = np.log10(np.fmin(np.maximum(rates, 1.0), 1e15))  # unknown, it is no limit
    wire_s = state.byte_s * state.static.total_bytes
    values = [
        *np.array([logs.mean(axis=1), logs.min(axis=1), logs.max(axis=1)]).T.flat,
        math.log(max(wire_s, LEAST) / compute_s),
        math.log(max(state.block_s, LEAST) / compute_s),
        math.log(max(state.mean_byte_s, 1e-15) / max(state.byte_s, 1e-15)),
        math.log2(max(1, state.configs)),
    ]
    assert len(values) == len(BANDWIDTH)
    return np.array(values)


def _static(state: State, off: Floats) -> Floats:
    name = state.static.model.name
    known = [float(name == other) for other in KNOWN_MODELS]
    mean_s = float(state.forward_s.sum() + state.backward_s.sum())
    values = [
        math.log2(state.workers),
        math.log2(state.static.layers),
        float(not state.servers),
        float(bool(state.servers)),
        state.servers / state.workers,
        *known,
        1.0 - sum(known),
        math.log(max(state.compute_s, LEAST) / max(mean_s, LEAST)),
        state.slowest_forward_s.sum() / max(state.compute_s, LEAST),
        math.log2(state.accumulation),
        off.mean(),
        off.std(),
        state.variation,
    ]
    assert len(values) == len(STATIC)
    return np.array(values)


def candidates(state: State, configs: Sequence[Config], *, stretch: Floats | None = None) -> Candidates:
    """Turn configs into numbers, in one go.

    Args:
        state: of the job.
        configs: which.
        stretch: how many times as long a byte takes under each config, shape [configs]; None: as links crowd.
    """
    static = state.static
    partition, credit = np.array([(c.partition_bytes, c.credit_bytes) for c in configs], dtype=float).T.copy()
    keys = [(config.partition_bytes, config.knobs.get("fusion", 0.0)) for config in configs]
    cuts = dict(zip(keys, configs, strict=True))  # one of those that cut alike
    places = {key: index for index, key in enumerate(cuts)}
    blocks, whole = zip(*(static.row_blocks(config) for config in cuts.values()), strict=True)
    crowding = state.crowding * np.minimum(credit, static.total_bytes) if stretch is None else stretch - 1.0
    forward_s, backward_s = static.pooled(state.slowest_forward_s), static.pooled(state.slowest_backward_s)
    left_s = np.cumsum((forward_s + backward_s)[::-1])[::-1].copy()
    table, floor_s = _table(
        _Asked(partition, credit, crowding, np.array([places[key] for key in keys])),
        _Rows(left_s, backward_s, static.row_bytes, np.array(blocks), np.array(whole), static.largest_bytes),
        _Costs(state.compute_s, state.accumulation, state.block_s, state.byte_s),
    )
    return Candidates(table, floor_s)


class _Asked(NamedTuple):
    """Configs, shape [configs]: S_p and S_c (B), by what part a byte costs more, and the way they cut gradients."""

    partition: Floats
    credit: Floats
    crowding: Floats
    way: Ints


class _Rows(NamedTuple):
    """Rows of layers.

    Args:
        left_s: compute from the beginning of its backward pass to the end of the step (s), shape [rows].
        backward_s, nbytes: of each, shape [rows].
        blocks, whole: of each way to cut them, shape [ways, rows], and the part of blocks smaller than S_p, [ways].
        largest_bytes: of a tensor.
    """

    left_s: Floats
    backward_s: Floats
    nbytes: Floats
    blocks: Floats
    whole: Floats
    largest_bytes: float


class _Costs(NamedTuple):
    """As `State` has them."""

    compute_s: float
    accumulation: int
    block_s: float
    byte_s: float


@njit(cache=True, nogil=True, error_model="numpy")
def _table(asked: _Asked, rows: _Rows, costs: _Costs) -> tuple[Floats, Floats]:
    """The columns of configs, and their floors (s)."""
    configs, compute_s = len(asked.way), costs.compute_s
    table, floors_s, busy_s = np.empty((configs, COLUMNS)), np.empty(configs), np.empty(len(rows.nbytes))
    for config in range(configs):
        partition, credit, crowding = asked.partition[config], asked.credit[config], asked.crowding[config]
        way, byte_s = asked.way[config], costs.byte_s * (1.0 + crowding)
        total_s = overhead_s = 0.0
        for row in range(len(busy_s)):
            blocks_s = rows.blocks[way, row] * costs.block_s
            busy_s[row] = blocks_s + rows.nbytes[row] * byte_s
            overhead_s += blocks_s
            total_s += busy_s[row]
        late_s, behind_s, tail = _latest(rows, busy_s, credit, (costs.accumulation - 1) * compute_s)
        floor_s = max(costs.accumulation * compute_s, total_s, late_s, LEAST)
        full_s = costs.block_s + min(partition, rows.largest_bytes) * byte_s
        columns = (
            math.log2(partition),
            math.log2(max(credit / partition, LEAST)),
            math.log(floor_s / max(compute_s, LEAST)),
            total_s / floor_s,
            overhead_s / max(total_s, LEAST),
            math.log(max(full_s, LEAST) / floor_s),
            math.log1p(1e3 * credit / max(partition, 1.0) * full_s / floor_s),
            behind_s / floor_s,
            compute_s * costs.accumulation / floor_s,
            tail,
            math.log2(partition / rows.largest_bytes),
            rows.whole[way],
            math.log1p(crowding),
        )
        assert len(columns) == COLUMNS
        for column in range(COLUMNS):
            table[config, column] = columns[column]
        floors_s[config] = floor_s
    return table, floors_s


@njit(error_model="numpy")
def _latest(rows: _Rows, busy_s: Floats, credit: float, before_s: float) -> tuple[float, float, float]:
    """The row whose gradients are used the latest: when (s), what of it is waiting (s), where in the model (0 … 1).

    Args:
        rows: of layers.
        busy_s: of each on the slowest link (s).
        credit: bytes.
        before_s: compute of earlier backward passes of the step (s).
    """
    count = len(busy_s)
    wait_s = np.empty(count)
    backlog_s = sent_s = sent_bytes = 0.0  # of layers > m
    for row in range(count - 1, -1, -1):
        backlog_s = max(0.0, backlog_s - rows.backward_s[row])  # when m's gradients are complete
        wait_s[row] = min(backlog_s, credit * (sent_s / sent_bytes)) if sent_bytes else backlog_s
        backlog_s += busy_s[row]
        sent_s += busy_s[row]
        sent_bytes += rows.nbytes[row]
    late_s = behind_s = ahead_s = 0.0  # of layers <= m
    latest = -1
    for row in range(count):
        ahead_s += busy_s[row]
        arrives_s = rows.left_s[row] + before_s + wait_s[row] + ahead_s
        if arrives_s >= late_s:
            late_s, behind_s, latest = arrives_s, wait_s[row], row
    return late_s, behind_s, (latest + 1) / count if late_s > 0 else 0.0
