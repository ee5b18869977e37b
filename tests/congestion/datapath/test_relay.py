"""The relay is the link that is simulated: it drops, delays and serves alike, and each packet is counted."""

import socket
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autobyte.congestion.datapath.relay import Hop, Pipe, relaying
from autobyte.congestion.link import PacketLink, SteadyPace
from autobyte.congestion.paths import Bottleneck, RateProfile, Route
from autobyte.errors import InputError

PACKET = bytes(1472)


@dataclass
class Told(SteadyPace):
    """Keeps the round trips that it is told."""

    round_trips_s: list[float] = field(default_factory=list)

    def on_ack(self, now_s: float, round_trip_s: float) -> None:
        self.round_trips_s.append(round_trip_s)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 30), st.integers(3, 30))
def test_it_drops_and_delays_as_the_simulated_link_does(queue: int, tenths: int) -> None:
    rate, seconds = 1000.0, 0.5
    pace = 0.10137 * tenths * rate  # no packet comes just when another leaves
    control = Told(pace)
    link = PacketLink(Bottleneck(RateProfile.steady(rate), queue), [(Route(0.05, stop_s=seconds), control)])
    pipe, delays_s, sent = Pipe(Hop(1500 * rate, 0.025, queue)), list[float](), 0
    while (now_s := sent / pace) < seconds:
        pipe.enter(now_s, PACKET)
        if len(pipe.away) > len(delays_s):  # it was not dropped
            delays_s.append(pipe.away[-1][0] - now_s)
        sent += 1
    link.run(10.0)
    (flow,) = link.flows
    assert (pipe.carried.came, pipe.carried.dropped) == (flow.number, flow.total_lost)
    assert [delay_s + 0.025 for delay_s in delays_s] == pytest.approx(control.round_trips_s, abs=1e-9)


def test_random_losses_are_as_many_as_asked_for_and_the_same_for_a_seed() -> None:
    pipes = [Pipe(Hop(1e9, 0.0, 10, loss=0.1, seed=seed)) for seed in (1, 1, 2)]
    for pipe in pipes:
        for number in range(5000):
            pipe.enter(float(number), PACKET)
    lost = [pipe.carried.lost for pipe in pipes]
    assert lost[0] == lost[1] != lost[2]
    assert lost[0] == pytest.approx(500, rel=0.2)


def test_a_process_carries_packets_both_ways_and_counts_them() -> None:
    ends = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    (near, this), (far, other) = ends
    far.settimeout(5.0)
    near.settimeout(5.0)
    with relaying(this.fileno(), other.fileno(), Hop(1.5e6, 0.02, 2)) as carried:
        begun_s = time.monotonic()
        for number in range(5):
            near.send(bytes([number]) * 1472)
        came = [far.recv(2000)[0] for _ in range(3)]
        took_s = time.monotonic() - begun_s
        far.send(b"back")
        assert near.recv(2000) == b"back"
    assert came == [0, 1, 2]  # one in service, two that wait; the others found the queue full
    assert took_s >= 0.023 - 1e-3
    assert (carried.came, carried.left, carried.dropped, carried.lost, carried.back) == (5, 3, 2, 0, 1)
    assert 0 <= carried.mean_late_s <= carried.latest_s
    for sock in (near, this, far, other):
        sock.close()


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"bytes_per_s": 0.0}, "a relay's rate must be positive and finite, got 0 bytes/s"),
        ({"one_way_s": -1.0}, "a relay's delay must be between 0 and 10 s, got -1 s"),
        ({"queue_packets": -1}, "a relay's queue must hold at least 0 packets, got -1"),
        ({"loss": 1.0}, "loss must be a share from 0 to below 1, got 1"),
    ],
)
def test_what_no_link_has_is_refused(values: dict[str, float], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Hop(**({"bytes_per_s": 1e6, "one_way_s": 0.01, "queue_packets": 10} | values))
