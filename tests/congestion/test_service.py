"""The library: rates for flows that report, and one clear line for those that report nonsense."""

import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autobyte.congestion.algos import make_control
from autobyte.congestion.algos.learned import Mocc
from autobyte.congestion.link import PacketLink
from autobyte.congestion.model import ActorCritic
from autobyte.congestion.objectives import Objective
from autobyte.congestion.paths import Bottleneck, Interval, RateProfile, Route
from autobyte.congestion.policy import RatePolicy
from autobyte.congestion.ranges import MBIT
from autobyte.congestion.senses import LEAST_PER_S, MOST_PER_S, PACKETS, look, next_pace
from autobyte.congestion.service import Service
from autobyte.congestion.sharing import share_link
from autobyte.errors import InputError

WISH = Objective(0.8, 0.1, 0.1)
FIRST = Interval(0.0, 0.05, 5, 5, 0, 0.02, 0.0, 0.02)


def eager() -> RatePolicy:
    """A policy that raises the rate whatever it sees."""
    arrays = {name: np.zeros_like(values) for name, values in ActorCritic().policy().arrays.items()}
    return RatePolicy(arrays | {"actor.out.bias": np.full(1, 8.0, dtype=np.float32)})


def after(interval: Interval, **changes: float) -> Interval:
    """The interval that follows."""
    return replace(interval, start_s=interval.end_s, end_s=interval.end_s + 0.05, **changes)


def test_a_flow_doubles_until_a_queue_shows_and_then_the_policy_decides() -> None:
    policy = ActorCritic(seed=3).policy()
    service = Service(policy)
    flow = service.register(WISH)
    rates, interval = [service.rate(flow)], FIRST
    for round_trip_s in (0.02, 0.0201, 0.03):
        service.report(flow, replace(interval, round_trip_s=round_trip_s))
        rates.append(service.rate(flow))
        interval = after(interval)
    assert rates[:3] == [100.0, 200.0, 400.0]
    inputs = np.zeros((1, 33), dtype=np.float32)
    inputs[0, :3] = WISH.weights
    for place, round_trip_s in ((-9, 0.02), (-6, 0.0201), (-3, 0.03)):
        numbers = (5.0, 5.0, round_trip_s, 0.02, 0.0)
        inputs[0, place : place + 3 or None] = look(*(np.float64(number) for number in numbers))
    expected = next_pace(np.array([400.0]), policy.action(inputs).astype(np.float64))[0]
    assert rates[3] == pytest.approx(expected, rel=1e-6)
    assert service.interval_s(flow) == pytest.approx(0.03)


def test_flows_do_not_touch_each_other() -> None:
    service = Service(ActorCritic(seed=3).policy())
    one, other = service.register(WISH), service.register(Objective(0.1, 0.8, 0.1), first_packets_per_s=50.0)
    service.report(one, FIRST)
    assert (service.rate(one), service.rate(other)) == (200.0, 50.0)
    service.forget(other)
    assert service.register(WISH) not in (one, other)


def test_nothing_is_decided_before_anything_arrives() -> None:
    service = Service(ActorCritic().policy())
    flow = service.register(WISH)
    service.report(flow, Interval(0.0, 0.05, 5, 0, 0, math.nan, 0.0, math.inf))
    assert service.rate(flow) == 100.0


def test_a_peer_that_is_gone_slows_a_flow_down() -> None:
    service = Service()
    flow = service.register(WISH)
    service.report(flow, FIRST)
    interval, rates = FIRST, [service.rate(flow)]
    for _ in range(40):
        interval = after(interval, acked=0, round_trip_s=math.nan)
        service.report(flow, interval)
        rates.append(service.rate(flow))
    assert rates[:3] == [200.0, 100.0, 50.0]
    assert rates[-1] == LEAST_PER_S
    assert service.interval_s(flow) == pytest.approx(PACKETS / LEAST_PER_S)


def test_an_interval_without_packets_changes_nothing() -> None:
    service = Service()
    flow = service.register(WISH)
    service.report(flow, FIRST)
    service.report(flow, after(FIRST, sent=0, acked=0, round_trip_s=math.nan))
    assert service.rate(flow) == 200.0


@pytest.mark.parametrize(("acked", "rate"), [(25, 200.0), (24, 100.0)])
def test_the_start_waits_until_packets_arrive(acked: int, rate: float) -> None:
    service = Service()
    flow = service.register(WISH)
    service.report(flow, replace(FIRST, sent=100, acked=acked))
    assert service.rate(flow) == rate


def test_the_start_has_a_bound() -> None:
    service = Service()
    flow = service.register(WISH)
    interval = FIRST
    for _ in range(30):
        service.report(flow, interval)
        interval = after(interval)
    assert service.rate(flow) == MOST_PER_S


def test_two_flows_that_tolerate_loss_do_not_raise_their_rates_without_end() -> None:
    """One gave way, and the other came to a million packets a second: no simulation of it ended."""
    flows = [(Route(0.05), Mocc(Service(eager()), WISH)), (Route(0.05, start_s=1.6), Mocc(Service(eager()), WISH))]
    traffic = PacketLink(Bottleneck(RateProfile.steady(833.0), 100), flows)
    for second in range(1, 13):
        traffic.run(float(second))
        assert sum(flow.number for flow in traffic.flows) < 2 * 2 * 2 * 833 * second


@pytest.mark.parametrize(("sent", "lost", "factor"), [(100, 20, 1 / 1.025), (100, 19, 1.2), (10, 2, 1.2)])
def test_the_rate_falls_while_a_fifth_of_the_packets_are_lost(sent: int, lost: int, factor: float) -> None:
    service = Service(eager())
    flow = service.register(WISH)
    service.report(flow, replace(FIRST, round_trip_s=0.03))  # a queue: the start is over
    before = service.rate(flow)
    service.report(flow, after(FIRST, sent=sent, acked=sent - lost, lost=lost))
    assert service.rate(flow) == pytest.approx(factor * before)


@pytest.mark.parametrize(("sent", "lost", "doubles"), [(5, 1, True), (5, 2, True), (30, 3, False), (300, 3, True)])
def test_a_few_random_losses_do_not_end_the_start(sent: int, lost: int, doubles: bool) -> None:
    service = Service()
    flow = service.register(WISH)
    service.report(flow, replace(FIRST, sent=sent, acked=sent - lost, lost=lost))
    assert (service.rate(flow) == 200.0) is doubles


def test_a_flow_of_latency_uses_a_link_with_random_loss_whatever_the_seed() -> None:
    link = Bottleneck(RateProfile.steady(50 * MBIT), 500, 0.01)
    for seed in (1, 2):
        control = make_control("mocc", Objective(0.1, 0.8, 0.1), seed=seed)
        (share,) = share_link(link, [(Route(0.05), control)], seconds=4.0, settled_s=2.0, seed=seed)
        assert share.utilisation > 0.8


def test_a_flow_that_is_not_registered_is_refused() -> None:
    service = Service(ActorCritic().policy())
    flow = service.register(WISH)
    service.forget(flow)
    for ask in (service.rate, service.interval_s, service.forget, lambda gone: service.report(gone, FIRST)):
        with pytest.raises(InputError, match=r"flow 0 is not registered: call register\(\) first"):
            ask(flow)
    with pytest.raises(InputError, match="the first rate must be positive, got 0"):
        service.register(WISH, first_packets_per_s=0.0)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (replace(FIRST, start_s=0.02, end_s=0.1), "out of order: an interval from 0.02 s after one to 0.05 s"),
        (replace(FIRST, start_s=0.2, end_s=0.3), "statistics missing from 0.05 s to 0.2 s; report all"),
        (replace(FIRST, start_s=0.05, end_s=0.05), "an interval cannot run from 0.05 s to 0.05 s"),
        (replace(FIRST, end_s=math.nan), "an interval cannot run from 0.0 s to nan s"),
        (after(FIRST, acked=-1), "acked must be a number of packets, got -1"),
        (after(FIRST, lost=math.nan), "lost must be a number of packets, got nan"),
        (after(FIRST, round_trip_s=0.01), "round trips of 0.01 s on average and 0.02 s at least cannot be"),
        (after(FIRST, round_trip_s=math.nan), "round trips of nan s on average"),
        (after(FIRST, acked=0, round_trip_s=math.nan, least_round_trip_s=math.nan),
         "the least round trip must be positive, got nan s"),
        (after(FIRST, gradient=math.inf), "the gradient of the round trip must be a number, got inf"),
    ],
)  # fmt: skip
def test_statistics_that_cannot_be_are_one_clear_line(bad: Interval, complaint: str) -> None:
    service = Service(ActorCritic().policy())
    flow = service.register(WISH)
    service.report(flow, FIRST)
    rate = service.rate(flow)
    with pytest.raises(InputError, match=re.escape(complaint)):
        service.report(flow, bad)
    assert service.rate(flow) == rate


def test_no_pytorch_is_loaded_to_choose_a_rate() -> None:
    code = "import sys\nfrom autobyte.congestion.service import Service\nService()\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_the_example_has_20_lines_and_serves_both_flows() -> None:
    example = Path(__file__).parents[2] / "examples" / "congestion_rates.py"
    assert len(example.read_text().splitlines()) <= 20
    done = subprocess.run([sys.executable, example], check=True, capture_output=True, text=True)
    numbers = re.findall(r"⟩: (\d+) packets/s, round trip (\d+) ms", done.stdout)
    (bulk, bulk_ms), (latency, latency_ms) = [(int(per_s), int(ms)) for per_s, ms in numbers]
    assert min(bulk, latency) > 850
    assert latency_ms <= bulk_ms
