"""What leaves and what became of it, in virtual time: nothing is lost for good, and nothing counts twice."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autobyte.congestion.datapath.incoming import AHEAD, Incoming
from autobyte.congestion.datapath.outgoing import GRAIN_S, JITTER_S, SILENCE_S, Outgoing, coarse
from autobyte.congestion.datapath.wire import ACK, HEAD, acknowledged, acknowledgement, headed
from autobyte.congestion.link import SteadyPace
from autobyte.congestion.paths import Interval


def sender(chunks: int, *, packets_per_s: float = 1000.0, window: float = math.inf) -> Outgoing:
    return Outgoing(SteadyPace(packets_per_s, window), lambda chunk, now_s: chunk < chunks)


def test_packets_leave_at_the_pace_and_within_the_window() -> None:
    out = sender(10, window=3)
    assert out.depart(0.0) == (0, 0)
    assert out.due_s(0.0) == pytest.approx(0.001)
    for now_s in (0.001, 0.002):
        out.depart(now_s)
    assert out.due_s(0.002) == math.inf
    assert out.arrived(0.05, 0) == pytest.approx(0.05)
    assert out.due_s(0.05) <= 0.05


def test_a_sender_that_was_late_does_not_make_up_for_all_of_it() -> None:
    out, left = sender(10_000, packets_per_s=10_000), 0
    out.depart(0.0)
    while out.due_s(1.0) <= 1.0:
        out.depart(1.0)
        left += 1
    assert left == 51  # 5 ms of the pace


def test_what_three_later_packets_overtake_is_lost_and_leaves_again() -> None:
    out = sender(5)
    for _ in range(5):
        out.depart(0.0)
    for number in (1, 2):
        out.arrived(0.05, number)
    assert out.tally.lost == 0
    out.arrived(0.05, 3)
    assert (out.tally.lost, list(out.again)) == (1, [0])
    assert out.depart(0.06) == (5, 0)
    assert math.isnan(out.arrived(0.07, 0))  # it was late, not lost; the new packet counts
    for number in (4, 5):
        out.arrived(0.1, number)
    out.due_s(0.1)
    assert out.done


def test_all_is_lost_after_a_silence() -> None:
    out = sender(2)
    out.depart(3.0)
    out.depart(3.0)
    assert out.silence_s() == pytest.approx(3.0 + 3 * SILENCE_S)
    out.despair(4.0)
    assert (out.tally.total_lost, list(out.again), out.under_way) == (2, [0, 1], {})


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 60),
    st.floats(0, 0.4),
    st.floats(0, 0.4),
    st.sampled_from([2.0, 8.0, math.inf]),
    st.integers(0, 99),
)
def test_every_chunk_arrives_once_whatever_is_lost(chunks, loss, ack_loss, window, seed) -> None:
    got: list[int] = []
    rng, out = random.Random(seed), sender(chunks, window=window)
    incoming, now_s, on_the_way = Incoming(lambda chunk, body: got.append(chunk)), 0.0, []
    while not out.done:
        for due_s, number in [one for one in on_the_way if one[0] <= now_s]:
            on_the_way.remove((due_s, number))
            out.arrived(now_s, number)
        if now_s >= out.silence_s():
            out.despair(now_s)
        if out.due_s(now_s) <= now_s:
            number, chunk = out.depart(now_s)
            if rng.random() >= loss:
                assert incoming.take(chunk, memoryview(b"abc"))
                if rng.random() >= ack_loss:
                    on_the_way.append((now_s + 0.05, number))
        else:
            now_s += 0.005
        assert out.number == out.tally.total_acked + out.tally.total_lost + len(out.under_way)
        assert now_s < 1000
    assert sorted(got) == list(range(chunks))
    assert incoming.nbytes == 3 * chunks


def test_a_chunk_far_ahead_is_not_taken() -> None:
    incoming = Incoming(lambda chunk, body: None)
    assert not incoming.take(AHEAD, memoryview(b"x"))
    assert incoming.chunks == 0


def test_acknowledgements_are_read_as_they_were_written() -> None:
    message = acknowledgement(7, [1, 5, 1 << 40])
    assert headed(message) == (ACK, 7)
    assert acknowledged(message) == (1, 5, 1 << 40)
    assert acknowledged(message[:-1]) == acknowledged(message[: HEAD.size]) == ()
    assert headed(b"MC") == (b"", 0)


def test_round_trips_below_the_grain_of_this_machine_count_alike() -> None:
    short = Interval(0.0, 0.01, 9, 9, 0, 0.0007, 0.3, 0.0001)
    assert coarse(short) == Interval(0.0, 0.01, 9, 9, 0, GRAIN_S, 0.0, GRAIN_S)
    long = Interval(0.0, 0.1, 9, 9, 0, 0.07, 0.3, 0.05)
    assert coarse(long) == long
    assert coarse(Interval(0.0, 0.01, 9, 0, 0, math.nan, 0.0, math.inf)).least_round_trip_s == math.inf


def test_of_a_mean_round_trip_a_millisecond_is_the_machines() -> None:
    for late_s, told_s in ((0.0004, 0.05), (0.006, 0.05 + 0.003 - JITTER_S)):
        out = sender(2)
        out.depart(0.0)
        out.depart(0.001)
        out.arrived(0.05, 0)
        out.arrived(0.051 + late_s, 1)
        over = out.next_interval(0.06)
        assert over.round_trip_s == pytest.approx(told_s)
        assert over.least_round_trip_s == pytest.approx(0.05)
