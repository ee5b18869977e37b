"""Each congestion control does on the link what its paper says that it does."""

import math

import pytest

from autobyte.congestion.algos import ALGORITHMS, allegro, make_control, vivace
from autobyte.congestion.algos.aurora import reward
from autobyte.congestion.algos.cubic import BETA, C, Cubic
from autobyte.congestion.algos.trials import Trials
from autobyte.congestion.batch import LinkBatch
from autobyte.congestion.link import PacketLink
from autobyte.congestion.objectives import Objective
from autobyte.congestion.paths import Bottleneck, RateProfile, Route
from autobyte.congestion.ranges import MBIT
from autobyte.congestion.sharing import Share, jain, share_link
from autobyte.errors import InputError

BULK, LATENCY = Objective(0.8, 0.1, 0.1), Objective(0.1, 0.8, 0.1)
WAY = Route(0.05)
SHALLOW, DEEP = 40, 200  # packets: one product of bandwidth and delay, and five


def alone(
    name: str, *, queue: int = SHALLOW, loss: float = 0.0, seconds: float = 24.0, wish: Objective = BULK
) -> Share:
    """What a flow gets of 10 Mbit/s at 50 ms, after half of the time."""
    link = Bottleneck(RateProfile.steady(10 * MBIT), queue, loss)
    control = make_control(name, wish, seed=1)
    return share_link(link, [(WAY, control)], seconds=seconds, settled_s=seconds / 2, seed=1)[0]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_uses_a_link_without_loss(name: str) -> None:
    assert alone(name).utilisation > 0.85


@pytest.mark.parametrize(("name", "fills"), [("cubic", True), ("allegro", True), ("vegas", False), ("bbr", False),
                                             ("copa", False), ("vivace", False)])  # fmt: skip
def test_some_fill_the_queue_and_some_leave_it_empty(name: str, fills: bool) -> None:
    ratio = alone(name, queue=DEEP, seconds=60.0 if name == "allegro" else 24.0).latency_ratio
    assert ratio < 0.5 if fills else ratio > 0.85


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("cubic", 0.2, 0.5),
        ("vegas", 0.2, 0.6),
        ("bbr", 0.9, 1.0),
        ("copa", 0.9, 1.0),
        ("allegro", 0.9, 1.0),
        ("vivace", 0.7, 1.0),
    ],
)
def test_one_percent_of_random_loss_stops_some(name: str, low: float, high: float) -> None:
    assert low < alone(name, loss=0.01).utilisation <= high + 1e-9


def test_cubic_returns_to_where_it_was_when_its_curve_says_so() -> None:
    cubic = Cubic()
    cubic.window = 1000.0  # so large that Reno is slower
    cubic.on_loss(0.0, -1.0)
    assert cubic.window == 700.0
    cubic.on_loss(0.1, -0.5)  # sent before the reduction: the same loss
    assert cubic.window == 700.0
    back_s, now_s = math.cbrt(1000 * (1 - BETA) / C), 0.0
    while now_s < back_s:
        for _ in range(int(cubic.window)):  # a round trip
            cubic.on_ack(now_s, 0.05)
        now_s += 0.05
    assert cubic.window == pytest.approx(1000.0, rel=0.02)
    assert cubic.window < 1001


def test_cubic_leaves_room_for_others_and_starts_its_curve_where_the_loss_left_it() -> None:
    """RFC 9438, sec. 4.2 and 4.7: K = ∛((W_max − cwnd_epoch) / C), with a W_max that fast convergence lowered."""
    cubic = Cubic()
    cubic.window = 1000.0
    cubic.on_loss(0.0, -1.0)
    cubic.window = 911.0  # it has not come back
    cubic.on_loss(5.0, 4.0)
    start, most = 911 * BETA, 911 * (1 + BETA) / 2
    assert cubic.window == pytest.approx(start)
    flat_s = math.cbrt((most - start) / C)
    assert flat_s == pytest.approx(6.99, abs=0.005)
    sizes, now_s = {}, 5.0
    while now_s < 5.0 + flat_s:
        for _ in range(int(cubic.window)):
            cubic.on_ack(now_s, 0.05)
        now_s += 0.05
        sizes[round(now_s - 5.0, 2)] = cubic.window
    assert sizes[1.0] == pytest.approx(most + C * (1.0 - flat_s) ** 3, rel=0.01)
    assert sizes[max(sizes)] == pytest.approx(most, rel=0.01)


def test_cubic_grows_like_reno_once_reno_is_back() -> None:
    cubic = Cubic()
    cubic.window = 10.0  # so small that Reno is faster
    cubic.on_loss(0.0, -1.0)
    grown = []
    for _ in range(200):
        before = cubic.window
        cubic.on_ack(0.0, 1e-4)
        grown.append((cubic.window - before) * before)
    assert grown[0] == pytest.approx(3 * (1 - BETA) / (1 + BETA))
    assert grown[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("every", [100, 400])
def test_cubics_mean_window_is_renos_where_losses_come_evenly(every: int) -> None:
    """RFC 9438, sec. 4.3: α = 3 (1 − β) / (1 + β) until the window is back gives Reno's mean, √(1.5 / loss)."""
    cubic, round_trips, acked = Cubic(), 0.0, 0
    for packet in range(200 * every):
        if packet % every == every - 1:
            cubic.on_loss(1e-6 * packet, math.inf)
            continue
        cubic.on_ack(1e-6 * packet, 1e-6)  # so short a round trip that the cubic curve is flat
        if packet > 50 * every:
            round_trips, acked = round_trips + 1 / cubic.window, acked + 1
    assert acked / round_trips == pytest.approx(math.sqrt(1.5 * every), rel=0.02)


def test_cubic_is_no_slower_than_reno_at_random_losses() -> None:
    """Late losses let it grow by one per round trip, so its mean is above that of even ones."""
    share = alone("cubic", loss=0.01, queue=DEEP, seconds=120.0)
    assert share.packets_per_s * share.round_trip_s > math.sqrt(1.5 / 0.01)


@pytest.mark.parametrize("name", ["cubic", "vegas", "copa", "bbr"])
def test_two_flows_of_a_kind_share_the_link(name: str) -> None:
    flows = [(WAY, make_control(name, BULK, seed=seed)) for seed in range(2)]
    link = Bottleneck(RateProfile.steady(10 * MBIT), 60)
    shares = share_link(link, flows, seconds=60.0, settled_s=20.0)
    assert sum(share.utilisation for share in shares) > 0.95
    assert jain([share.packets_per_s for share in shares]) > 0.85


def test_bbr_leaves_a_queue_that_it_filled_at_the_start() -> None:
    link = PacketLink(Bottleneck(RateProfile.steady(10 * MBIT), DEEP), [(WAY, make_control("bbr", BULK))])
    link.run(2.0)
    link.flows[0].finish(2.0)
    link.run(9.0)
    assert link.flows[0].finish(9.0).round_trip_s < 0.056


def test_packets_count_for_the_trial_that_they_were_sent_in() -> None:
    trials = Trials(100.0)
    trials.begin(1.0, 110.0, kind=1)
    trials.begin(2.0, 90.0, kind=-1)
    assert trials.acked(0.5, 0.1) == []
    (first,) = trials.acked(1.2, 0.1)
    assert (first.acked, first.lost, first.kind) == (1, 0, 0)
    assert trials.acked(1.4, 0.2) == []
    assert trials.lost(1.9) == []
    (second,) = trials.lost(2.1)
    assert (second.packets_per_s, second.acked, second.kind) == (110.0, 2, 1)
    assert second.loss == pytest.approx(1 / 3)
    assert second.gradient == pytest.approx(0.5)


def test_allegro_tolerates_five_percent_of_loss_and_vivace_punishes_a_rising_round_trip() -> None:
    assert allegro.utility(110.0, 0.02) > allegro.utility(100.0, 0.02)
    assert allegro.utility(110.0, 0.12) < allegro.utility(100.0, 0.02)
    assert vivace.utility(10.0, 0.05, 0.0) < vivace.utility(5.0, 0.0, 0.0)
    assert vivace.utility(10.0, 0.005, 0.0) == vivace.utility(10.0, 0.0, 0.0)  # noise


def test_mocc_gives_throughput_or_latency_as_it_is_asked() -> None:
    bulk, latency = (alone("mocc", wish=wish, queue=DEEP) for wish in (BULK, LATENCY))
    assert bulk.utilisation >= latency.utilisation
    assert latency.latency_ratio > bulk.latency_ratio


def test_auroras_reward_is_that_of_its_release() -> None:
    batch = LinkBatch(lambda rng: (Bottleneck(RateProfile.steady(400.0), 10), WAY), 1, seed=0)
    parts = batch.step(batch.pace * 0)
    expected = (10 * parts[0, 0] * 400 - 1000 * batch.round_trip_s[0] - 2000 * (1 - parts[0, 2])) / 1000
    assert reward(parts, batch)[0] == pytest.approx(expected)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(InputError, match="unknown congestion control 'cubik'; did you mean 'cubic'"):
        make_control("cubik", BULK)
