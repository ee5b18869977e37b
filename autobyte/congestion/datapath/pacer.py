"""Paces many of the kernel's connections: at a constant rate, or by MOCC, each by what the kernel counts of it."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence

from autobyte.congestion.algos.learned import Mocc
from autobyte.congestion.datapath.tcp import TcpPacing, set_pace
from autobyte.congestion.objectives import Objective, parse_objective
from autobyte.congestion.service import Service
from autobyte.errors import AutoByteError, InputError
from autobyte.units import parse_rate

log = logging.getLogger("autobyte")

AGAIN_S = 1.0  # until a connection is looked at again of which the kernel has said nothing
EXAMPLES = "mocc:throughput=0.8,latency=0.1,loss=0.1, or rate:1Gbit"


def parse_pacing(text: str) -> Callable[[Sequence[socket.socket]], None]:
    """Read how connections are to be paced; what comes back does it, for as long as they are open.

    >>> pace = parse_pacing("mocc:throughput=0.8,latency=0.1,loss=0.1")
    >>> pace([sock])

    Args:
        text: `mocc:` and weights, or `rate:` and a rate of payload, which each connection has for itself.

    Raises:
        InputError: it is neither.
    """
    kind, _, rest = text.partition(":")
    if kind == "mocc":
        objective = parse_objective(rest)
        return lambda socks: _by_mocc(socks, objective)
    if kind == "rate":
        bytes_per_s = parse_rate(rest, what="pacing")
        return lambda socks: _at_rate(socks, bytes_per_s)
    raise InputError(f"unknown pacing '{text}'; write it like {EXAMPLES}")


def _at_rate(socks: Sequence[socket.socket], bytes_per_s: float) -> None:
    for sock in socks:
        set_pace(sock, bytes_per_s)


def _by_mocc(socks: Sequence[socket.socket], objective: Objective) -> None:
    """Begin to pace; the thread ends when all connections are closed."""
    begun_s, service = time.monotonic(), Service()
    pacings = [TcpPacing(sock, Mocc(service, objective), now_s=0.0) for sock in socks]
    threading.Thread(target=_keep_pacing, args=(pacings, begun_s), name="autobyte-pacing", daemon=True).start()


def _keep_pacing(pacings: list[TcpPacing], begun_s: float) -> None:
    due = dict.fromkeys(pacings, 0.0)
    while due:
        now_s = time.monotonic() - begun_s
        for pacing in [each for each, due_s in due.items() if due_s <= now_s]:
            try:
                due[pacing] = pacing.step(now_s)
            except (AutoByteError, OSError) as error:
                if pacing.closed:
                    del due[pacing]
                else:
                    log.warning("a connection keeps its pace for now: %s", error)
                    due[pacing] = now_s + AGAIN_S
        time.sleep(max(0.0, min(due.values(), default=0.0) - (time.monotonic() - begun_s)))
