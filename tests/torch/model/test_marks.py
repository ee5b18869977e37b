"""Moments by the host's clock are there at once; events tell nothing before they have happened."""

import threading
import time

import pytest
import torch

from autobyte.scheduler.engines.streams import HostEvent, HostStreams
from autobyte.torch.model.marks import HostMarks, StreamMarks, marks_of


def test_a_real_clock_is_read() -> None:
    marks = HostMarks()
    before = time.perf_counter()
    assert before <= marks.now() <= time.perf_counter()
    assert marks.seconds([1.0, 3.0]) == [1.0, 3.0]


def test_events_are_told_together_or_not_at_all() -> None:
    gate, streams = threading.Event(), HostStreams()
    marks = marks_of(streams, torch.device("cpu"))
    first = marks.now()
    streams.compute(lambda: time.sleep(0.05))
    second = marks.now()
    streams.compute(lambda: (gate.wait(60), None)[1])
    third = marks.now()
    streams.wait(second)
    assert marks.seconds([first, second, third]) is None
    zero, later = marks.seconds([first, second]) or ()
    assert zero == 0.0
    assert 0.05 <= later < 0.15
    gate.set()
    streams.close()
    assert marks_of(None, torch.device("cpu")).free and not marks.free


def test_the_failure_of_one_is_raised() -> None:
    event = HostEvent()
    event.happen(ConnectionError("rank 1 is gone"))
    with pytest.raises(ConnectionError, match="rank 1 is gone"):
        StreamMarks(lambda: event).seconds([event])
