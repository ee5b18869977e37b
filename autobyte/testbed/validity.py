"""Whether links hold the rates they were given, measured with real TCP before anything else is measured on them."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autobyte.testbed.flows import SWITCH, Flows, Pair
from autobyte.testbed.hosts import PACKET, PAYLOAD, Testbed
from autobyte.testbed.namespaces import TestbedError
from autobyte.units import KIB, format_rate

SHARE = (0.98, 1.01)  # of what TCP can carry on a link of the rate
VARIATION = 0.03  # coefficient of variation from one sample to the next
SAMPLES = 10
SHORTEST_S, LONGEST_S = 0.1, 0.5  # of a sample
PACKETS = 1500  # in a sample, if it need not be longer than that
GRAIN = 32 * KIB  # what arrives at a time on a slow link, and is counted in this sample or the next
SETTLE_S = 0.3  # a bucket that was full, and TCP's slow start
TOGETHER = 1.25e9  # bytes/s that are sent at a time: more than this may be bound by the CPU


@dataclass(frozen=True)
class LinkCheck:
    """What one direction of a host's link carries, beside what it should.

    `rate` is nominal, `goodput` payload (bytes/s); `variation` is the coefficient over samples of `sample_s`.
    """

    host: int
    direction: str  # up or down
    rate: float
    goodput: float
    variation: float
    sample_s: float

    @property
    def share(self) -> float:
        """Goodput, of what TCP can carry at the nominal rate."""
        return self.goodput / (PAYLOAD * self.rate)

    @property
    def sound(self) -> bool:
        """Whether it is within the tolerances, and what cannot be told apart on a slow link."""
        grain = GRAIN / (self.rate * self.sample_s)
        low, high = SHARE[0] - grain / SAMPLES, SHARE[1] + grain / SAMPLES
        return low <= self.share <= high and self.variation < max(VARIATION, grain)

    def to_json(self) -> dict[str, float | str | bool]:
        """As commands print it."""
        return {
            "host": self.host,
            "direction": self.direction,
            "rate_bytes_per_s": self.rate,
            "goodput_bytes_per_s": self.goodput,
            "share": self.share,
            "variation": self.variation,
            "sound": self.sound,
        }


def measure_links(testbed: Testbed) -> list[LinkCheck]:
    """Send over every link, first up, then down, from and to the switch, so that no two links are in one way.

    Takes about 3 s where the slowest link has 200 Mbit/s or more, at most 12 s for each group of hosts that send at
    the same time. A host that is cut off carries nothing.
    """
    links = []
    for side, direction in enumerate(("up", "down")):
        reached = [host for host in range(testbed.hosts) if _reached(testbed, _pair(host, side))]
        for hosts in _groups({host: testbed.rates(host)[side] for host in reached}):
            rates = [testbed.rates(host)[side] for host in hosts]
            sample_s = min(LONGEST_S, max(SHORTEST_S, PACKETS * PACKET / min(rates)))
            measured = _measure(testbed, [_pair(host, side) for host in hosts], sample_s)
            for host, rate, (goodput, variation) in zip(hosts, rates, measured, strict=True):
                links.append(LinkCheck(host, direction, rate, goodput, variation, sample_s))
        for host in set(range(testbed.hosts)) - set(reached):
            links.append(LinkCheck(host, direction, testbed.rates(host)[side], 0.0, 0.0, SHORTEST_S))
    return sorted(links, key=lambda link: (link.host, link.direction != "up"))


def require_sound(links: Iterable[LinkCheck]) -> None:
    """Make sure that all links hold their rates.

    Raises:
        TestbedError: naming the one that is furthest off.
    """
    bad = [link for link in links if not link.sound]
    if bad:
        worst = max(bad, key=lambda link: abs(link.share - 1) + link.variation)
        raise TestbedError(
            f"host {worst.host}'s {worst.direction}link does not hold {format_rate(worst.rate)}: it carries "
            f"{100 * worst.share:.1f} % of what TCP can, varying by {100 * worst.variation:.1f} %; "
            "is the machine busy? ask for lower rates or fewer hosts"
        )


def _pair(host: int, side: int) -> Pair:
    return (host, SWITCH) if side == 0 else (SWITCH, host)


def _reached(testbed: Testbed, pair: Pair) -> bool:
    try:
        with Flows(testbed, [pair], rate=1.0):
            return True
    except TestbedError:
        return False


def _groups(rates: Mapping[int, float]) -> list[list[int]]:
    """Hosts that send at the same time: as many as stay below what the CPU can carry."""
    groups: list[list[int]] = []
    room = 0.0
    for host, rate in rates.items():
        if rate > room:
            groups.append([])
            room = TOGETHER
        groups[-1].append(host)
        room -= rate
    return groups


def _measure(testbed: Testbed, pairs: Sequence[Pair], sample_s: float) -> list[tuple[float, float]]:
    """Goodput and variation of each flow, all at the same time."""
    with Flows(testbed, pairs) as flows:
        time.sleep(max(SETTLE_S, sample_s))
        seen = [(time.perf_counter(), flows.received())]
        for _ in range(SAMPLES):
            time.sleep(sample_s)
            seen.append((time.perf_counter(), flows.received()))
    times = np.array([when for when, _ in seen])
    counts = np.array([received for _, received in seen], dtype=float)  # [samples + 1, flows]
    goodput = (counts[-1] - counts[0]) / (times[-1] - times[0])
    parts = np.diff(counts, axis=0) / np.diff(times)[:, None]
    variation = np.divide(parts.std(axis=0), goodput, out=np.zeros_like(goodput), where=goodput > 0)
    return list(zip(goodput.tolist(), variation.tolist(), strict=True))
