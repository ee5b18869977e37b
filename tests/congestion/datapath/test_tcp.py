"""The kernel's TCP on this host: its counts are read, and it keeps to the pace that it is given."""

import socket
from collections.abc import Iterator

import pytest
from tcp_ends import connected, drain, sent_in

from autobyte.congestion.datapath.tcp import TcpCounts, TcpPacing, set_pace
from autobyte.congestion.paths import Interval
from autobyte.errors import AutoByteError


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends; what the first one sends is read until it closes."""
    with connected() as ends:
        yield ends


def test_the_kernel_keeps_to_a_pace_without_the_discipline_fq(connection) -> None:
    sender, receiver = connection
    reader = drain(receiver)
    pace = 20e6
    set_pace(sender, pace)
    sent_in(sender, 0.1)  # what the start lets through at once
    assert 0.8 * pace < sent_in(sender, 0.5) / 0.5 < 1.1 * pace
    counts = TcpCounts.of(sender)
    assert counts.sent + 1 >= counts.delivered > 0  # the SYN is delivered, too
    assert 0 < counts.least_round_trip_s <= counts.round_trip_s < 1
    set_pace(sender, float("inf"))
    assert sent_in(sender, 0.2) / 0.2 > 2 * pace
    sender.close()
    reader.join(5.0)


class Doubling:
    """Doubles its pace with every interval; keeps what it is told."""

    def __init__(self) -> None:
        self.packets_per_s, self.window, self.interval_s = 20.0, float("inf"), 0.05
        self.told: list[Interval] = []

    def on_ack(self, now_s: float, round_trip_s: float) -> None:
        raise AssertionError("the kernel tells of no packet")

    def on_loss(self, now_s: float, sent_s: float) -> None:
        raise AssertionError("the kernel tells of no packet")

    def on_interval(self, interval: Interval) -> None:
        self.told.append(interval)
        self.packets_per_s = min(2 * self.packets_per_s, 1000.0)


def test_a_control_paces_a_connection(connection) -> None:
    sender, receiver = connection
    reader = drain(receiver)
    control = Doubling()
    pacing = TcpPacing(sender, control, now_s=0.0)
    nbytes = sent_in(sender, 0.6, pacing.step)
    segment = TcpCounts.of(sender).segment_bytes  # it grows at the start
    assert pacing.bytes_per_s == 1000.0 * segment
    assert nbytes < 0.65 * 1000 * segment
    assert len(control.told) > 5
    assert all(one.end_s == two.start_s for one, two in zip(control.told, control.told[1:], strict=False))
    assert any(one.sent > 0 for one in control.told)
    sender.close()
    reader.join(5.0)


def test_an_idle_connection_says_nothing_about_its_pace(connection) -> None:
    control = Doubling()
    pacing = TcpPacing(connection[0], control, now_s=0.0)
    assert pacing.step(0.01) == pytest.approx(0.05)
    pacing.step(0.06)
    (only,) = control.told
    assert (only.sent, only.acked, only.lost) == (0, 0, 0)


def test_counts_that_wrap_are_told_as_they_are(connection, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [
        TcpCounts(1448, 0.02, 0.02, again=2**32 - 1, sent=2**32 - 8, busy_s=0.0, delivered=2**32 - 9, acked_bytes=0),
        TcpCounts(1448, 0.02, 0.02, again=2**32 - 1, sent=2**32 - 4, busy_s=0.1, delivered=2**32 - 5, acked_bytes=0),
        TcpCounts(1448, 0.02, 0.02, again=1, sent=3, busy_s=0.2, delivered=1, acked_bytes=0),
    ]
    monkeypatch.setattr(TcpCounts, "of", lambda sock: counts.pop(0))
    control = Doubling()
    pacing = TcpPacing(connection[0], control, now_s=0.0)
    pacing.step(0.1)
    pacing.step(0.2)
    told = control.told[-1]
    assert (told.sent, told.acked, told.lost) == (7, 6, 2)


def test_a_closed_connection_is_one_line(connection) -> None:
    connection[0].close()
    with pytest.raises(AutoByteError, match="the kernel says nothing about this connection"):
        TcpCounts.of(connection[0])
