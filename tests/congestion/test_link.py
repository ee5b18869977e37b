"""The link against closed forms, and what is sent against what became of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autobyte.congestion.link import PacketLink, SteadyPace
from autobyte.congestion.packets import CompiledLinks
from autobyte.congestion.paths import Bottleneck, RateProfile, Route


@settings(max_examples=40, deadline=None)
@given(st.floats(50, 500), st.floats(20, 1500), st.integers(0, 40), st.sampled_from([0.0, 0.05]), st.integers(1, 3))
def test_packets_are_acknowledged_lost_or_under_way(rate, pace, queue, loss, flows) -> None:
    world = Bottleneck(RateProfile((0.0, 0.7), (rate, rate / 2)), queue, loss)
    link = PacketLink(world, [(Route(0.03 * (place + 1)), SteadyPace(pace)) for place in range(flows)], seed=5)
    for until_s in (0.4, 1.1, 1.5):
        link.run(until_s)
        for flow in link.flows:
            assert flow.number == flow.total_acked + flow.total_lost + len(flow.notices)
        served = sum(flow.total_acked for flow in link.flows)
        assert served <= world.profile.capacity(0.0, until_s) + 1


@pytest.mark.parametrize("load", [0.3, 0.6, 0.9])
def test_the_mean_wait_is_that_of_an_m_d_1_queue(load: float) -> None:
    """Pollaczek and Khinchine: load / (2 (1 - load)) times of service."""
    served_per_s, seconds = 1000.0, 2000.0
    links = CompiledLinks([Bottleneck(RateProfile.steady(served_per_s), 10_000)], [[Route(0.05, random_gaps=True)]])
    links.run(np.array([[load * served_per_s]]), np.array([seconds]))
    wait = (links.finish(0, 0).round_trip_s - 0.05) * served_per_s - 1
    assert wait == pytest.approx(load / (2 * (1 - load)), rel=0.04)


def test_a_slow_flow_meets_no_queue_and_a_fast_one_fills_it() -> None:
    world = Bottleneck(RateProfile.steady(100.0), 10)
    for pace, round_trip_s, per_s in ((50.0, 0.06, 50.0), (200.0, 0.05 + 11 / 100, 100.0)):
        link = PacketLink(world, [(Route(0.05), SteadyPace(pace))])
        link.run(5.0)
        link.flows[0].finish(5.0)
        link.run(15.0)
        seen = link.flows[0].finish(15.0)
        assert seen.round_trip_s == pytest.approx(round_trip_s, abs=0.006)
        assert seen.acked_per_s == pytest.approx(per_s, rel=0.01)
        assert seen.loss == pytest.approx(max(0.0, 1 - 100 / pace), abs=0.01)
        assert abs(seen.gradient) < 0.001


def test_the_round_trip_grows_as_the_queue_does() -> None:
    link = PacketLink(Bottleneck(RateProfile.steady(100.0), 1000), [(Route(0.05), SteadyPace(150.0))])
    link.run(1.0)
    link.flows[0].finish(1.0)
    link.run(2.0)
    assert link.flows[0].finish(2.0).gradient == pytest.approx(1 / 3, rel=0.02)  # 100 a second arrive, 50 more wait


def test_the_rate_changes_when_the_profile_says_so() -> None:
    profile = RateProfile((0.0, 1.0, 2.0), (100.0, 400.0, 50.0))
    link = PacketLink(Bottleneck(profile, 10), [(Route(0.001), SteadyPace(1000.0))])
    rates = []
    for until_s in (1.0, 2.0, 3.0):
        link.run(until_s)
        rates.append(link.flows[0].finish(until_s).acked)
    np.testing.assert_allclose(rates, profile.packets_per_s, atol=2)


def test_random_loss_has_the_share_that_was_asked_for() -> None:
    link = PacketLink(Bottleneck(RateProfile.steady(1e4), 100, 0.03), [(Route(0.01), SteadyPace(5e3))], seed=1)
    link.run(10.0)
    assert link.flows[0].finish(10.0).loss == pytest.approx(0.03, rel=0.1)


def test_a_window_bounds_what_is_under_way() -> None:
    link = PacketLink(Bottleneck(RateProfile.steady(1e4), 100), [(Route(0.1), SteadyPace(1e6, window=20.0))])
    link.run(10.0)
    assert link.flows[0].finish(10.0).acked_per_s == pytest.approx(20 / 0.1, rel=0.03)


def test_flows_with_the_same_pace_share_the_link_and_one_that_stopped_leaves_it() -> None:
    world = Bottleneck(RateProfile.steady(300.0), 5)
    link = PacketLink(
        world, [(Route(0.02), SteadyPace(301.0)), (Route(0.02, stop_s=10.0), SteadyPace(299.0))], seed=2
    )
    link.run(10.0)
    first, second = (flow.finish(10.0).acked_per_s for flow in link.flows)
    assert first + second == pytest.approx(300.0, rel=0.01)
    link.run(20.0)
    assert link.flows[0].finish(20.0).acked_per_s == pytest.approx(300.0, rel=0.01)
