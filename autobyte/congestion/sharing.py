"""Flows on one link, and what each got of it."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields

from autobyte.congestion.link import Congestion, PacketLink
from autobyte.congestion.paths import PACKET_BYTES, Bottleneck, Route
from autobyte.errors import InputError


@dataclass(frozen=True)
class Share:
    """What a flow got.

    Args:
        packets_per_s: acknowledged.
        utilisation: of what the link could serve.
        round_trip_s: mean over its packets.
        latency_ratio: least round trip that there can be, over the mean.
        loss: share of its packets.
    """

    packets_per_s: float
    utilisation: float
    round_trip_s: float
    latency_ratio: float
    loss: float

    @property
    def bytes_per_s(self) -> float:
        """What arrived, headers included."""
        return self.packets_per_s * PACKET_BYTES


def share_link(
    bottleneck: Bottleneck,
    flows: Sequence[tuple[Route, Congestion]],
    *,
    seconds: float,
    settled_s: float,
    seed: int = 0,
) -> list[Share]:
    """Run flows together, and say what each got after they settled.

    Args:
        bottleneck: that they share.
        flows: ways and congestion controls.
        seconds: in all.
        settled_s: of them, before those that count.
        seed: of losses.

    Raises:
        InputError: nothing is left that counts.
    """
    if not 0 <= settled_s < seconds:
        raise InputError(f"a run of {seconds:g} s must be longer than the {settled_s:g} s that flows take to settle")
    link = PacketLink(bottleneck, flows, seed=seed)
    link.run(settled_s)
    before = [(flow.total_acked, flow.total_lost, flow.total_round_trip_s) for flow in link.flows]
    link.run(seconds)
    shares, counted_s = [], seconds - settled_s
    capacity = bottleneck.profile.capacity(settled_s, seconds)
    for flow, (acked_before, lost_before, round_trips_before_s) in zip(link.flows, before, strict=True):
        acked, lost = flow.total_acked - acked_before, flow.total_lost - lost_before
        round_trip_s = (flow.total_round_trip_s - round_trips_before_s) / max(1, acked)
        least_s = flow.route.round_trip_s + counted_s / capacity
        ratio = min(1.0, least_s / round_trip_s) if acked else 0.0
        shares.append(Share(acked / counted_s, acked / capacity, round_trip_s, ratio, lost / max(1, acked + lost)))
    return shares


def means(shares: Sequence[Share]) -> dict[str, float]:
    """What a flow got in some runs: means, and with two runs or more their standard errors as `…_error`."""
    found: dict[str, float] = {}
    for name in ("bytes_per_s", *(each.name for each in fields(Share))):
        values = [float(getattr(share, name)) for share in shares]
        found[name] = statistics.fmean(values)
        if len(values) > 1:
            found[f"{name}_error"] = statistics.stdev(values) / len(values) ** 0.5
    return found


def jain(rates: Sequence[float]) -> float:
    """Jain's index of fairness: 1 if all are equal, 1/n if one has everything (Jain, Chiu, Hawe, 1984).

    >>> jain([1.0, 1.0]), jain([1.0, 0.0])
    (1.0, 0.5)
    """
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 1.0
