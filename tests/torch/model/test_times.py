"""Marks of a step become layer times; what waits for the network is left out."""

import threading
import time

import pytest

from autobyte.job import Floats
from autobyte.scheduler.engines.streams import Event, HostStreams
from autobyte.torch.model.marks import HostMarks, StreamMarks
from autobyte.torch.model.times import UNREAD, LayerTimes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock says (s), in its only element."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(HostMarks, "now", staticmethod(lambda: now[0]))
    return now


def forward(times: LayerTimes, clock: list[float], waits_s: float) -> None:
    """Two layers that take 1 and 2 s; each waits in its pre-hook before."""
    times.begin()
    for layer, seconds in enumerate((1.0, 2.0)):
        counts = times.enter(layer)
        clock[0] += waits_s
        if counts and waits_s:
            times.leave(layer)
        clock[0] += seconds
    times.forward_over()


def backward(times: LayerTimes, clock: list[float]) -> None:
    """The last layer's gradients after 3 s, the first one's after 4 s more."""
    for layer, seconds in ((1, 3.0), (0, 4.0)):
        clock[0] += seconds
        times.gradients(range(3))(layer)


def seconds_of(times: LayerTimes) -> tuple[Floats, Floats] | None:
    """Forward and backward times (s) of the oldest pass not told yet, shapes [layers]; None if none is over."""
    sample = times.sample()
    if sample is None:
        return None
    forward_s, backward_s = times.read([sample])
    return forward_s[0], backward_s[0]


def test_waits_in_hooks_count_to_no_layer(clock: list[float]) -> None:
    times = LayerTimes(2)
    forward(times, clock, waits_s=5.0)
    backward(times, clock)
    seconds = seconds_of(times)
    assert seconds is not None
    assert [part.tolist() for part in seconds] == [[1.0, 2.0], [4.0, 3.0]]


def test_a_second_call_counts_to_the_layer_that_was_called_before(clock: list[float]) -> None:
    times = LayerTimes(2)
    times.begin()
    for layer in (0, 1, 0):
        times.enter(layer)
        clock[0] += 1.0
    times.forward_over()
    backward(times, clock)
    seconds = seconds_of(times)
    assert seconds is not None
    assert seconds[0].tolist() == [1.0, 2.0]


def test_a_layer_that_is_not_called_takes_no_time(clock: list[float]) -> None:
    times = LayerTimes(3)
    forward(times, clock, waits_s=0.0)
    backward(times, clock)
    seconds = seconds_of(times)
    assert seconds is not None
    assert [part[2] for part in seconds] == [0.0, 0.0]


def test_half_a_pass_has_no_times(clock: list[float]) -> None:
    times = LayerTimes(2)
    assert seconds_of(times) is None
    forward(times, clock, waits_s=0.0)
    assert seconds_of(times) is None  # no gradient yet
    times.begin()
    backward(times, clock)
    assert seconds_of(times) is None  # the model has not returned


class Device:
    """A device whose kernels take their time by the clock, once it may begin."""

    def __init__(self, clock: list[float]) -> None:
        self.streams = HostStreams()
        self._clock = clock
        self._may_begin = threading.Event()
        self.streams.compute(lambda: (self._may_begin.wait(60), None)[1])

    def take(self, seconds: float) -> None:
        def kernel() -> None:
            self._clock[0] += seconds

        self.streams.compute(kernel)

    def drain(self) -> None:
        self._may_begin.set()
        self.streams.wait(self.streams.mark())
        self.streams.close()


def give(device: Device, *watching: LayerTimes, waits_s: float = 0.0) -> None:
    """Give a device a pass of two layers, and wait for nothing."""
    for times in watching:
        times.begin()
    for layer, seconds in enumerate((1.0, 2.0)):
        counts = [times for times in watching if times.enter(layer)]
        if waits_s:
            device.take(waits_s)
            for times in counts:
                times.leave(layer)
        device.take(seconds)
    for times in watching:
        times.forward_over()
    for layer, seconds in ((1, 3.0), (0, 4.0)):
        for _ in "wb":  # a weight and a bias
            device.take(seconds / 2)
            for times in watching:
                times.gradients(range(3))(layer)


@pytest.mark.parametrize("waits_s", [0.0, 5.0])
def test_a_device_tells_how_long_its_layers_took_and_the_hosts_clock_does_not(
    clock: list[float], waits_s: float
) -> None:
    device = Device(clock)
    on_device, on_host = LayerTimes(2, StreamMarks(device.streams.mark)), LayerTimes(2)
    give(device, on_device, on_host, waits_s=waits_s)
    assert seconds_of(on_device) is None  # the device has not begun, and nobody waits for it
    by_host = seconds_of(on_host)
    device.drain()
    by_device = seconds_of(on_device)
    assert by_device is not None and by_host is not None
    assert [part.tolist() for part in by_device] == [[1.0, 2.0], [4.0, 3.0]]
    assert [part.tolist() for part in by_host] == [[0.0, 0.0], [0.0, 0.0]]


def test_nobody_waits_for_a_device_that_stands_still_and_no_marks_pile_up() -> None:
    gate, streams = threading.Event(), HostStreams()
    times = LayerTimes(2, StreamMarks(streams.mark))
    streams.compute(lambda: (gate.wait(60), None)[1])
    for _ in range(1000):
        times.begin()
        times.enter(0)
        times.forward_over()
        times.gradients(range(3))(0)
        assert seconds_of(times) is None
    assert len(times._unread) == UNREAD
    gate.set()
    streams.wait(streams.mark())
    assert seconds_of(times) is not None
    streams.close()


def test_a_kernel_that_fails_is_told_to_nobody_here() -> None:
    streams = HostStreams()
    times = LayerTimes(1, StreamMarks(streams.mark))
    times.begin()
    times.enter(0)
    streams.compute(lambda: (1 / 0, None)[1])
    times.forward_over()
    times.gradients(range(3))(0)
    streams.wait(streams.mark())
    assert seconds_of(times) is not None  # it was no event that failed
    streams.close()


def test_marks_that_cost_something_are_taken_where_they_are_asked_for(clock: list[float]) -> None:
    recorded, device = [], Device(clock)

    def mark() -> Event:
        recorded.append(device.streams.mark())
        return recorded[-1]

    times = LayerTimes(2, StreamMarks(mark))
    for exact, marks in ((True, 2 + 1 + 4), (True, 2 + 1 + 2), (False, 0), (True, 2 + 1 + 2)):
        recorded.clear()
        times.be_exact(exact)
        give(device, times)
        assert len(recorded) == marks  # one a layer and pass, once the gradients of a layer are counted
    device.drain()
