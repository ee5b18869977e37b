"""Many links at once: rewards, features and totals against one link that is read packet by packet."""

import numpy as np
import pytest

from autobyte.congestion.batch import LinkBatch
from autobyte.congestion.link import PacketLink, SteadyPace
from autobyte.congestion.paths import Bottleneck, RateProfile, Route
from autobyte.congestion.ranges import range_of
from autobyte.congestion.senses import length_s, look, next_pace


def test_a_step_is_that_of_the_readable_link() -> None:
    world, route = Bottleneck(RateProfile((0.0, 0.5), (300.0, 150.0)), 20, 0.02), Route(0.06)
    batch = LinkBatch(lambda rng: (world, route), 1, seed=4)
    seed, pace = int(batch.links.ways.seed[0]), float(batch.pace[0])
    control = SteadyPace(pace)
    link, round_trip_s, now_s = PacketLink(world, [(route, control)], seed=seed), 0.06, 0.0
    for action in np.random.default_rng(0).normal(1.0, 2.0, 40):
        parts = batch.step(np.array([action]))[0]
        control.packets_per_s = float(next_pace(np.array([control.packets_per_s]), np.array([action]))[0])
        end_s = now_s + float(length_s(np.array([round_trip_s]), np.array([control.packets_per_s]))[0])
        link.run(end_s)
        seen = link.flows[0].finish(end_s)
        capacity = world.profile.capacity(now_s, end_s)
        round_trip_s = seen.round_trip_s if seen.acked else round_trip_s
        base_s = 0.06 + seen.seconds / capacity
        np.testing.assert_allclose(
            parts, [min(1, seen.acked / capacity), min(1, base_s / round_trip_s), 1 - seen.loss], rtol=1e-9
        )
        numbers = (seen.sent, seen.acked, round_trip_s, min(seen.least_round_trip_s, round_trip_s), seen.gradient)
        np.testing.assert_allclose(batch.seen[0, -3:], look(*(np.float64(n) for n in numbers)), rtol=1e-5, atol=1e-6)
        now_s = end_s


def test_copies_meet_the_same_links_losses_and_first_rates_whatever_their_number() -> None:
    draw, seen = range_of("paper").draw, []
    for copies in (1, 3):
        batch = LinkBatch(draw, 4 * copies, seed=5, copies=copies)
        for _ in range(12):
            batch.step(np.zeros(4 * copies))
        seen.append(batch.seen.reshape(copies, 4, -1))
    assert all((copy == seen[0][0]).all() for copy in seen[1])


def test_the_summary_is_of_all_since_the_last() -> None:
    batch = LinkBatch(range_of("paper").draw, 8, seed=0)
    for _ in range(50):
        batch.step(np.zeros(8))
    utilisation, latency, loss = batch.summary().T
    expected = np.minimum(1.0, batch.pace / batch.capacity_per_s)
    np.testing.assert_allclose(utilisation, expected * np.where(expected < 1, 1 - loss, 1.0), atol=0.08)
    assert ((latency > 0) & (latency <= 1)).all()
    for _ in range(200):
        batch.step(np.full(8, -5.0))  # down to the least rate
    batch.summary()
    for _ in range(20):
        batch.step(np.zeros(8))
    assert batch.summary()[:, 0].max() < 0.1


def test_the_same_seed_is_the_same_batch() -> None:
    one, other, third = (LinkBatch(range_of("release").draw, 5, seed=seed) for seed in (3, 3, 4))
    assert one.step(np.ones(5)).tolist() == other.step(np.ones(5)).tolist()
    assert one.pace.tolist() != third.pace.tolist()


@pytest.mark.parametrize("name", ["paper", "release", "datacenter"])
def test_rewards_lie_between_0_and_1(name: str) -> None:
    batch = LinkBatch(range_of(name).draw, 4, seed=1)
    parts = np.array([batch.step(np.full(4, 0.5)) for _ in range(12)])
    assert parts.min() >= 0
    assert parts.max() <= 1
