"""The compiled links against the readable one, to the bit."""

import math

import numpy as np
import pytest

from autobyte.congestion.link import PacketLink, SteadyPace
from autobyte.congestion.packets import CompiledLinks
from autobyte.congestion.paths import Bottleneck, Interval, RateProfile, Route
from autobyte.errors import InputError

WORLDS = 100
INTERVALS = 10  # in each world: a thousand in all


def random_world(rng: np.random.Generator) -> tuple[Bottleneck, list[Route]]:
    """A bottleneck whose rate may change, and one to three flows."""
    changes = int(rng.integers(0, 4))
    times_s = (0.0, *np.sort(rng.uniform(0.01, 2.0, changes)).tolist())
    rates = tuple(rng.uniform(50.0, 1000.0, changes + 1).tolist())
    loss = float(rng.choice([0.0, 0.01, 0.3]))
    routes = [
        Route(
            float(rng.uniform(0.01, 0.2)),
            float(rng.uniform(0, 0.5)),
            float(rng.uniform(0.5, 3)),
            bool(rng.integers(2)),
        )
        for _ in range(int(rng.integers(1, 4)))
    ]
    return Bottleneck(RateProfile(times_s, rates), int(rng.integers(0, 60)), loss), routes


def same(one: Interval, other: Interval) -> bool:
    """Whether two are equal to the bit; two means of nothing are."""
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs)


def test_a_thousand_random_intervals_are_equal_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    acked = lost = 0
    for world in range(WORLDS):
        bottleneck, routes = random_world(rng)
        controls = [SteadyPace(1.0) for _ in routes]
        link = PacketLink(bottleneck, list(zip(routes, controls, strict=True)), seed=world)
        compiled = CompiledLinks([bottleneck], [routes], seeds=[world])
        until_s = 0.0
        for _ in range(INTERVALS):
            until_s += float(rng.uniform(0.01, 0.6))
            for control in controls:
                control.packets_per_s = float(rng.uniform(10.0, 1500.0))
                control.window = float(rng.choice([math.inf, 1.0, 20.0]))
            link.run(until_s)
            pace = np.array([[control.packets_per_s for control in controls]])
            window = np.array([[control.window for control in controls]])
            compiled.run(pace, np.array([until_s]), window=window)
            for place, flow in enumerate(link.flows):
                read, fast = flow.finish(until_s), compiled.finish(0, place)
                assert same(read, fast), (world, read, fast)
                acked, lost = acked + read.acked, lost + read.lost
    assert acked > 20_000
    assert lost > 2_000


def test_links_beside_each_other_do_not_touch() -> None:
    rng = np.random.default_rng(1)
    worlds = [
        Bottleneck(RateProfile.steady(float(rng.uniform(100, 900))), int(rng.integers(5, 50)), 0.02) for _ in range(5)
    ]
    routes = [[Route(float(rng.uniform(0.02, 0.1)))] for _ in worlds]
    together = CompiledLinks(worlds, routes, seeds=range(5))
    together.run(np.full((5, 1), 700.0), np.full(5, 3.0))
    for place, (world, route) in enumerate(zip(worlds, routes, strict=True)):
        alone = CompiledLinks([world], [route], seeds=[place])
        alone.run(np.full((1, 1), 700.0), np.full(1, 3.0))
        assert same(alone.finish(0, 0), together.finish(place, 0))


def test_more_under_way_than_there_is_room_for_at_first() -> None:
    world, routes = Bottleneck(RateProfile.steady(1e4), 5000), [Route(1.0), Route(0.3)]
    link = PacketLink(world, [(route, SteadyPace(6e3)) for route in routes])
    compiled = CompiledLinks([world], [routes])
    for until_s in (0.5, 2.5):
        link.run(until_s)
        compiled.run(np.full((1, 2), 6e3), np.array([until_s]))
        for place, flow in enumerate(link.flows):
            assert same(flow.finish(until_s), compiled.finish(0, place))


def test_packets_without_end_are_refused() -> None:
    links = CompiledLinks([Bottleneck(RateProfile.steady(1.0), 5)], [[Route(1e4)]])
    with pytest.raises(InputError, match="more than 1,048,576 packets of a flow are under way; bound its pace"):
        links.run(np.array([[1e6]]), np.array([1e4]))


def test_links_with_different_numbers_of_flows_are_refused() -> None:
    world = Bottleneck(RateProfile.steady(100.0), 5)
    with pytest.raises(InputError, match="every link needs as many flows as the others, got \\[1, 2\\]"):
        CompiledLinks([world, world], [[Route(0.1)], [Route(0.1), Route(0.2)]])
