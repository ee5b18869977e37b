"""Stories of events for the core: what may start, when, and in which order; then all stories at random."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import jobs, make_job, make_plan, segments

from autobyte.config import Config
from autobyte.job import Cluster, Job
from autobyte.scheduler.block import Tiling
from autobyte.scheduler.core import BlockState, Core, SchedulingError
from autobyte.scheduler.plan import CreditRule, Overlap, Plan
from autobyte.scheduler.policies import make_plan as policy_plan

SOFT, HARD = CreditRule.SOFT, CreditRule.HARD


class Story:
    """A core whose events and answers are block numbers."""

    def __init__(self, plan: Plan) -> None:
        self.core = Core(plan)

    def ready(self, tensor: int) -> list[int]:
        return [block.index for block in self.core.ready(tensor)]

    def sent(self, block: int) -> list[int]:
        return [b.index for b in self.core.sent(self.core.plan.tiling.blocks[block])]

    def done(self, block: int) -> list[int]:
        return [b.index for b in self.core.done(self.core.plan.tiling.blocks[block])]

    def over(self, *blocks: int) -> list[int]:
        """Sent, and at once done."""
        return [started for block in blocks for started in self.sent(block) + self.done(block)]

    def end_step(self) -> list[int]:
        return [block.index for block in self.core.end_step()]


def test_the_most_urgent_goes_next() -> None:
    story = Story(make_plan(4, 4, 4, 4, credit=4))
    assert story.ready(3) == [3]
    assert story.ready(1) == []
    assert story.ready(2) == []
    assert story.ready(0) == []
    assert [story.over(block) for block in (3, 0, 1, 2)] == [[0], [1], [2], []]


def test_who_comes_alone_need_not_wait_for_the_more_urgent() -> None:
    story = Story(make_plan(4, 4, credit=4))
    assert story.ready(1) == [1]
    assert story.over(1) == []
    assert story.ready(0) == [0]


def test_none_overtakes_the_head_of_the_line_though_it_would_fit() -> None:
    story = Story(make_plan(12, 4, 8, credit=12, rule=HARD))
    assert story.ready(2) == [2]
    assert story.ready(0) == []  # 8 + 12 > 12
    assert story.ready(1) == []  # 8 + 4 would fit
    assert story.sent(2) == [0]
    assert story.sent(0) == [1]


@pytest.mark.parametrize(("servers", "filling", "rest"), [(0, 4, [3, 5]), (2, 5, [4, 3])])
def test_before_the_norm_an_all_gather_fills_an_idle_link_alone(servers: int, filling: int, rest: list[int]) -> None:
    """Blocks 0 to 2 scatter, 3 to 5 gather; with servers, a push is sent before its pull may go."""
    plan = make_plan(4, 4, 4, credit=40)
    story = Story(replace(plan, job=replace(plan.job, cluster=Cluster(2, servers))).clipped())
    assert [story.ready(2), story.ready(1)] == [[2], [1]]
    assert story.over(2) == [], "credit is left, but a reduce-scatter is under way"
    assert story.over(1) == [filling]
    assert story.ready(0) == [0], "beside it, and before the other all-gather"
    assert story.over(filling) == []
    assert story.over(0) == rest


def test_soft_credit_overshoots_by_less_than_one_block() -> None:
    story = Story(make_plan(8, 8, 8, credit=10, rule=SOFT))
    assert (story.ready(2), story.core.in_flight_bytes) == ([2], 8)
    assert (story.ready(1), story.core.in_flight_bytes) == ([1], 16)
    assert (story.ready(0), story.core.in_flight_bytes) == ([], 16)
    assert (story.sent(2), story.core.in_flight_bytes) == ([0], 16)


def test_soft_credit_that_is_used_up_exactly_is_used_up() -> None:
    story = Story(make_plan(4, 4, 4, credit=8, rule=SOFT))
    assert [story.ready(tensor) for tensor in (2, 1, 0)] == [[2], [1], []]


def test_hard_credit_is_never_overdrawn() -> None:
    story = Story(make_plan(8, 8, 4, credit=12, rule=HARD))
    assert [story.ready(tensor) for tensor in (2, 1, 0)] == [[2], [1], []]  # 4 + 8 is all of it
    assert story.core.in_flight_bytes == 12
    assert story.sent(2) == []  # 8 + 8 > 12
    assert story.sent(1) == [0]


@pytest.mark.parametrize("rule", CreditRule)
def test_a_block_larger_than_the_credit_still_goes(rule: CreditRule) -> None:
    story = Story(make_plan(4, 400, credit=4, rule=rule))
    assert story.ready(1) == [1]
    assert story.ready(0) == []
    assert story.sent(1) == [0]


def test_under_a_hard_credit_it_waits_until_it_is_alone_under_a_soft_one_for_any_credit() -> None:
    for rule, expected in ((HARD, []), (SOFT, [0])):
        story = Story(make_plan(400, 4, credit=8, rule=rule))
        assert story.ready(1) == [1]
        assert story.ready(0) == expected


def test_without_a_window_everything_goes() -> None:
    story = Story(make_plan(4, 400, 4, piece=40, credit=None))
    assert story.ready(1) == list(range(1, 11))
    assert story.ready(2) == [11]
    assert story.ready(0) == [0]


def test_pieces_of_a_tensor_go_in_order() -> None:
    story = Story(make_plan(12, 8, piece=4, credit=8))
    assert story.ready(1) == [3, 4]
    assert story.ready(0) == []
    assert [story.sent(block) for block in (3, 4, 0)] == [[0], [1], [2]]


def test_credit_returns_when_sent_not_when_done() -> None:
    story = Story(make_plan(4, 4, 4, credit=4))
    assert [story.ready(tensor) for tensor in (2, 1, 0)] == [[2], [], []]
    assert story.sent(2) == [0]
    assert story.done(2) == []
    assert story.sent(0) == [1]


def test_a_fused_block_waits_for_all_of_its_tensors() -> None:
    job = make_job(2, 2, 2)
    story = Story(Plan(job, Tiling.of(job.gradients, segments([(0, 0, 2), (2, 0, 2), (1, 0, 1)], [(1, 1, 2)]))))
    assert story.ready(1) == [1]
    assert story.ready(0) == []
    assert story.core.state(0) is BlockState.WAITING
    assert story.ready(2) == [0]


def test_a_sequence_is_strict() -> None:
    story = Story(make_plan(4, 4, 4, sequence=[1, 2, 0]))
    assert story.ready(2) == []  # ready, but 1 is to go before
    assert story.ready(1) == [1, 2]
    assert story.ready(0) == [0]


def test_a_sequence_keeps_to_the_credit() -> None:
    story = Story(make_plan(4, 4, 4, credit=4, sequence=[2, 1, 0]))
    assert [story.ready(tensor) for tensor in (0, 1, 2)] == [[], [], [2]]
    assert [story.sent(2), story.sent(1)] == [[1], [0]]


def test_where_nothing_overlaps_all_wait_for_the_end_of_the_backward_pass() -> None:
    story = Story(make_plan(4, 4, 4, credit=8, overlap=Overlap.NONE))
    assert [story.ready(tensor) for tensor in (2, 1, 0)] == [[], [], []]
    assert story.core.state(2) is BlockState.READY
    assert story.end_step() == [0, 1]
    assert story.sent(1) == [2]


@pytest.mark.parametrize("overlap", [Overlap.BACKWARD, Overlap.STEP])
def test_where_something_overlaps_none_waits(overlap: Overlap) -> None:
    assert Story(make_plan(4, 4, overlap=overlap)).ready(1) == [1]


def test_gradients_that_never_come_count_as_ready_when_the_step_ends() -> None:
    story = Story(make_plan(4, 4, 4))
    assert story.ready(1) == [1]
    assert story.core.missing == [0, 2]
    assert story.end_step() == [0, 2]
    assert story.core.missing == []
    assert story.over(0, 1, 2) == []
    assert (story.core.step, story.core.missing) == (1, [0, 1, 2])


def test_the_life_of_a_block() -> None:
    story = Story(make_plan(4, 4, credit=4))
    seen = [story.core.state(0)]
    for event in (lambda: story.ready(1), lambda: story.ready(0), lambda: story.over(1), lambda: story.sent(0)):
        event()
        seen.append(story.core.state(0))
    assert seen == [BlockState.WAITING, BlockState.WAITING, BlockState.READY, BlockState.STARTED, BlockState.SENT]
    story.done(0)
    assert story.core.state(0) is BlockState.DONE
    story.end_step()
    assert story.core.state(0) is BlockState.WAITING  # of the next step


def test_a_step_is_over_when_it_is_closed_and_every_block_is_done() -> None:
    story = Story(make_plan(4, 4))
    boundary = [story.core.at_boundary]
    story.ready(0), story.ready(1), story.over(0, 1)
    boundary.append(story.core.at_boundary)  # all done, but not closed
    assert story.core.step == 0
    story.end_step()
    assert story.core.step == 1
    boundary.append(story.core.at_boundary)
    story.ready(0), story.end_step(), story.over(0)
    boundary.append(story.core.at_boundary)  # closed, but not all done
    assert story.core.step == 1
    story.over(1)
    assert story.core.step == 2
    boundary.append(story.core.at_boundary)
    assert boundary == [True, False, True, False, True]


def test_a_tensor_without_elements_is_waited_for_by_none() -> None:
    story = Story(make_plan(4, 0))
    assert story.ready(1) == []
    assert not story.core.at_boundary
    assert story.ready(0) == [0]
    assert story.end_step() == []
    story.over(0)
    assert story.core.at_boundary


@pytest.mark.parametrize("job", [make_job([]), make_job(0, [0, 0])])
def test_a_step_with_nothing_to_send_is_over_when_it_is_closed(job: Job) -> None:
    core = Core(policy_plan(job, Config(1, 1)))
    for step in (1, 2):
        assert core.end_step() == []
        assert (core.step, core.at_boundary) == (step, True)


def test_to_close_a_step_twice_closes_one() -> None:
    story = Story(make_plan(4, 4, credit=4))
    assert story.end_step() == [0]
    assert story.end_step() == []
    assert story.over(0) == [1]
    assert (story.over(1), story.core.step) == ([], 1)


def test_at_a_boundary_a_new_plan_holds_at_once() -> None:
    story, other = Story(make_plan(8, 8)), make_plan(8, 8, piece=4, credit=4)
    story.core.configure(other)
    assert story.core.plan is other
    assert story.ready(1) == [2]
    assert story.over(2) == [3]


def test_within_a_step_a_new_plan_waits_for_the_boundary_and_the_last_one_counts() -> None:
    one, two, three = (make_plan(8, 8, piece=piece) for piece in (8, 4, 1 << 20))
    story = Story(one)
    assert story.ready(1) == [1]
    story.core.configure(two)
    assert story.core.plan is one
    assert story.ready(0) == [0]
    story.end_step()
    story.over(0)
    story.core.configure(three)  # closed, and one block is still on its way
    assert story.core.plan is one
    assert story.over(1) == []
    assert (story.core.plan, story.core.step) == (three, 1)
    story.ready(0), story.ready(1), story.end_step(), story.over(0, 1)
    assert story.core.plan is three  # not two, later


def test_a_gradient_is_ready_once_in_a_step() -> None:
    story = Story(make_plan(4, 4))
    story.ready(1)
    with pytest.raises(SchedulingError, match=r"^tensor 'l1.0' became ready twice in one step$"):
        story.ready(1)
    story.end_step()
    with pytest.raises(SchedulingError, match=r"^tensor 'l0.0' became ready after its step was closed$"):
        story.ready(0)
    assert story.over(0, 1) == []
    assert story.ready(0) == [0]


def test_a_block_is_started_sent_and_done_in_this_order_and_once() -> None:
    story = Story(make_plan(4, 4, credit=4))
    wrong = [
        (story.sent, "block 0 cannot be sent: it is waiting"),
        (story.done, "block 0 cannot be done: it is waiting"),
    ]
    for event, message in wrong:
        with pytest.raises(SchedulingError, match=f"^{message}$"):
            event(0)
    story.ready(1), story.ready(0)
    with pytest.raises(SchedulingError, match=r"^block 0 cannot be sent: it is ready$"):
        story.sent(0)
    with pytest.raises(SchedulingError, match=r"^block 1 cannot be done: it is started$"):
        story.done(1)
    story.sent(1)
    with pytest.raises(SchedulingError, match=r"^block 1 cannot be sent: it is sent$"):
        story.sent(1)
    story.done(1)
    with pytest.raises(SchedulingError, match=r"^block 1 cannot be done: it is done$"):
        story.done(1)
    assert story.core.in_flight_bytes == 4  # what was refused has changed nothing


class Rule:
    """The rule once more, from what has happened alone: who would start now? Slow, and with no state but history."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        tiles = plan.tiling
        self.needs = [{segment.tensor for segment in block.segments} for block in tiles.blocks]
        by_urgency = sorted(range(len(tiles)), key=lambda i: (tiles.priority[i], i))
        self.line = by_urgency if plan.sequence is None else plan.sequence.tolist()
        self.ready: set[int] = set()
        self.started: set[int] = set()
        self.sent: set[int] = set()
        self.done: set[int] = set()
        self.closed = False

    def held(self) -> int:
        return sum(self.plan.tiling.blocks[i].nbytes for i in self.started - self.sent)

    def next(self) -> int | None:
        if self.plan.overlap is Overlap.NONE and not self.closed:
            return None
        waiting = [i for i in self.line if i not in self.started]
        able = [i for i in waiting if self.closed or self.needs[i] <= self.ready]
        if not able or (self.plan.sequence is not None and able[0] != waiting[0]):
            return None
        credit, held, size = self.plan.credit_bytes, self.held(), self.plan.tiling.blocks[able[0]].nbytes
        fits = held < (credit or 0) if self.plan.rule is SOFT else held + size <= (credit or 0)
        return able[0] if credit is None or held == 0 or fits else None

    def starts(self) -> list[int]:
        begun = []
        while (block := self.next()) is not None:
            self.started.add(block)
            begun.append(block)
        return begun

    def over(self) -> bool:
        return self.closed and len(self.done) == len(self.plan.tiling)


@st.composite
def plans(draw: st.DrawFn, job: Job) -> Plan:
    """Any policy's plan, under either rule, any overlap, any window; with other priorities or in a fixed order."""
    size = draw(st.sampled_from([4, 20, 60, 200]))
    policy, knobs = draw(st.sampled_from([("bytescheduler", {"fusion": 1}), ("p3", {}), ("fifo", {}), ("ddp", {})]))
    plan = policy_plan(job, Config(size, size, policy, knobs))
    n = len(plan.tiling)
    tiling = replace(
        plan.tiling, priority=np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), dtype=int)
    )
    credits = st.none() | st.sampled_from([1, size, 3 * size + 1, 10 * size])
    plan = replace(
        plan,
        tiling=draw(st.sampled_from([plan.tiling, tiling])),
        credit_bytes=draw(credits),
        rule=draw(st.sampled_from(CreditRule)),
        overlap=draw(st.sampled_from(Overlap)),
    )
    if draw(st.booleans()):
        return plan.with_sequence(draw(st.permutations(range(n))))
    return plan.with_sequence(None)


def check(core: Core, rule: Rule, started: Iterable[int]) -> None:
    """What must hold after every event."""
    plan, credit, held = core.plan, core.plan.credit_bytes, core.in_flight_bytes
    assert held == rule.held()
    if credit is not None and len(rule.started - rule.sent) > 1:
        largest = max(plan.tiling.blocks[i].nbytes for i in rule.started - rule.sent)
        assert held <= credit + (largest - 1 if plan.rule is SOFT else 0)
    for block in started:
        left = [i for i in range(len(plan.tiling)) if core.state(i) is BlockState.READY]
        assert not left or plan.sequence is not None or plan.tiling.rank[block] < min(plan.tiling.rank[left])
    for i in range(len(plan.tiling)):
        assert (core.state(i) in (BlockState.STARTED, BlockState.SENT, BlockState.DONE)) == (i in rule.started)


@settings(max_examples=300)
@given(st.data())
def test_in_every_story_the_core_does_what_the_rule_says(data: st.DataObject) -> None:
    job = data.draw(jobs(most=40))
    plan = data.draw(plans(job))
    core, rule, following, steps = Core(plan), Rule(plan), plan, 0
    while steps < 2:
        assert core.missing == [t for t in range(len(job.gradients)) if not rule.closed and t not in rule.ready]
        events = [("ready", tensor) for tensor in core.missing]
        events += [("sent", i) for i in rule.started - rule.sent] + [("done", i) for i in rule.sent - rule.done]
        events += [] if rule.closed else [("end", 0)]
        events += [("configure", 0)] if data.draw(st.integers(0, 9)) == 0 else []
        what, which = data.draw(st.sampled_from(events))
        if what == "configure":
            following = data.draw(plans(job))
            core.configure(following)
            if not rule.ready and not rule.closed:  # at a boundary
                rule = Rule(following)
            assert core.plan is rule.plan
            continue
        if what == "ready":
            rule.ready.add(which)
            answer = core.ready(which)
        elif what == "sent":
            rule.sent.add(which)
            answer = core.sent(core.plan.tiling.blocks[which])
        elif what == "done":
            rule.done.add(which)
            answer = core.done(core.plan.tiling.blocks[which])
        else:
            rule.closed = True
            answer = core.end_step()
        started = [block.index for block in answer]
        assert started == rule.starts()
        if rule.over():
            steps, rule = steps + 1, Rule(following)
        check(core, rule, started)
        assert core.step == steps
        assert core.at_boundary == (not rule.ready and not rule.closed)
        assert core.plan is rule.plan
