"""Streams in host memory keep their order, hide what is not there yet, and hand errors on."""

import threading

import pytest
import torch

from autobyte.scheduler.engines.streams import HostStreams


def test_work_waits_for_its_events_and_keeps_its_order() -> None:
    gate, done = threading.Event(), []
    streams = HostStreams(late=lambda: gate.wait(10))
    marked = streams.mark()
    events = [streams.enqueue(lambda place=place: done.append(place), [marked]) for place in range(3)]
    assert not events[-1].is_over()
    assert done == []
    gate.set()
    streams.wait(events[-1])
    assert done == [0, 1, 2]
    assert events[0].is_over()
    assert events[0].elapsed_s(events[2]) >= 0
    streams.close()


def test_who_reads_before_its_event_reads_nan() -> None:
    gate, written = threading.Event(), torch.ones(3)
    streams = HostStreams(hide=True, late=lambda: gate.wait(10))
    event = streams.mark([written])
    assert written.isnan().all()
    gate.set()
    streams.wait(event)
    assert torch.equal(written, torch.ones(3))
    streams.close()


def test_an_error_reaches_who_waits_and_the_work_behind_it() -> None:
    streams, done = HostStreams(), []

    def fail() -> None:
        raise ConnectionError("rank 1 is gone")

    failed = streams.enqueue(fail, [])
    behind = streams.enqueue(lambda: done.append(1), [failed])
    for event in (failed, behind):
        with pytest.raises(ConnectionError, match="rank 1 is gone"):
            streams.wait(event)
    assert done == []
    streams.close()


def test_a_wait_ends_when_it_is_given_up_or_takes_too_long() -> None:
    gate = threading.Event()
    streams = HostStreams(late=lambda: gate.wait(10), timeout_s=0.05)
    event = streams.mark()
    with pytest.raises(TimeoutError, match=r"did not get there within 0.05 s"):
        streams.wait(event)
    streams.give_up(ConnectionError("a rank is gone"))
    with pytest.raises(ConnectionError, match="a rank is gone"):
        streams.wait(event)
    gate.set()
    streams.close()
