"""The feature vector: a state and candidate configs as numbers, in the schema's order.

The *floor* is a closed form of the step time, and the scale on which candidates are told apart. With priorities, the
gradients of layers ≤ m have arrived, at the earliest, when layer m's is complete (its backward pass and those
before it), what less urgent blocks had been let out by then is through, and their own blocks are:

    floor = max( A·C, busy, max_m [ Σ_{k≥m} (f_k + b_k) + (A-1)·C + min(backlog_m, window) + busy(layers ≤ m) ] )

`busy` counts bytes and blocks on the slowest link, `backlog_m` is what of layers > m is not through yet, and `window`
what a credit lets out of it. Without blocks' cost and window this is the bound of `autobyte/bound.py`.

Reference: AutoByte, Table II; the closed form is ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from autobyte.config import Config
from autobyte.features.runtime import State
from autobyte.features.schema import BANDWIDTH, CANDIDATE, LAYER, ROWS, STATIC
from autobyte.features.static import KNOWN_MODELS
from autobyte.job import Floats, Ints

LEAST = 1e-9  # so that a logarithm exists


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
    rows = {
        "backward_s": state.backward_s,
        "backward_slowest_s": state.slowest_backward_s,
        "forward_s": state.forward_s,
        "nbytes": static.layer_bytes,
        "slowest_forward_s": state.slowest_forward_s,
        "wire_s": static.layer_bytes * state.byte_s,
    }
    pooled = {name: static.pooled(values) for name, values in rows.items()}
    count = len(pooled["nbytes"])
    mean_s = max(state.compute_s / count, LEAST)
    columns = [
        np.log10(np.maximum(pooled["backward_s"], LEAST)),
        np.log10(np.maximum(pooled["backward_slowest_s"], LEAST)),
        np.log10(np.maximum(pooled["forward_s"], LEAST)),
        np.log10(np.maximum(pooled["nbytes"], 1.0)),
        np.ones(count),
        np.log1p(pooled["backward_slowest_s"] / mean_s),
        np.log1p(pooled["slowest_forward_s"] / mean_s),
        np.log1p(pooled["wire_s"] / mean_s),
    ]
    table = np.zeros((ROWS, len(LAYER)))
    table[ROWS - count :] = np.stack(columns, axis=1)[::-1]
    return table


def _bandwidth(state: State) -> Floats:
    compute_s = max(state.compute_s, LEAST)
    values = []
    for rate in (state.up_bytes_per_s, state.down_bytes_per_s):
        logs = np.log10(np.where(np.isnan(rate), 1e15, np.minimum(np.maximum(rate, 1.0), 1e15)))
        values += [logs.mean(), logs.min(), logs.max()]
    wire_s = state.byte_s * state.static.total_bytes
    values += [
        np.log(max(wire_s, LEAST) / compute_s),
        np.log(max(state.block_s, LEAST) / compute_s),
        np.log(max(state.mean_byte_s, 1e-15) / max(state.byte_s, 1e-15)),
        np.log2(max(1, state.configs)),
    ]
    assert len(values) == len(BANDWIDTH)
    return np.array(values)


def _static(state: State, off: Floats) -> Floats:
    name = state.static.model.name
    known = [float(name == other) for other in KNOWN_MODELS]
    mean_s = state.forward_s.sum() + state.backward_s.sum()
    values = [
        np.log2(state.workers),
        np.log2(state.static.layers),
        float(not state.servers),
        float(bool(state.servers)),
        state.servers / state.workers,
        *known,
        1.0 - sum(known),
        np.log(max(state.compute_s, LEAST) / max(mean_s, LEAST)),
        state.slowest_forward_s.sum() / max(state.compute_s, LEAST),
        np.log2(state.accumulation),
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
    static, compute_s = state.static, state.compute_s
    partition, credit = np.array([(c.partition_bytes, c.credit_bytes) for c in configs], dtype=float).T
    sizes: dict[tuple[int, float], int] = {}  # configs that cut alike
    cut = np.array([sizes.setdefault((c.partition_bytes, c.knobs.get("fusion", 0.0)), len(sizes)) for c in configs])
    firsts = [configs[int(np.argmax(cut == index))] for index in range(len(sizes))]
    row_blocks, parts = zip(*(static.row_blocks(config) for config in firsts), strict=True)
    blocks, whole, nbytes = np.array(row_blocks), np.array(parts)[cut], static.row_bytes  # [cuts, rows], [configs]
    crowding = state.crowding * np.minimum(credit, static.total_bytes) if stretch is None else stretch - 1.0
    byte_s = state.byte_s * (1.0 + crowding)
    busy_s = blocks[cut] * state.block_s + nbytes * byte_s[:, None]  # [configs, rows]
    total_s, overhead_s = busy_s.sum(axis=1), (blocks.sum(axis=1) * state.block_s)[cut]
    full_s = state.block_s + np.minimum(partition, static.largest_bytes) * byte_s
    late_s, behind_s, place = _latest(state, busy_s, nbytes, credit)
    floor_s = np.maximum(np.maximum(state.accumulation * compute_s, total_s), late_s)
    floor_s = np.maximum(floor_s, LEAST)
    window_s = credit / np.maximum(partition, 1.0) * full_s
    table = np.stack(
        [
            np.log2(partition),
            np.log2(np.maximum(credit / partition, LEAST)),
            np.log(floor_s / max(compute_s, LEAST)),
            total_s / floor_s,
            overhead_s / np.maximum(total_s, LEAST),
            np.log(np.maximum(full_s, LEAST) / floor_s),
            np.log1p(1e3 * window_s / floor_s),
            behind_s / floor_s,
            compute_s * state.accumulation / floor_s,
            place,
            np.log2(partition / static.largest_bytes),
            whole,
            np.log1p(crowding),
        ],
        axis=1,
    )
    assert table.shape[1] == len(CANDIDATE)
    return Candidates(table, floor_s)


def _latest(state: State, busy_s: Floats, nbytes: Floats, credit: Floats) -> tuple[Floats, Floats, Floats]:
    """The third term of the floor.

    Args:
        busy_s: of each config and row of layers (s), shape [configs, rows].
        nbytes: of each row, shape [rows].
        credit: of each config (bytes).

    Returns:
        its value (s), what it has of waiting (s), and where in the model it lies (0 … 1), shape [configs].
    """
    static = state.static
    forward_s, backward_s = static.pooled(state.slowest_forward_s), static.pooled(state.slowest_backward_s)
    compute_s = np.cumsum((forward_s + backward_s)[::-1])[::-1] + (state.accumulation - 1) * state.compute_s
    late_s, behind_s, latest = _latest_row(
        np.ascontiguousarray(compute_s), backward_s, busy_s, nbytes, np.ascontiguousarray(credit)
    )
    return late_s, behind_s, np.where(late_s > 0, (latest + 1) / len(nbytes), 0.0)


@njit(cache=True, nogil=True)
def _latest_row(
    compute_s: Floats, backward_s: Floats, busy_s: Floats, nbytes: Floats, credit: Floats
) -> tuple[Floats, Floats, Ints]:
    """The row whose gradients are used the latest: when (s), what of it is waiting (s), which; shape [configs]."""
    configs, rows = busy_s.shape
    late_s, behind_s, latest = np.zeros(configs), np.zeros(configs), np.zeros(configs, dtype=np.int64)
    wait_s = np.zeros(rows)
    for config in range(configs):
        backlog_s = sent_s = sent_bytes = 0.0  # of layers > m
        for row in range(rows - 1, -1, -1):
            backlog_s = max(0.0, backlog_s - backward_s[row])  # when m's gradients are complete
            wait_s[row] = min(backlog_s, credit[config] * (sent_s / sent_bytes)) if sent_bytes else backlog_s
            backlog_s += busy_s[config, row]
            sent_s += busy_s[config, row]
            sent_bytes += nbytes[row]
        ahead_s = 0.0  # of layers <= m
        for row in range(rows):
            ahead_s += busy_s[config, row]
            arrives_s = compute_s[row] + wait_s[row] + ahead_s
            if arrives_s >= late_s[config]:
                late_s[config], behind_s[config], latest[config] = arrives_s, wait_s[row], row
    return late_s, behind_s, latest
