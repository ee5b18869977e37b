"""Unequal blocks in a near-optimal order: what fits travels beside backward, the rest in forward order.

The plan is a fixed sequence, made for measured times under T(s) = a + s/B. `unequal` and `unequal_fused` have the
search, `published` the algorithms of the paper.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from autobyte.config import Config, Space
from autobyte.job import Job
from autobyte.scheduler.alpha_beta import AlphaBeta, Timetable
from autobyte.scheduler.block import Segment, Tiling
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.policies.base import Policy
from autobyte.scheduler.tiling import chop
from autobyte.units import GIB, KIB

Row = list[Segment]


@dataclass(frozen=True)
class Schedule:
    """Messages in the order in which they travel, and the step they are expected to make (s)."""

    rows: list[Row]
    step_s: float


class UsByte(Policy):
    """Blocks of unequal sizes, at most one cut per tensor, in one fixed sequence.

    `partition_bytes` is the largest message: what is larger travels in pieces, one behind the other. `credit_bytes`
    is the window; below the size of the model the cost model counts a latency into every message. Knobs:

    - `fusion`: 1 (default) lets messages carry several tensors, 0 is as published.
    - `published`: 1 uses the paper's algorithms 1 to 3, whose unit is then `partition_bytes`; they never fuse.

    Both say which algorithm plans: a tuner does not search them.

    Reference: US-Byte (TPDS 35(1), 2024, doi 10.1109/TPDS.2023.3331372), algorithms 1 to 3. Its cuts are at rows of a
    tensor's first dimension and its a, B and forward times are constants of its authors' clusters; here any element
    is a place to cut, and the job says what things cost.
    """

    knobs = ("fusion", "published")

    def plan(self, job: Job, config: Config) -> Plan:
        """The sequence with the least expected step."""
        schedule = make_schedule(job, config)
        rows: Iterable[Row] = schedule.rows
        if config.knobs.get("published", 0) < 0.5:
            rows = [piece for row in rows for piece in chop(job.gradients, row, config.partition_bytes)]
        tiling = Tiling.of(job.gradients, rows)
        return Plan(job, tiling, config.credit_bytes, sequence=np.arange(len(tiling)))

    def space(self, job: Job) -> Space:
        """The largest message and the window: as good as none on a ring, one at a time through servers."""
        window = KIB if job.cluster.servers else 16 * GIB
        return Space((256 * KIB, GIB), (2**-20, 16.0), Config(GIB, window, "usbyte", {"fusion": 1}))


def make_schedule(job: Job, config: Config) -> Schedule:
    """What `UsByte` plans, and the step it expects: exact on a ring of like workers, if nothing limits it."""
    table, total = Timetable.of(job), job.gradients.total_bytes
    rest_s = (job.accumulation - 1) * table.compute_s
    if not total:
        return Schedule([], rest_s + table.compute_s)
    cost = AlphaBeta.of(job.cluster, waits=config.credit_bytes < total)
    if config.knobs.get("published", 0) >= 0.5:
        rows, step_s = _published(table, cost, job, config.partition_bytes)
    else:
        # messages are cut at partition_bytes: a start-up more for each so many bytes
        again = cost.start_s / config.partition_bytes if config.partition_bytes < total else 0.0
        load = table.nbytes * (cost.s_per_byte + again)
        search = _fused if config.knobs.get("fusion", 1) >= 0.5 else _whole
        rows, step_s = search(table, cost, job, load)
    return Schedule(rows, rest_s + step_s)


def _whole(table: Timetable, cost: AlphaBeta, job: Job, load: np.ndarray) -> tuple[list[Row], float]:
    from autobyte.scheduler.policies.unequal import AFTER, search_whole  # noqa: PLC0415  compiled: when first needed

    step_s, mode, sent = search_whole(
        table.ready_s, table.tail_s, load, cost.start_s, cost.latency_s, table.compute_s
    )
    parts = _parts(job, table, load, sent, (mode != AFTER).tolist())
    before = [[piece] for piece, _ in parts[::-1] if piece]
    after = [[piece] for _, piece in parts if piece]
    return before + after, step_s


def _fused(table: Timetable, cost: AlphaBeta, job: Job, load: np.ndarray) -> tuple[list[Row], float]:
    from autobyte.scheduler.policies.unequal_fused import search_fused  # noqa: PLC0415

    step_s, begins, sent, group = search_fused(
        table.ready_s, table.tail_s, load, table.kind, cost.start_s, cost.latency_s, table.compute_s
    )
    place = np.cumsum(begins)  # which message beside backward takes a tensor; 0: none
    parts = _parts(job, table, load, sent, (place > 0).tolist())
    before: dict[tuple[int, int], Row] = {}
    after: dict[int, Row] = {}
    for (early, late), number, kind, later in zip(
        parts, place.tolist(), table.kind.tolist(), group.tolist(), strict=True
    ):
        if early:
            before.setdefault((-number, kind), []).append(early)
        if late:
            after.setdefault(later, []).append(late)
    return [before[key] for key in sorted(before)] + [after[key] for key in sorted(after)], step_s


def _published(table: Timetable, cost: AlphaBeta, job: Job, unit_bytes: int) -> tuple[list[Row], float]:
    from autobyte.scheduler.policies.published import search_published  # noqa: PLC0415

    # a unit is so many bytes; on an infinitely fast link nothing is worth cutting
    load = table.nbytes * cost.s_per_byte
    step_s, item, units, left = search_published(
        table.ready_s, table.tail_s, load, cost.start_s, unit_bytes * cost.s_per_byte, cost.latency_s, table.compute_s
    )
    blocks = [
        *zip(item.tolist(), units.tolist(), strict=True),
        *((k, count) for k, count in enumerate(left) if count),
    ]
    last = {k: place for place, (k, _) in enumerate(blocks)}
    room = np.maximum(1, unit_bytes // job.gradients.itemsize[table.tensor])  # elements per unit
    reached = [0] * len(load)
    rows: list[Row] = []
    for place, (k, count) in enumerate(blocks):
        tensor, start = int(table.tensor[k]), reached[k]
        numel = int(job.gradients.numel[tensor])
        stop = numel if last[k] == place else min(numel, start + int(count * room[k]))
        if start < stop:
            rows.append([Segment(tensor, start, stop)])
        reached[k] = stop
    return rows, step_s


def _parts(
    job: Job, table: Timetable, load: np.ndarray, sent: np.ndarray, goes_before: list[bool]
) -> list[tuple[Segment | None, Segment | None]]:
    """Each tensor's part beside backward, and its remainder: where seconds become elements."""
    numel = job.gradients.numel[table.tensor]
    with np.errstate(invalid="ignore"):
        cut = np.where(sent < load, np.rint(np.nan_to_num(sent / load) * numel), numel).astype(np.int64)
    cut = np.where(goes_before, cut, 0)
    columns = zip(table.tensor.tolist(), cut.tolist(), numel.tolist(), strict=True)
    return [(Segment(t, 0, at) if at else None, Segment(t, at, end) if at < end else None) for t, at, end in columns]
