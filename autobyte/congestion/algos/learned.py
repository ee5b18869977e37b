"""MOCC on the link (arXiv:2107.01427): the policy sets the pace after every interval."""

import math

from autobyte.congestion.objectives import Objective
from autobyte.congestion.paths import Interval
from autobyte.congestion.service import Service


class Mocc:
    """A flow of the library on the link.

    Args:
        service: decides.
        objective: what the flow wishes.
    """

    def __init__(self, service: Service, objective: Objective) -> None:
        self._service, self._flow = service, service.register(objective)
        self.window = math.inf
        self.packets_per_s, self.interval_s = service.rate(self._flow), service.interval_s(self._flow)

    def on_interval(self, interval: Interval) -> None:
        """Report, and take the new rate."""
        self._service.report(self._flow, interval)
        self.packets_per_s, self.interval_s = self._service.rate(self._flow), self._service.interval_s(self._flow)

    def on_ack(self, now_s: float, round_trip_s: float) -> None:
        """Intervals say it all."""

    def on_loss(self, now_s: float, sent_s: float) -> None:
        """Intervals say it all."""
