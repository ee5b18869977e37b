"""Clocks that are apart by a known time, and messages that are late at random."""

import time

import numpy as np
import pytest
from ranks import on_ranks

from autobyte.exchange.control import Control
from autobyte.torch.tracing.clocks import ROUNDS, ClockOffset, as_first_ranks, measure, offsets

AHEAD_S = np.array([0.0, 1000.0, -3.0])


def test_the_offset_is_within_its_error() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        sent_s = np.sort(random.random((ROUNDS, 1)) * 10, axis=0) + random.random((ROUNDS, 3)) * 1e-3
        came_s = sent_s.max(axis=1, keepdims=True) + 1e-4 + random.exponential(1e-3, (ROUNDS, 3))
        measured = offsets(sent_s + AHEAD_S, came_s + AHEAD_S)
        for offset, truth in zip(measured, AHEAD_S, strict=True):
            assert abs(offset.ahead_s - truth) <= offset.error_s < 3e-3
    assert measured[0].error_s == 0.0


def test_a_late_message_makes_no_error_if_one_was_fast() -> None:
    sent_s = np.array([[0.0, 0.0], [1.0, 1.0]])
    came_s = sent_s + np.array([[1e-4, 1e-4], [0.5, 0.9]])
    apart = np.array([0, 7])
    assert offsets(sent_s + apart, came_s + apart)[1] == ClockOffset(8.9, pytest.approx(7), pytest.approx(1e-4))


def test_clocks_drift_evenly_between_two_measurements() -> None:
    measured = [ClockOffset(10.0, 1.0, 0.0), ClockOffset(20.0, 2.0, 0.0)]
    assert as_first_ranks(np.array([5.0, 10.0, 15.0, 20.0]), measured).tolist() == [4.0, 9.0, 13.5, 18.0]
    assert as_first_ranks(np.array([5.0]), []).tolist() == [5.0]


def test_ranks_of_one_host_have_one_clock_and_others_are_told_apart() -> None:
    for row in on_ranks(_measured, 3):
        assert [round(each.ahead_s) for each in row] == [0, 100, 200]
        assert all(abs(each.ahead_s - 100 * rank) <= each.error_s for rank, each in enumerate(row))


def _measured(rank: int) -> list[ClockOffset]:
    from datetime import timedelta  # noqa: PLC0415

    control = Control("clocks", rank=rank, ranks=[0, 1, 2], timeout=timedelta(seconds=30))
    measured = measure(control, clock=lambda: time.perf_counter() + 100 * rank)
    control.close(idle=True)
    return measured
