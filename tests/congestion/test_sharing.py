"""What flows get of a link that they share."""

import pytest

from autobyte.congestion.link import SteadyPace
from autobyte.congestion.paths import Bottleneck, RateProfile, Route
from autobyte.congestion.sharing import jain, share_link
from autobyte.errors import InputError

WORLD = Bottleneck(RateProfile((0.0, 5.0), (1000.0, 500.0)), 50, 0.01)


def test_two_steady_flows() -> None:
    one, other = share_link(
        WORLD, [(Route(0.05), SteadyPace(300.0)), (Route(0.1), SteadyPace(100.0))], seconds=9, settled_s=1
    )
    assert one.packets_per_s == pytest.approx(300 * 0.99, rel=0.02)
    assert other.bytes_per_s == pytest.approx(100 * 0.99 * 1500, rel=0.03)
    assert one.utilisation == pytest.approx(8 * 300 * 0.99 / 6000, rel=0.02)
    assert (one.loss, other.loss) == (pytest.approx(0.01, abs=0.005), pytest.approx(0.01, abs=0.01))
    assert one.round_trip_s == pytest.approx(0.0515, abs=0.001)
    assert min(one.latency_ratio, other.latency_ratio) > 0.95


def test_a_flow_that_sends_nothing_gets_nothing() -> None:
    idle = share_link(WORLD, [(Route(0.05, start_s=8.0), SteadyPace(10.0))], seconds=5, settled_s=1)[0]
    assert (idle.packets_per_s, idle.utilisation, idle.latency_ratio, idle.loss) == (0, 0, 0, 0)


def test_fairness() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(1 / 4)
    assert jain([0.0, 0.0]) == 1


def test_a_run_that_is_too_short_is_refused() -> None:
    with pytest.raises(InputError, match="a run of 5 s must be longer than the 5 s that flows take to settle"):
        share_link(WORLD, [(Route(0.05), SteadyPace(1.0))], seconds=5, settled_s=5)
