"""What a congestion control gets over the relay, to stand beside what it gets of the simulated link."""

import socket
import statistics
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields
from typing import Any

from autobyte.congestion.algos import make_control
from autobyte.congestion.datapath.kernel import NAME, paced_kernel
from autobyte.congestion.datapath.measure import Measured, run_kernel, run_over_relay
from autobyte.congestion.datapath.relay import Hop
from autobyte.congestion.datapath.tcp import TcpPacing
from autobyte.congestion.datapath.tunnel import check_tunnel
from autobyte.congestion.link import Congestion
from autobyte.congestion.objectives import Objective
from autobyte.congestion.paths import PACKET_BYTES, Bottleneck, Route
from autobyte.errors import AutoByteError
from autobyte.testbed.load import OtherLoad

KERNEL = {"kernel-cubic": "cubic", "kernel-bbr": "bbr", "kernel-mocc": NAME}  # TCP of the kernel; none is simulated
WISHED = ("mocc", "kernel-mocc")  # these hear of an objective
LATE = 0.02  # of a round trip without a queue: a relay that is later is another link
MISSED = 0.001  # of the packets: a relay that more than these do not come to is another link, too
TRIES = 3  # of a run whose relay is late or misses packets


def run_beside(
    bottleneck: Bottleneck, route: Route, name: str, wish: Objective, *, seconds: float, seeds: Sequence[int]
) -> dict[str, Any]:
    """Run a control over the relay on a link as it is simulated, once for each seed.

    Args:
        bottleneck: its rate must stay.
        route: of the flow.
        name: of a control, or of `KERNEL`.
        wish: for mocc.
        seconds: of each run, of which the last half counts.
        seeds: of losses, and of trials' order.

    Returns:
        Means by the names of `Measured`; with two seeds or more their standard errors, as `…_error`; and
        `others_cores`, what other processes used meanwhile.

    Raises:
        AutoByteError: the relay keeps up in no try, or `KERNEL` has no right to make network namespaces.
        InputError: no such control.
    """
    with OtherLoad() as others:
        runs = [_run(bottleneck, route, name, wish, seconds=seconds, seed=seed) for seed in seeds]
    return _means(runs) | {"others_cores": others.cores}


def check_kernel(name: str) -> None:
    """Make sure that one of `KERNEL` can run here.

    Raises:
        AutoByteError: it cannot.
    """
    with paced_kernel() if name == "kernel-mocc" else nullcontext():
        check_tunnel(KERNEL[name])


def run_told(hop: Hop, control: Congestion, *, seconds: float) -> Measured:
    """Run the kernel's TCP at the rate that a control tells it; the last half of the seconds counts.

    Raises:
        AutoByteError: this kernel cannot be told rates here, or one of the reasons of `run_kernel`.
    """
    with paced_kernel() as rates:

        def paced(sock: socket.socket) -> TcpPacing:
            return TcpPacing(sock, control, now_s=0.0, pace=rates.set_pace)

        return run_kernel(hop, NAME, seconds=seconds, settled_s=seconds / 2, paced=paced)


def _run(bottleneck: Bottleneck, route: Route, name: str, wish: Objective, *, seconds: float, seed: int) -> Measured:
    """One run; again if the relay was late or missed packets."""
    hop = Hop(
        bottleneck.profile.packets_per_s[0] * PACKET_BYTES,
        route.round_trip_s / 2,
        bottleneck.queue_packets,
        bottleneck.loss,
        headers=0 if name in KERNEL else Hop.headers,
        seed=seed,
    )
    for _ in range(TRIES):
        if name == "kernel-mocc":
            run = run_told(hop, make_control("mocc", wish, seed=seed), seconds=seconds)
        elif name in KERNEL:
            run = run_kernel(hop, KERNEL[name], seconds=seconds, settled_s=seconds / 2)
        else:
            run = run_over_relay(hop, make_control(name, wish, seed=seed), seconds=seconds, settled_s=seconds / 2)
        if run.late_s <= LATE * route.round_trip_s and run.missed <= MISSED:
            return run
    raise AutoByteError(
        f"the relay let packets leave {1e3 * run.late_s:.2g} ms late, and {100 * run.missed:.2g} % never came to it: "
        "this machine is too slow or too busy for this link; take a lower rate or a longer delay"
    )


def _means(runs: Sequence[Measured]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in (each.name for each in fields(Measured)):
        values = [float(getattr(run, name)) for run in runs]
        found[name] = statistics.fmean(values)
        if len(values) > 1:
            found[f"{name}_error"] = statistics.stdev(values) / len(values) ** 0.5
    return found
