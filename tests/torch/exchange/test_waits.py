"""A wait counts for as long as computing stood still, whoever waits, and only once it is over."""

import threading
import time

from autobyte.scheduler.engines.streams import HostEvent, HostStreams
from autobyte.torch.exchange.waits import UNREAD, Waits
from autobyte.torch.model.marks import HostMarks, StreamMarks

LATER_S = 0.1  # by which a sleep may be late


def test_a_thread_that_waits_is_timed_by_the_clock() -> None:
    waits = Waits(HostMarks())
    for _ in range(2):
        entered = waits.enter()
        time.sleep(0.02)
        waits.leave(entered, [])
    assert waits.total_s == 0.0
    waits.read()
    assert 0.04 <= waits.total_s < 0.04 + 2 * LATER_S


def test_a_device_waits_from_where_it_gets_there_to_the_end_of_what_it_waits_for() -> None:
    """A kernel of 0.1 s and a block of 0.4 s begin together; then a block that is over before the kernel is."""
    streams = HostStreams()
    waits = Waits(StreamMarks(streams.mark))
    for block_s, kernel_s in ((0.4, 0.1), (0.1, 0.3)):
        blocks = [streams.enqueue(lambda seconds=seconds: time.sleep(seconds), []) for seconds in (0.0, block_s)]
        streams.compute(lambda seconds=kernel_s: time.sleep(seconds))
        waits.leave(waits.enter(), blocks)
        waits.read()  # nobody waits
        streams.wait(blocks[-1])
        streams.wait(streams.mark())
    waits.read()
    assert 0.3 - LATER_S <= waits.total_s < 0.3 + LATER_S
    streams.close()


def test_a_device_that_stands_still_keeps_nobody_waiting_and_what_is_unread_is_bounded() -> None:
    gate, streams = threading.Event(), HostStreams()
    waits = Waits(StreamMarks(streams.mark))
    streams.compute(lambda: (gate.wait(60), None)[1])
    for _ in range(1000):
        for _ in range(10):
            waits.leave(waits.enter(), [])
        waits.read()
    assert len(waits._unread) == UNREAD
    assert waits.total_s == 0.0
    gate.set()
    streams.close()


def test_a_wait_that_a_device_ends_late_counts_to_no_later_window() -> None:
    gate, streams = threading.Event(), HostStreams()
    waits = Waits(StreamMarks(streams.mark))
    waits.leave(waits.enter(), [streams.enqueue(lambda: (gate.wait(60), None)[1], [])])
    waits.forget()
    time.sleep(2 * LATER_S)
    gate.set()
    streams.wait(streams.enqueue(lambda: None, []))
    waits.leave(waits.enter(), [])
    waits.read()
    assert waits.total_s < LATER_S
    assert not waits._unread
    streams.close()


def test_what_fails_is_left_out() -> None:
    failed = HostEvent()
    failed.happen(ConnectionError("rank 1 is gone"))
    streams = HostStreams()
    waits = Waits(StreamMarks(streams.mark))
    waits.leave(waits.enter(), [failed])
    waits.read()
    waits.leave(waits.enter(), [])
    waits.read()
    assert 0.0 <= waits.total_s < LATER_S
    streams.close()
