"""Where a training step is, as a story of events."""

from types import SimpleNamespace

import pytest

from autobyte.exchange.progress import Phase, Progress
from autobyte.scheduler.core import SchedulingError


def after(*events: str) -> Progress:
    progress = Progress()
    for event in events:
        getattr(progress, event)()
    return progress


def test_two_steps_one_taken_layer_by_layer_one_clipped() -> None:
    progress = after("begin")
    assert progress.open
    progress.close()
    assert (progress.steps, progress.open, progress.taken) == (1, False, False)
    progress.take()
    progress.end()
    assert (progress.phase, progress.taken, progress.averaged) == (Phase.OVER, True, False)
    for event in (progress.begin, progress.close, progress.average):
        event()
    assert progress.averaged
    progress.take()
    progress.end()
    assert (progress.phase, progress.steps, progress.taken) == (Phase.OVER, 2, True)


def test_a_step_that_is_given_up_is_not_taken() -> None:
    progress = after("begin", "close", "average", "outdate", "begin")
    assert (progress.open, progress.steps, progress.taken) == (True, 1, False)
    assert after("begin", "close", "begin").open  # its averages were not even waited for


def test_averages_are_history_once_another_gradient_is_complete() -> None:
    progress = after("begin", "close", "average")
    progress.outdate()
    assert (progress.averaged, progress.phase) == (False, Phase.OVER)
    for events in ((), ("begin",), ("begin", "close")):  # where there are none, there is nothing to forget
        progress = after(*events)
        phase = progress.phase
        progress.outdate()
        assert progress.phase is phase


def test_an_optimizer_may_evaluate_its_closure_more_than_once() -> None:
    progress = after(*2 * ("begin", "close", "average", "take", "outdate"))
    assert (progress.steps, progress.taken, progress.phase) == (2, True, Phase.OVER)


def test_whether_ranks_without_inputs_are_there_is_known_for_every_step() -> None:
    progress = Progress()
    progress.begin(joining=True)
    progress.close()
    assert progress.joining
    progress.begin()
    assert not progress.joining


def test_blocks_may_lag_behind() -> None:
    progress = Progress()
    assert progress.travelling == 0
    blocks = SimpleNamespace(step=0)
    progress.follow(blocks)
    for event in (progress.begin, progress.close, progress.take, progress.end):
        event()
    assert (progress.steps, progress.travelling) == (1, 0)
    blocks.step = 1
    assert progress.travelling == 1


@pytest.mark.parametrize(
    ("events", "event", "message"),
    [
        ((), "close", "step 0 is over: it cannot be closed"),
        ((), "average", "step 0 is over: it cannot be averaged"),
        ((), "take", "step 0 is over: it cannot be taken"),
        ((), "end", "step 0 is over: it cannot end"),
        (("begin",), "begin", "step 0 is open: it cannot begin again"),
        (("begin",), "average", "step 0 is open: it cannot be averaged"),
        (("begin",), "take", "step 0 is open: it cannot be taken"),
        (("begin",), "end", "step 0 is open: it cannot end"),
        (("begin", "close"), "close", "step 0 is closed: it cannot be closed"),
        (("begin", "close", "average"), "average", "step 0 is averaged: it cannot be averaged"),
        (("begin", "close", "take", "end"), "take", "step 0 is over: it cannot be taken"),
        (("begin", "close", "take", "end", "begin"), "take", "step 1 is open: it cannot be taken"),
    ],
)
def test_an_event_that_cannot_follow_is_an_error(events: tuple[str, ...], event: str, message: str) -> None:
    progress = after(*events)
    with pytest.raises(SchedulingError, match=f"^{message}$"):
        getattr(progress, event)()
