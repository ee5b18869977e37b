"""What happened, when: the clock, spans of compute and of blocks, runtime statistics, a window's measurement."""

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from autobyte.breakdown import Interval, breakdown
from autobyte.config import Config
from autobyte.drafts import draft_of
from autobyte.errors import InputError
from autobyte.job import Floats, Job
from autobyte.units import format_seconds


class TimeSource(Protocol):
    """Where the time comes from: virtual in the simulator, `time.perf_counter` in training."""

    def __call__(self) -> float:
        """The time now (s)."""
        ...


@dataclass(frozen=True, slots=True)
class Span:
    """One thing that a rank does for some time, such as a layer's forward pass.

    Its phase is `forward`, `backward`, `update` or `accumulate` where the rank computes, `wait` where it waits for a
    layer's averages, and `step` for a step as a whole. Names may be empty, and layers -1, where there is none.
    """

    rank: int
    step: int
    phase: str
    layer: int
    name: str
    start_s: float
    stop_s: float


@dataclass(frozen=True, slots=True)
class BlockSpan:
    """The life of one block on one rank: complete gradients, start, credit back, result in place."""

    rank: int
    step: int
    block: int
    nbytes: int
    layers: tuple[int, ...]
    ready_s: float
    start_s: float
    sent_s: float
    done_s: float


@dataclass
class Trace:
    """Spans of a run, written as Chrome's trace JSON, which https://ui.perfetto.dev opens.

    Ranks are processes; step, compute, wait, queue and network are threads. A step says where its time went. A block
    stands in the queue row while it is at the head of the line, and in the network row while no earlier one is on its
    way; it ends there when it is in place. Arrows lead from a gradient to the blocks that carry it, and on to the
    forward pass that needed them.

    Args:
        spans: of computing.
        blocks: that travelled.
        names: of ranks, where "rank 3" does not say enough.
        waits: for averages.
        steps: as wholes; none if where time went is not asked.
        about: the job and how the trace was made, as plain JSON; the file's `otherData`.
    """

    spans: list[Span] = field(default_factory=list)
    blocks: list[BlockSpan] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    waits: list[Span] = field(default_factory=list)
    steps: list[Span] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)

    def to_chrome(self) -> dict[str, Any]:
        """The trace in Chrome's format; times in microseconds."""
        events = [*self._names(), *self._steps(), *self._compute(), *self._network(), *self._arrows()]
        data = {"displayTimeUnit": "ms", "traceEvents": events}
        return data | ({"otherData": self.about} if self.about else {})

    def save(self, path: Path | str) -> None:
        """Write the trace as JSON.

        Raises:
            FileError: it cannot be written.
        """
        with draft_of(Path(path), what="trace") as draft:
            draft.write_text(json.dumps(self.to_chrome(), separators=(",", ":")))

    def _names(self) -> Iterator[dict[str, Any]]:
        ranks = sorted({span.rank for span in (*self.spans, *self.steps)} | {block.rank for block in self.blocks})
        for rank in ranks:
            yield {
                "ph": "M",
                "name": "process_name",
                "pid": rank,
                "args": {"name": self.names.get(rank, f"rank {rank}")},
            }
            for lane, tid in _LANES.items():
                yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": lane}}

    def _steps(self) -> Iterator[dict[str, Any]]:
        rows = [_ByTime(spans) for spans in (self.spans, self.waits, [_travelling(block) for block in self.blocks])]
        for span in self.steps:
            whole = span.start_s, span.stop_s
            parts = breakdown(whole, *(row.near(span.rank, whole) for row in rows))
            args = {"step": span.step} | parts.to_json()
            yield _slice(span.rank, "step", f"step {span.step}", span.start_s, span.stop_s, args)

    def _compute(self) -> Iterator[dict[str, Any]]:
        for lane, spans in (("compute", self.spans), ("wait", self.waits)):
            for span in spans:
                name = f"{span.phase} {'for ' if lane == 'wait' and span.name else ''}{span.name}".rstrip()
                args = {"step": span.step, "layer": span.layer}
                yield _slice(span.rank, lane, name, span.start_s, span.stop_s, args)

    def _network(self) -> Iterator[dict[str, Any]]:
        for lane, block, start_s, stop_s in _rows(self.blocks):
            args = {
                "step": block.step,
                "bytes": block.nbytes,
                "waited_ms": (block.start_s - block.ready_s) * 1e3,
            }
            yield _slice(block.rank, lane, f"block {block.block}", start_s, stop_s, args)
        for rank, when, inflight in _in_flight(self.blocks):
            yield {"ph": "C", "name": "in flight", "pid": rank, "ts": when * 1e6, "args": {"bytes": inflight}}

    def _arrows(self) -> Iterator[dict[str, Any]]:
        backward = {(s.rank, s.step, s.layer): s for s in self.spans if s.phase == "backward"}
        forward = {(s.rank, s.step, s.layer): s for s in self.spans if s.phase == "forward"}
        for lane, block, start_s, stop_s in _rows(self.blocks):
            sources = [
                backward[key] for layer in block.layers if (key := (block.rank, block.step, layer)) in backward
            ]
            if lane != "network" or not sources:
                continue
            gradient = max(sources, key=lambda span: span.stop_s)  # the last one to complete the block
            arrow = {"cat": "gradient", "name": "gradient", "id": f"{block.rank}.{block.step}.{block.block}"}
            yield arrow | _point("s", block.rank, "compute", (gradient.start_s + gradient.stop_s) / 2)
            yield arrow | _point("t", block.rank, "network", (start_s + stop_s) / 2)
            update = forward.get((block.rank, block.step + 1, min(block.layers)))
            if update is not None:
                yield (arrow | _point("f", block.rank, "compute", (update.start_s + update.stop_s) / 2) | {"bp": "e"})


def about_job(job: Job, config: Config, *, what: str) -> dict[str, Any]:
    """What a trace says of its job, as plain JSON.

    Args:
        job: that was traced.
        config: in force.
        what: `simulated` or `measured`.
    """
    cluster = job.cluster
    return {
        "what": what,
        "model": job.model.name,
        "workers": cluster.workers,
        "architecture": "ps" if cluster.servers else "allreduce",
        "policy": config.policy,
        "config": config.label,
        "wire_dtype": job.wire_dtype,
        "accumulation": job.accumulation,
    }


@dataclass(frozen=True, eq=False)
class RuntimeStats:
    """What AutoByte's Table II asks of a running job, averaged over a window.

    Args:
        forward_s, backward_s: T, time per layer on every worker (s), shape [workers, layers].
        up_bytes_per_s, down_bytes_per_s: B_u and B_d, bytes over the time a link was busy, shape [workers]. Blocks
            keep a link busy beyond their bytes: the rates depend on the config in force.
        samples_per_s: V, every worker's own speed, shape [workers].
        servers: arc, how many parameter servers there are; 0 is all-reduce.
        wire_bytes: of gradient that travel in a step; 0: as many as the model has.
        sends: beyond Table II, of the large blocks that a worker's host sent in a step, and of those of them that
            started while at most half of the credit was in flight: how many, bytes, time for which they kept its link
            busy (s), and bytes × bytes in flight; shape [workers, 2, 4]. None where that was not measured.

    Raises:
        InputError: shapes that do not go together.
    """

    forward_s: Floats
    backward_s: Floats
    up_bytes_per_s: Floats
    down_bytes_per_s: Floats
    samples_per_s: Floats
    servers: int = 0
    wire_bytes: int = 0
    sends: Floats | None = None

    def __repr__(self) -> str:
        workers, layers = np.shape(self.forward_s)
        return f"RuntimeStats({workers} workers, {layers} layers)"

    def __post_init__(self) -> None:
        object.__setattr__(self, "servers", int(self.servers))
        object.__setattr__(self, "wire_bytes", int(self.wire_bytes))
        times = np.shape(self.forward_s)
        shapes = [np.shape(part) for part in (self.backward_s, self.up_bytes_per_s, self.down_bytes_per_s)]
        shapes.append(np.shape(self.samples_per_s))
        if len(times) != 2 or shapes != [times, times[:1], times[:1], times[:1]]:
            raise InputError(
                f"statistics are twice [workers, layers] and three times [workers], not {[times, *shapes]}"
            )
        if self.sends is not None and np.shape(self.sends) != (times[0], 2, 4):
            raise InputError(f"sends are [workers, 2, 4], not {list(np.shape(self.sends))}")


@dataclass(frozen=True)
class Measurement:
    """What a window showed.

    Args:
        config: the config in force.
        iteration: the window's first.
        step_s: time of each of its steps (s).
        warmup: how many of them the mean leaves out: they still carry the config before.
        stats: Table II, where measured.
        trace: spans, where recorded.

    Raises:
        InputError: no step is left after the warm-up, or a time that cannot be.
    """

    config: Config
    iteration: int
    step_s: tuple[float, ...]
    warmup: int = 0
    stats: RuntimeStats | None = None
    trace: Trace | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < len(self.step_s):
            raise InputError(f"a window of {len(self.step_s)} steps cannot leave out {self.warmup} as warm-up")
        for value in self.step_s:
            if not 0 <= value < math.inf:
                raise InputError(f"step_s must be finite times of at least 0, got {value}")

    def __repr__(self) -> str:
        mean = format_seconds(self.mean_s)
        return f"Measurement({self.config.label}, {len(self.step_s)} steps from {self.iteration} on, mean {mean})"

    @property
    def mean_s(self) -> float:
        """Mean step time without the warm-up (s)."""
        return float(np.mean(self.step_s[self.warmup :]))

    @property
    def error(self) -> float:
        """The standard error of the mean, as a part of it; 0 where one step cannot tell."""
        steps = self.step_s[self.warmup :]
        if len(steps) < 2 or not self.mean_s:
            return 0.0
        return float(np.std(steps, ddof=1)) / self.mean_s / math.sqrt(len(steps))


_LANES = {"step": 0, "compute": 1, "wait": 2, "queue": 3, "network": 4}


class _ByTime:
    """When a rank did something, to be found by time."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._of: dict[int, list[Interval]] = {}
        for span in spans:
            self._of.setdefault(span.rank, []).append((span.start_s, span.stop_s))
        for intervals in self._of.values():
            intervals.sort()
        self._longest = {rank: max(stop - start for start, stop in each) for rank, each in self._of.items()}

    def near(self, rank: int, whole: Interval) -> list[Interval]:
        """At least those that overlap an interval."""
        intervals = self._of.get(rank, [])
        first = bisect_left(intervals, (whole[0] - self._longest.get(rank, 0.0), -math.inf))
        return intervals[first : bisect_left(intervals, (whole[1], -math.inf))]


def _travelling(block: BlockSpan) -> Span:
    """A block from its start until it is in place."""
    return Span(block.rank, block.step, "block", -1, "", block.start_s, block.done_s)


def _rows(blocks: Iterable[BlockSpan]) -> Iterator[tuple[str, BlockSpan, float, float]]:
    """Blocks laid out so that no two slices of a row overlap: head of the line, then on the wire."""
    started: dict[int, float] = {}
    arrived: dict[int, float] = {}
    for block in sorted(blocks, key=lambda b: (b.rank, b.start_s, b.done_s)):
        head_s = max(block.ready_s, started.get(block.rank, block.ready_s))
        if head_s < block.start_s:
            yield "queue", block, head_s, block.start_s
        started[block.rank] = block.start_s
    for block in sorted(blocks, key=lambda b: (b.rank, b.done_s, b.start_s)):
        wire_s = max(block.start_s, arrived.get(block.rank, block.start_s))
        yield "network", block, wire_s, block.done_s
        arrived[block.rank] = block.done_s


def _in_flight(blocks: Iterable[BlockSpan]) -> Iterator[tuple[int, float, int]]:
    """Bytes that hold credit after each time at which they change, per rank."""
    changes = [(b.rank, b.start_s, b.nbytes) for b in blocks] + [(b.rank, b.sent_s, -b.nbytes) for b in blocks]
    total: dict[int, int] = {}
    for (rank, when), together in groupby(sorted(changes), key=lambda change: change[:2]):
        total[rank] = total.get(rank, 0) + sum(nbytes for _, _, nbytes in together)
        yield rank, when, total[rank]


def _slice(rank: int, lane: str, name: str, start_s: float, stop_s: float, args: dict[str, Any]) -> dict[str, Any]:
    times = {"ts": start_s * 1e6, "dur": (stop_s - start_s) * 1e6}
    return {"ph": "X", "name": name, "cat": lane, "pid": rank, "tid": _LANES[lane], "args": args} | times


def _point(kind: str, rank: int, lane: str, when_s: float) -> dict[str, Any]:
    return {"ph": kind, "pid": rank, "tid": _LANES[lane], "ts": when_s * 1e6}
