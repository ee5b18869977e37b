"""Jobs and plans that are small enough to work out by hand, and random ones for properties."""

from collections.abc import Iterable

import numpy as np
from hypothesis import strategies as st
from worlds import clusters

from autobyte.job import ITEMSIZE, Cluster, Job, Layer, Model, Tensor
from autobyte.scheduler.block import Collective, Segment, Tiling
from autobyte.scheduler.plan import CreditRule, Overlap, Plan
from autobyte.scheduler.tiling import cut

BARE = Cluster(2, latency_s=0.0, overhead_s=(0.0, 0.0))


def make_model(*layers: int | Iterable[int], forward_s: float = 1.0, backward_s: float = 2.0) -> Model:
    """One layer for each number, of a tensor of that many fp32 elements; or of several tensors."""
    rows = []
    for index, layer in enumerate(layers):
        sizes = [layer] if isinstance(layer, int) else list(layer)
        rows.append((f"l{index}", [(f"l{index}.{i}", n) for i, n in enumerate(sizes)], forward_s, backward_s))
    return Model.build("toy", rows, batch_size=1)


def make_job(*layers: int | Iterable[int], cluster: Cluster = BARE, wire_dtype: str | None = None) -> Job:
    """A job of such a model."""
    return Job(make_model(*layers), cluster, wire_dtype=wire_dtype)


def typed_job(*tensors: tuple[int, str]) -> Job:
    """One layer for each (numel, dtype)."""
    layers = tuple(
        Layer(f"l{i}", (Tensor(f"w{i}", numel, dtype, i),), 1.0, 2.0) for i, (numel, dtype) in enumerate(tensors)
    )
    return Job(Model("typed", layers, batch_size=1), BARE)


def make_plan(
    *sizes: int,
    piece: int = 1 << 40,
    credit: int | None = None,
    rule: CreditRule = CreditRule.SOFT,
    overlap: Overlap = Overlap.STEP,
    sequence: Iterable[int] | None = None,
) -> Plan:
    """Tensors cut into pieces, front first; sizes, piece and credit in bytes, multiples of 4."""
    job = make_job(*(size // 4 for size in sizes))
    plan = Plan(job, cut(job.gradients, piece), credit, rule, overlap)
    return plan if sequence is None else plan.with_sequence(list(sequence))


def spelled(tiling: Tiling) -> list[list[tuple[int, int, int]]]:
    """Every block as its segments (tensor, start, stop)."""
    return [[(s.tensor, s.start, s.stop) for s in block.segments] for block in tiling.blocks]


def covers_exactly(tiling: Tiling) -> bool:
    """Count, element by element, how often each is carried: once, all-gathers aside."""
    counts = [np.zeros(numel, dtype=np.int8) for numel in tiling.gradients.numel]
    for block in (block for block in tiling.blocks if block.op is not Collective.ALL_GATHER):
        for segment in block.segments:
            assert 0 <= segment.start <= segment.stop <= len(counts[segment.tensor])
            counts[segment.tensor][segment.start : segment.stop] += 1
    return all(bool((count == 1).all()) for count in counts)


def segments(*rows: Iterable[tuple[int, int, int]]) -> list[list[Segment]]:
    """Blocks, written as rows of (tensor, start, stop)."""
    return [[Segment(*segment) for segment in row] for row in rows]


@st.composite
def models(draw: st.DrawFn, *, most: int = 60) -> Model:
    """Up to 6 layers of up to 3 small tensors, of all dtypes; some without tensors, some without elements."""
    tensor = st.tuples(st.integers(0, most), st.sampled_from(sorted(ITEMSIZE)))
    times = st.sampled_from([0.0, 0.001, 0.25, 1.0])
    rows = draw(st.lists(st.tuples(st.lists(tensor, max_size=3), times, times), min_size=1, max_size=6))
    layers = tuple(
        Layer(f"l{i}", tuple(Tensor(f"l{i}.{j}", numel, dtype, i) for j, (numel, dtype) in enumerate(row)), *seconds)
        for i, (row, *seconds) in enumerate(rows)
    )
    return Model("random", layers, batch_size=4)


@st.composite
def jobs(draw: st.DrawFn, *, most: int = 60) -> Job:
    """A random model, of tensors small enough to be counted through, on a random ring or on random servers."""
    wire_dtype = draw(st.sampled_from([None, None, "float16"]))
    return Job(draw(models(most=most)), draw(clusters()), draw(st.sampled_from([1, 3])), wire_dtype)
