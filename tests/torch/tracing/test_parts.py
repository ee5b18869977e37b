"""What ranks have noted becomes one trace, with layers in the order of their calls."""

import json

from autobyte.torch.model.timeline import Activity
from autobyte.torch.tracing.parts import merged, part_of
from autobyte.trace import BlockSpan

ACTIVITIES = [
    Activity("forward", 1, 3, 100.0, 101.0),
    Activity("wait", 0, 3, 101.0, 102.0),
    Activity("forward", 0, 3, 102.0, 103.0),
    Activity("backward", 0, 3, 103.0, 104.0),
    Activity("step", -1, 3, 100.0, 105.0),
]
BLOCK = BlockSpan(0, 3, 2, 64, (0,), 103.5, 104.0, 104.5, 106.0)


def test_two_ranks_are_one_trace_that_begins_at_0() -> None:
    parts = [
        part_of(rank, ["late", "early"], ACTIVITIES, [(BLOCK, ["late"])], lambda at_s, by=by: at_s - by)
        for rank, by in ((0, 0.0), (5, 0.5))
    ]
    trace = merged(json.loads(json.dumps(parts)), {"model": "toy"})
    assert trace.about == {"model": "toy"}
    first, other = ([span for span in trace.spans if span.rank == rank] for rank in (0, 5))
    assert [(span.phase, span.name, span.layer) for span in first] == [
        ("forward", "early", 0),
        ("forward", "late", 1),
        ("backward", "late", 1),
    ]
    assert (first[0].start_s, other[0].start_s) == (0.5, 0.0)
    assert [(span.name, span.layer, span.start_s) for span in trace.waits] == [("late", 1, 1.5), ("late", 1, 1.0)]
    assert [(span.step, span.stop_s - span.start_s) for span in trace.steps] == [(3, 5.0)] * 2
    assert trace.blocks[1] == BlockSpan(5, 3, 2, 64, (1,), 3.5, 4.0, 4.5, 6.0)


def test_a_rank_that_noted_nothing_is_nothing() -> None:
    trace = merged([part_of(0, [], [], [], lambda at_s: at_s)], {})
    assert trace.to_chrome()["traceEvents"] == []
