"""Marks of a step become layer times; what waits for the network is left out."""

import time

import pytest

from autobyte.torch.model import times as module
from autobyte.torch.model.times import LayerTimes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock says (s), in its only element."""
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def forward(times: LayerTimes, clock: list[float], waits_s: float) -> None:
    """Two layers that take 1 and 2 s; each waits in its pre-hook before."""
    times.begin()
    for layer, seconds in enumerate((1.0, 2.0)):
        entered_s = times.now()
        clock[0] += waits_s
        times.called(layer, entered_s)
        clock[0] += seconds
    times.forward_over()


def backward(times: LayerTimes, clock: list[float]) -> None:
    """The last layer's gradients after 3 s, the first one's after 4 s more."""
    for layer, seconds in ((1, 3.0), (0, 4.0)):
        clock[0] += seconds
        times.gradient(layer)


def test_waits_in_hooks_count_to_no_layer(clock: list[float]) -> None:
    times = LayerTimes(2)
    forward(times, clock, waits_s=5.0)
    backward(times, clock)
    seconds = times.seconds()
    assert seconds is not None
    assert [part.tolist() for part in seconds] == [[1.0, 2.0], [4.0, 3.0]]


def test_a_second_call_counts_to_the_layer_that_was_called_before(clock: list[float]) -> None:
    times = LayerTimes(2)
    times.begin()
    for layer in (0, 1, 0):
        times.called(layer, times.now())
        clock[0] += 1.0
    times.forward_over()
    backward(times, clock)
    seconds = times.seconds()
    assert seconds is not None
    assert seconds[0].tolist() == [1.0, 2.0]


def test_a_layer_that_is_not_called_takes_no_time(clock: list[float]) -> None:
    times = LayerTimes(3)
    forward(times, clock, waits_s=0.0)
    backward(times, clock)
    seconds = times.seconds()
    assert seconds is not None
    assert [part[2] for part in seconds] == [0.0, 0.0]


def test_half_a_pass_has_no_times(clock: list[float]) -> None:
    times = LayerTimes(2)
    assert times.seconds() is None
    forward(times, clock, waits_s=0.0)
    assert times.seconds() is None  # no gradient yet
    times.begin()
    backward(times, clock)
    assert times.seconds() is None  # the model has not returned


def test_a_real_clock_is_read() -> None:
    times = LayerTimes(1)
    before = time.perf_counter()
    assert before <= times.now() <= time.perf_counter()
