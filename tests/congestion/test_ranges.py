"""Links are drawn from where the range says."""

import numpy as np
import pytest

from autobyte.congestion.ranges import MBIT, RANGES, parse_loss, range_of
from autobyte.errors import InputError


@pytest.mark.parametrize("name", RANGES)
def test_links_lie_in_their_range(name: str) -> None:
    range_, rng = range_of(name), np.random.default_rng(0)
    drawn = [range_.draw(rng) for _ in range(300)]
    rates = [bottleneck.profile.packets_per_s[0] for bottleneck, _ in drawn]
    queues = [bottleneck.queue_packets for bottleneck, _ in drawn]
    for values, (low, high) in (
        (rates, range_.packets_per_s),
        (queues, range_.queue_packets),
        ([bottleneck.loss for bottleneck, _ in drawn], range_.loss),
        ([route.round_trip_s / 2 for _, route in drawn], range_.one_way_s),
    ):
        assert low <= min(values) <= low + 0.1 * (high - low)
        assert high - 0.1 * (high - low) <= max(values) <= high
    middle = np.median(queues) / range_.queue_packets[1]
    assert (middle < 0.25) == range_.exponential_queue


def test_the_papers_numbers() -> None:
    assert range_of("paper").packets_per_s[0] * 1500 * 8 == pytest.approx(1e6)
    assert range_of("paper-test").packets_per_s[1] == pytest.approx(50 * MBIT)
    with pytest.raises(InputError, match="unknown range 'papre'; did you mean 'paper'"):
        range_of("papre")


def test_loss_is_read_as_people_write_it() -> None:
    assert (parse_loss("1%"), parse_loss("0.5 %"), parse_loss("0.02")) == (0.01, 0.005, 0.02)
    for text, complaint in (
        ("much", "cannot read loss 'much'; write it like 1%"),
        ("100%", "below 100 %, got '100%'"),
    ):
        with pytest.raises(InputError, match=complaint):
            parse_loss(text)
