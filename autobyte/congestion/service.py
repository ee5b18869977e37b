"""The library of the paper (MOCC, sec. 5): register weights, report statistics, ask for a rate; no PyTorch."""

import math
from dataclasses import dataclass, field

import numpy as np

from autobyte.congestion.objectives import Objective
from autobyte.congestion.paths import Interval
from autobyte.congestion.policy import RatePolicy
from autobyte.congestion.senses import FEATURES, INPUTS, LEAST_PER_S, MOST_PER_S, length_s, look, next_pace
from autobyte.congestion.stored import shipped
from autobyte.errors import InputError

FIRST_PER_S, FIRST_S = 100.0, 0.05  # packets, and the length of the first interval
QUEUE, LOSS = 1.1, 0.1  # latency ratio and loss that end the start
LOST = 3  # packets: fewer in an interval may be chance, and do not end the start
ARRIVED = 0.25  # of the packets sent: with fewer the start waits
MOST_LOSS, FALL = 0.2, -1.0  # loss from which on the rate falls, and the action that lowers it
SILENT = 0.5  # what an interval in which nothing arrives leaves of the rate
SLACK_S = 1e-9  # between two intervals that follow each other


@dataclass
class Sender:
    """A flow that is registered: what the policy sees of it, and its rate."""

    objective: Objective
    packets_per_s: float
    interval_s: float = FIRST_S
    end_s: float = math.nan  # of the last report
    round_trip_s: float = math.nan
    starting: bool = True
    inputs: np.ndarray[tuple[int, int], np.dtype[np.float32]] = field(
        default_factory=lambda: np.zeros((1, INPUTS), dtype=np.float32)
    )


class Service:
    """Rates for any number of flows, each with weights of its own.

    A new flow doubles its rate until its round trip or its losses show a queue; then the policy decides. While a
    fifth of the packets are lost, the rate falls whatever the policy says: where a queue is shorter than all that it
    was trained on, or others fill it, the policy would go on raising it. An interval in which packets were sent and
    nothing arrives halves the rate. The paper says none of this; it is ours.

    >>> service = Service()
    >>> flow = service.register(Objective(0.8, 0.1, 0.1))
    >>> service.report(flow, Interval(0.0, 0.05, 5, 3, 0, 0.02, 0.0, 0.02))
    >>> service.rate(flow)
    200.0

    Args:
        policy: decides; the one that comes with the package by default.
    """

    def __init__(self, policy: RatePolicy | None = None) -> None:
        self._policy = shipped() if policy is None else policy
        self._senders: dict[int, Sender] = {}
        self._next = 0

    def register(self, objective: Objective, *, first_packets_per_s: float = FIRST_PER_S) -> int:
        """Register a flow.

        Args:
            objective: what it wishes.
            first_packets_per_s: until the first report.

        Returns:
            Its number, for the other methods.

        Raises:
            InputError: a first rate that is not positive.
        """
        if not 0 < first_packets_per_s < math.inf:
            raise InputError(f"the first rate must be positive, got {first_packets_per_s} packets/s")
        flow, self._next = self._next, self._next + 1
        sender = Sender(objective, first_packets_per_s)
        sender.inputs[0, :3] = objective.weights
        self._senders[flow] = sender
        return flow

    def forget(self, flow: int) -> None:
        """End a flow.

        Raises:
            InputError: it is not registered.
        """
        self._sender(flow)
        del self._senders[flow]

    def rate(self, flow: int) -> float:
        """Packets per second that the flow is to send now.

        Raises:
            InputError: it is not registered.
        """
        return self._sender(flow).packets_per_s

    def interval_s(self, flow: int) -> float:
        """How long the next monitor interval should be.

        Raises:
            InputError: it is not registered.
        """
        return self._sender(flow).interval_s

    def report(self, flow: int, interval: Interval) -> None:
        """Take in what the flow saw of its last monitor interval, and change its rate.

        Raises:
            InputError: the flow is not registered, statistics are out of order or missing, or cannot be.
        """
        sender = self._sender(flow)
        _check(flow, interval, sender.end_s)
        sender.end_s = interval.end_s
        if interval.acked:
            sender.round_trip_s = interval.round_trip_s
        if not math.isnan(sender.round_trip_s):  # else nothing has ever arrived
            self._decide(sender, interval)

    def _decide(self, sender: Sender, interval: Interval) -> None:
        if interval.acked:
            self._choose(sender, interval)
        elif interval.sent or interval.lost:  # the other end may be gone
            sender.starting = False
            sender.packets_per_s = max(LEAST_PER_S, SILENT * sender.packets_per_s)
        sender.interval_s = float(length_s(np.float64(sender.round_trip_s), np.float64(sender.packets_per_s)))

    def _choose(self, sender: Sender, interval: Interval) -> None:
        inputs, least_s = sender.inputs, min(interval.least_round_trip_s, sender.round_trip_s)
        seen = look(
            np.float64(interval.sent),
            np.float64(interval.acked),
            np.float64(sender.round_trip_s),
            np.float64(least_s),
            np.float64(interval.gradient),
        )
        inputs[0, 3:-FEATURES] = inputs[0, 3 + FEATURES :]
        inputs[0, -FEATURES:] = seen
        lossy = interval.lost >= LOST and interval.loss >= LOSS
        sender.starting &= sender.round_trip_s < QUEUE * least_s and not lossy
        if not sender.starting:
            action = float(self._policy.action(inputs)[0])
            if interval.lost >= LOST and interval.loss >= MOST_LOSS:
                action = min(action, FALL)
            sender.packets_per_s = float(next_pace(np.float64(sender.packets_per_s), np.float64(action)))
        elif interval.acked >= ARRIVED * interval.sent:
            sender.packets_per_s = min(2 * sender.packets_per_s, MOST_PER_S)

    def _sender(self, flow: int) -> Sender:
        if flow not in self._senders:
            raise InputError(f"flow {flow} is not registered: call register() first")
        return self._senders[flow]


def _check(flow: int, interval: Interval, last_s: float) -> None:
    """Refuse statistics that cannot be, or that do not follow the last ones."""
    if not -math.inf < interval.start_s < interval.end_s < math.inf:
        raise InputError(f"flow {flow}: an interval cannot run from {interval.start_s} s to {interval.end_s} s")
    if interval.start_s < last_s - SLACK_S:
        raise InputError(
            f"flow {flow}: statistics out of order: an interval from {interval.start_s:g} s after one to {last_s:g} s"
        )
    if interval.start_s > last_s + SLACK_S:
        raise InputError(f"flow {flow}: statistics missing from {last_s:g} s to {interval.start_s:g} s; report all")
    for name in ("sent", "acked", "lost"):
        if not 0 <= getattr(interval, name) < math.inf:
            raise InputError(f"flow {flow}: {name} must be a number of packets, got {getattr(interval, name)}")
    if interval.acked and not 0 < interval.least_round_trip_s <= interval.round_trip_s + SLACK_S < math.inf:
        raise InputError(
            f"flow {flow}: round trips of {interval.round_trip_s} s on average and {interval.least_round_trip_s} s "
            "at least cannot be"
        )
    if not interval.least_round_trip_s > 0:
        raise InputError(f"flow {flow}: the least round trip must be positive, got {interval.least_round_trip_s} s")
    if not math.isfinite(interval.gradient):
        raise InputError(f"flow {flow}: the gradient of the round trip must be a number, got {interval.gradient}")
