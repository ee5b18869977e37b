"""Links hold their rates, change them in use, and share them: real TCP, on a machine that may be busy."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from beds import GBIT, needs_namespaces

from autobyte.errors import InputError
from autobyte.scenario import Change, Scenario
from autobyte.testbed import Testbed, TestbedError
from autobyte.testbed.changes import follow
from autobyte.testbed.flows import SWITCH, Flows, ring
from autobyte.testbed.hosts import PAYLOAD
from autobyte.testbed.load import OtherLoad
from autobyte.testbed.validity import LinkCheck, measure_links, require_sound

EXAMPLES = Path(__file__).parents[2] / "examples" / "scenarios"
NOISE = 0.05
PATIENCE_S = 20.0  # the machine may be busy: then less arrives for a while, but never more


def rate(flows: Flows, *, over_s: float = 0.4) -> list[float]:
    """What each flow brings, nominal (bytes/s)."""
    before, began = flows.received(), time.perf_counter()
    time.sleep(over_s)
    after, ended = flows.received(), time.perf_counter()
    return [(new - old) / (ended - began) / PAYLOAD for old, new in zip(before, after, strict=True)]


def hold(flows: Flows, expected: float) -> None:
    """Every flow reaches a rate (bytes/s), and does not go beyond it."""
    time.sleep(0.2)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        now = rate(flows)
        assert max(now) < (1 + NOISE) * expected
        if min(now) > (1 - NOISE) * expected:
            return
        assert time.monotonic() < deadline, f"{now} for {expected}"


@needs_namespaces
def test_every_link_holds_the_rate_of_its_direction() -> None:
    with Testbed(3, rate=GBIT) as testbed:
        testbed.shape(1, up=GBIT / 4)
        testbed.shape(2, down=GBIT / 2)
        deadline = time.monotonic() + PATIENCE_S
        links = measure_links(testbed)
        while not all(link.sound for link in links):
            assert all(link.share < 1 + NOISE for link in links)
            assert time.monotonic() < deadline, str(links)
            links = measure_links(testbed)
    assert [(link.host, link.direction, link.rate / GBIT) for link in links] == [
        (0, "up", 1),
        (0, "down", 1),
        (1, "up", 0.25),
        (1, "down", 1),
        (2, "up", 1),
        (2, "down", 0.5),
    ]
    assert [link.share for link in links] == pytest.approx([1] * 6, abs=0.021)


@needs_namespaces
def test_a_host_that_is_cut_off_carries_nothing_and_is_refused() -> None:
    with Testbed(2, rate=GBIT) as testbed:
        with Flows(testbed, [(0, 1)]) as flows:
            hold(flows, GBIT)
            testbed.cut(1)
            time.sleep(0.1)
            assert rate(flows) == [0.0]
            testbed.join(1)
            hold(flows, GBIT)
        testbed.cut(1)
        links = measure_links(testbed)
        assert [link.goodput > 0 for link in links] == [True, True, False, False]
        with pytest.raises(TestbedError, match=r"host 1's (up|down)link does not hold 1 Gbit/s: it carries 0.0 %"):
            require_sound(links[2:])


@needs_namespaces
def test_rates_change_under_a_flow() -> None:
    with Testbed(2, rate=GBIT) as testbed, Flows(testbed, [(0, 1)]) as flows:
        for up, down, expected in (
            (None, None, 1.0),
            (GBIT / 5, None, 0.2),
            (GBIT, GBIT / 2, 0.5),
            (None, GBIT, 1.0),
        ):
            testbed.shape(0, up=up)
            testbed.shape(1, down=down)
            hold(flows, expected * GBIT)


@needs_namespaces
def test_background_keeps_to_its_rate_and_takes_it_from_others() -> None:
    with Testbed(3, rate=GBIT) as testbed, Flows(testbed, ring(testbed), rate=GBIT / 5) as flows:
        hold(flows, GBIT / 5 / PAYLOAD)
        with Flows(testbed, [(0, SWITCH)]) as other:
            time.sleep(0.3)
            assert 0.2 * GBIT < rate(other)[0] < 0.97 * GBIT  # the two share a queue, not always evenly


@needs_namespaces
def test_a_scenario_changes_links_when_it_is_time_to() -> None:
    now = 0.0
    with Testbed(2, rate=GBIT) as testbed:
        testbed.shape(1, up=GBIT / 2)
        tick = follow(testbed, Scenario.load(EXAMPLES / "quarter.toml"), iteration_s=0.5, clock=lambda: now)
        seen = []
        for then in (0.0, 9.9, 10.0, 19.9, 20.1):
            now = then
            tick()
            seen.append([side / GBIT for host in range(2) for side in testbed.rates(host)])
        assert seen == [[1, 1, 0.5, 1]] * 2 + [[0.25, 0.25, 0.125, 0.25]] * 2 + [[1, 1, 0.5, 1]]


@needs_namespaces
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Change(3, slowdown=2.0), "only rates change, not slowdown or workers"),
        (Change(3, worker=7, up=1e8), "no worker 7 among 2"),
        (Change(3, up=1e12), "a testbed's rate must be between"),
    ],
)
def test_what_a_testbed_cannot_follow_is_refused_before_it_runs(change: Change, message: str) -> None:
    with Testbed(2, rate=GBIT) as testbed, pytest.raises(InputError, match=message):
        follow(testbed, Scenario("wrong", (change,)), iteration_s=1.0)


@pytest.mark.parametrize(
    ("share", "variation", "sound"),
    [(1.0, 0.0, True), (0.985, 0.029, True), (0.979, 0.0, False), (1.011, 0.0, False), (1.0, 0.04, False)],
)
def test_a_link_is_sound_within_two_percent(share: float, variation: float, sound: bool) -> None:
    link = LinkCheck(2, "down", GBIT, share * PAYLOAD * GBIT, variation, 0.1)
    assert link.share == pytest.approx(share)
    assert link.sound is sound
    if sound:
        require_sound([link])
    else:
        with pytest.raises(TestbedError, match=r"^host 2's downlink does not hold 1 Gbit/s: it carries"):
            require_sound([link])


def test_slow_links_are_not_held_to_less_than_a_packet_train() -> None:
    slow = 10e6 / 8
    assert LinkCheck(0, "up", slow, PAYLOAD * slow, 0.05, 0.5).sound
    assert not LinkCheck(0, "up", slow, PAYLOAD * slow, 0.06, 0.5).sound


def test_the_load_of_others_is_told_from_ones_own() -> None:
    def busy(seconds: float) -> None:
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    def cores(work: Callable[[], None]) -> float:
        with OtherLoad() as others:
            work()
        return others.cores

    idle, worked = cores(lambda: time.sleep(0.5)), cores(lambda: busy(0.5))
    assert worked < idle + 0.6  # had its own work been counted, it would be about one core more
