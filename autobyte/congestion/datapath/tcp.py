"""Paces a kernel's TCP connection: reads TCP_INFO after every monitor interval, and sets SO_MAX_PACING_RATE.

The kernel's own congestion control still bounds what is in flight, so on a link with random loss CUBIC stays slow
under any pace. Any user may make both calls. Linux paces by itself since 4.13, without the queueing discipline fq.
"""

import math
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from autobyte.congestion.datapath.outgoing import coarse
from autobyte.congestion.link import Congestion
from autobyte.congestion.paths import Interval
from autobyte.errors import AutoByteError

SO_MAX_PACING_RATE = 47  # Linux; Python has no name for it
NO_LIMIT = (1 << 32) - 1  # as a pace: none
WRAP = 1 << 32  # the kernel counts segments modulo this
#: Of Linux's struct tcp_info: snd_mss, rtt, total_retrans, bytes_acked, min_rtt, data_segs_out, busy_time, delivered
INFO = struct.Struct("=16xI48xI28xI16xQ20xI4xI8xQ16xI")
GRAIN_S = 0.005  # as `outgoing.GRAIN_S`: on short ways the kernel sends up to 64 KiB at once, however low the pace is
LEAST_S = 0.01  # of an interval: the kernel counts busy time in ticks of some ms, and a look costs tens of µs
BUSY = 0.7  # of an interval: with less time in which there was something to send, it says nothing about the pace
LEAST_PER_S = 500.0  # packets: the kernel's own control goes below it where it must


@dataclass(frozen=True)
class TcpCounts:
    """What the kernel has counted of a connection so far.

    Args:
        segment_bytes: that a segment carries at most.
        round_trip_s: smoothed.
        least_round_trip_s: of the last minutes.
        again: segments that were sent again.
        sent: segments with data, those that were sent again included.
        busy_s: time in which something was to be sent or under way.
        delivered: segments that have arrived.
        acked_bytes: that have arrived.
    """

    segment_bytes: int
    round_trip_s: float
    least_round_trip_s: float
    again: int
    sent: int
    busy_s: float
    delivered: int
    acked_bytes: int

    @classmethod
    def of(cls, sock: socket.socket) -> Self:
        """Ask the kernel.

        Raises:
            AutoByteError: the connection is closed, or the kernel is older than Linux 4.18.
        """
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError as error:
            raise AutoByteError(f"the kernel says nothing about this connection: {error.strerror}") from error
        if len(info) < INFO.size:
            raise AutoByteError(f"this kernel's TCP_INFO has {len(info)} bytes; {INFO.size} are needed (Linux 4.18)")
        segment, round_trip, again, acked, least, sent, busy, delivered = INFO.unpack_from(info)
        return cls(segment, 1e-6 * round_trip, 1e-6 * least, again, sent, 1e-6 * busy, delivered, acked)


def set_pace(sock: socket.socket, bytes_per_s: float) -> None:
    """Let the kernel send at most this much payload (bytes/s); infinite takes the limit away."""
    pace = max(1, int(min(bytes_per_s, NO_LIMIT)))
    sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=I", pace))


Pace = Callable[[socket.socket, float], None]


class TcpPacing:
    """Lets a control that decides by intervals pace a connection; call `step` at the times that it returns.

    An interval in which the application had nothing to send for some of the time leaves the pace as it is. So do the
    one after it, whose round trip is partly the idle connection's, and one in which nothing arrived: the kernel has
    its own time-outs.

    >>> pacing = TcpPacing(sock, Mocc(Service(), Objective(0.8, 0.1, 0.1)), now_s=0.0)
    >>> wake_s = pacing.step(0.05)

    Args:
        sock: a connected TCP socket.
        control: MOCC or Aurora; the others need every packet.
        now_s: by the clock whose times `step` is given.
        pace: sets the rate of payload (bytes/s); default: SO_MAX_PACING_RATE.
    """

    def __init__(self, sock: socket.socket, control: Congestion, *, now_s: float, pace: Pace = set_pace) -> None:
        self._sock, self._control, self._pace = sock, control, pace
        self._before, self._began_s = TcpCounts.of(sock), now_s
        self._round_trip_s = math.nan  # at the end of the last interval
        self._was_busy = False  # in the last interval
        self._apply()

    @property
    def closed(self) -> bool:
        """Whether this end's socket is closed; one that the peer has closed is not."""
        return self._sock.fileno() < 0

    @property
    def bytes_per_s(self) -> float:
        """The pace, of payload."""
        return max(LEAST_PER_S, self._control.packets_per_s) * self._before.segment_bytes

    def step(self, now_s: float) -> float:
        """End the interval if it is over, and set the pace; when to call again.

        Raises:
            AutoByteError: the connection is closed, or the kernel says nothing about it.
            OSError: the kernel refuses the pace.
        """
        if now_s < self._due_s:
            return self._due_s
        now = TcpCounts.of(self._sock)
        self._control.on_interval(self._over(now, now_s))
        self._before, self._began_s = now, now_s
        self._apply()
        return self._due_s

    @property
    def _due_s(self) -> float:
        return self._began_s + max(LEAST_S, self._control.interval_s)

    def _over(self, now: TcpCounts, now_s: float) -> Interval:
        seconds = now_s - self._began_s
        before, least_s = self._before, now.least_round_trip_s
        sent, acked = (now.sent - before.sent) % WRAP, (now.delivered - before.delivered) % WRAP
        lost = (now.again - before.again) % WRAP
        previous_s = now.round_trip_s if math.isnan(self._round_trip_s) else self._round_trip_s
        self._round_trip_s = now.round_trip_s
        busy, was_busy = now.busy_s - before.busy_s >= BUSY * seconds, self._was_busy
        self._was_busy = busy
        if not (busy and was_busy and acked):
            return Interval(self._began_s, now_s, 0, 0, 0, math.nan, 0.0, max(least_s, 1e-6))
        gradient = (now.round_trip_s - previous_s) / seconds
        mean_s = max((now.round_trip_s + previous_s) / 2, least_s)
        over = Interval(self._began_s, now_s, sent, acked, lost, mean_s, gradient, max(least_s, 1e-6))
        return coarse(over, grain_s=GRAIN_S)

    def _apply(self) -> None:
        self._pace(self._sock, self.bytes_per_s)
