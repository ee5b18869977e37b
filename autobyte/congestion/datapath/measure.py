"""Congestion controls over a relay, with packets that exist: goodput, round trips, loss, and what it costs in CPU."""

import contextlib
import math
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from autobyte.congestion.datapath.relay import Hop, RelayCounts, relaying, urgent
from autobyte.congestion.datapath.tcp import TcpCounts, TcpPacing
from autobyte.congestion.datapath.transfer import BUFFER, Sent, receive, send
from autobyte.congestion.datapath.tunnel import ADDRESSES, Tunnel, tunnel
from autobyte.congestion.datapath.wire import CHUNK
from autobyte.congestion.link import Congestion
from autobyte.congestion.paths import PACKET_BYTES, Interval
from autobyte.errors import AutoByteError

BIN = 100  # bins of round trips in a factor of e: 1 % each
ADDRESS, PORT = "127.0.0.1", 7070
START_S, END_S = 20.0, 10.0  # that the receiver's process may take
SAMPLE_S = 0.01  # between two looks at a kernel's connection
LAST = 10  # packets that may be on their way to the relay when it ends
TCP_HEADERS = 52  # IP, TCP and its time stamps
TCP_CHUNK = 1 << 16


@dataclass
class Overheard:
    """A congestion control, and what it hears of the time that counts; it may run on the link that is simulated, too.

    >>> heard = Overheard(make_control("cubic", objective), from_s=8.0, to_s=16.0)

    Args:
        control: that decides.
        from_s: what is heard before does not count.
        to_s: nor what is heard from then on.
    """

    control: Congestion
    from_s: float
    to_s: float
    acked: int = 0
    lost: int = 0
    sum_s: float = 0.0
    bins: Counter[int] = field(default_factory=Counter)

    @property
    def packets_per_s(self) -> float:
        """The control's pace."""
        return self.control.packets_per_s

    @property
    def window(self) -> float:
        """The control's."""
        return self.control.window

    @property
    def interval_s(self) -> float:
        """The control's."""
        return self.control.interval_s

    def on_ack(self, now_s: float, round_trip_s: float) -> None:
        """Count it, and pass it on."""
        if self.from_s <= now_s < self.to_s:
            self.acked += 1
            self.sum_s += round_trip_s
            self.bins[math.floor(BIN * math.log(round_trip_s))] += 1
        self.control.on_ack(now_s, round_trip_s)

    def on_loss(self, now_s: float, sent_s: float) -> None:
        """Count it, and pass it on."""
        self.lost += self.from_s <= now_s < self.to_s
        self.control.on_loss(now_s, sent_s)

    def on_interval(self, interval: Interval) -> None:
        """Pass it on."""
        self.control.on_interval(interval)

    def quantile_s(self, share: float) -> float:
        """A round trip that this share of the packets is not above, to 1 %; NaN if nothing arrived."""
        wanted, seen = share * self.acked, 0
        for place in sorted(self.bins):
            seen += self.bins[place]
            if seen >= wanted:
                return math.exp((place + 0.5) / BIN)
        return math.nan

    @property
    def round_trip_s(self) -> float:
        """The mean."""
        return self.sum_s / self.acked if self.acked else math.nan


@dataclass(frozen=True)
class Measured:
    """What a flow got of a relay.

    Args:
        bytes_per_s: that arrived, headers included.
        goodput_bytes_per_s: of them, without headers and without what came twice.
        utilisation: `bytes_per_s` over the relay's rate.
        round_trip_s: mean.
        p99_s: 99th percentile of round trips.
        loss: share of the packets.
        cpu_s_per_gbit: of both ends, in user space and in system calls.
        late_s: by which the relay let packets leave late, on average.
        missed: share of the packets that never came to the relay.
    """

    bytes_per_s: float
    goodput_bytes_per_s: float
    utilisation: float
    round_trip_s: float
    p99_s: float
    loss: float
    cpu_s_per_gbit: float
    late_s: float
    missed: float


def run_over_relay(hop: Hop, control: Congestion, *, seconds: float, settled_s: float) -> Measured:
    """Send over UDP through a relay on this host for some seconds; any user may.

    Args:
        hop: what packets meet.
        control: sets the rate.
        seconds: in all.
        settled_s: of them, before those that count.

    Raises:
        AutoByteError: the relay or the receiver does not start or ends too soon.
    """
    heard = Overheard(control, settled_s, seconds)
    with contextlib.ExitStack() as stack:
        ours, near, far, theirs = (stack.enter_context(_udp((ADDRESS, 0))) for _ in range(4))
        for side, end in ((near, ours), (far, theirs)):
            side.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
            side.connect(end.getsockname())
        with relaying(near.fileno(), far.fileno(), hop) as carried:
            sent, receiver_cpu_s = _send_zeros(ours, near.getsockname(), theirs, heard, seconds)
    return _measured(hop, heard, sent, receiver_cpu_s, carried)


def run_over_tunnel(hop: Hop, control: Congestion, *, seconds: float, settled_s: float) -> Measured:
    """Send over UDP between two network namespaces, through a relay; arguments and errors of `run_over_relay`.

    Raises:
        TestbedError: no right to make network namespaces.
    """
    heard = Overheard(control, settled_s, seconds)
    with tunnel(hop) as hosts:
        with hosts.inside(0):
            ours = _udp((ADDRESSES[0], PORT))
        with hosts.inside(1):
            theirs = _udp((ADDRESSES[1], PORT))
        with ours, theirs:
            sent, receiver_cpu_s = _send_zeros(ours, theirs.getsockname(), theirs, heard, seconds)
    return _measured(hop, heard, sent, receiver_cpu_s, hosts.carried)


def run_kernel(
    hop: Hop,
    algorithm: str,
    *,
    seconds: float,
    settled_s: float,
    paced: Callable[[socket.socket], TcpPacing] | None = None,
) -> Measured:
    """Send over the kernel's TCP between two network namespaces, through a relay, for some seconds.

    Round trips are the kernel's smoothed ones, a look every 10 ms; the loss is what it sent again.

    Args:
        hop: what packets meet.
        algorithm: of the kernel, such as cubic.
        seconds: in all.
        settled_s: of them, before those that count.
        paced: makes what paces the connection, whose time begins at 0; default: nothing does.

    Raises:
        AutoByteError: the kernel has no such algorithm, the connection breaks, or this machine is too busy.
        TestbedError: no right to make network namespaces.
    """
    with tunnel(hop) as hosts:
        sender, receiver = _connection(hosts, algorithm)
        with sender, receiver:
            origin_s, cpu_s = time.monotonic(), time.thread_time()
            zeros, sink = memoryview(bytes(TCP_CHUNK)), bytearray(TCP_CHUNK)
            looks: list[float] = []
            before: TcpCounts | None = None
            pacing = paced(sender) if paced is not None else None
            next_s = now_s = 0.0
            while now_s < seconds:
                if now_s >= settled_s and before is None:
                    before = TcpCounts.of(sender)
                if now_s >= next_s:
                    looks += [TcpCounts.of(sender).round_trip_s] * (before is not None)
                    next_s = now_s + SAMPLE_S
                if pacing is not None:
                    pacing.step(now_s)
                if not (_moves(sender, zeros) + _moves(receiver, sink)):
                    time.sleep(0.001)
                now_s = time.monotonic() - origin_s
            cpu_s, after = time.thread_time() - cpu_s, TcpCounts.of(sender)
    if before is None or not looks:
        raise AutoByteError(f"this machine was too busy to look at the connection within {seconds:g} s")
    counted_s, looks = seconds - settled_s, sorted(looks)
    goodput = (after.acked_bytes - before.acked_bytes) / counted_s
    per_s = goodput * PACKET_BYTES / (PACKET_BYTES - TCP_HEADERS)
    return Measured(
        bytes_per_s=per_s,
        goodput_bytes_per_s=goodput,
        utilisation=per_s / hop.bytes_per_s,
        round_trip_s=sum(looks) / len(looks),
        p99_s=looks[int(0.99 * len(looks))],
        loss=(after.again - before.again) / max(1, after.sent - before.sent),
        cpu_s_per_gbit=cpu_s / max(1e-9, 8e-9 * after.acked_bytes),
        late_s=hosts.carried.mean_late_s,
        missed=_missed(after.sent, hosts.carried),
    )


def _moves(sock: socket.socket, what: memoryview | bytearray) -> int:
    """Send from a view, or receive into a buffer; how many bytes."""
    try:
        return sock.send(what) if isinstance(what, memoryview) else sock.recv_into(what)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise AutoByteError(f"the kernel's connection through the relay broke: {error.strerror}") from error


def _connection(hosts: Tunnel, algorithm: str) -> tuple[socket.socket, socket.socket]:
    with contextlib.ExitStack() as undo:
        try:
            with hosts.inside(1), socket.create_server((ADDRESSES[1], PORT)) as listener:
                with hosts.inside(0):
                    sender = undo.enter_context(socket.socket())
                sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm.encode())
                for sock in (sender, listener):
                    sock.settimeout(END_S)
                sender.connect(listener.getsockname())
                receiver, _ = listener.accept()
        except OSError as error:
            raise AutoByteError(
                f"no connection with the kernel's '{algorithm}' through the relay: {error}"
            ) from error
        undo.pop_all()
    sender.setblocking(False)
    receiver.setblocking(False)
    return sender, receiver


def _udp(address: tuple[str, int]) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(address)
    return sock


def _send_zeros(
    ours: socket.socket, peer: tuple[str, int], theirs: socket.socket, control: Congestion, seconds: float
) -> tuple[Sent, float]:
    """Send for some seconds; what became of it, and the receiver's CPU time."""
    zeros = memoryview(bytes(CHUNK))
    with _receiving(theirs) as process:
        with urgent():
            sent = send(ours, peer, lambda _, now_s: zeros if now_s < seconds else None, control, timeout_s=START_S)
        try:
            said, _ = process.communicate(timeout=END_S)
            return sent, float(said)
        except subprocess.TimeoutExpired as error:
            raise AutoByteError(f"the receiver's process did not end within {END_S:g} s") from error
        except ValueError as error:
            raise AutoByteError(f"the receiver's process ended with status {process.returncode}") from error


@contextlib.contextmanager
def _receiving(sock: socket.socket) -> Iterator["subprocess.Popen[str]"]:
    """A process that takes in one transfer on this socket, and prints its CPU time."""
    words = [sys.executable, "-m", __name__, str(sock.fileno())]
    with subprocess.Popen(words, stdout=subprocess.PIPE, pass_fds=(sock.fileno(),), text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _measured(hop: Hop, heard: Overheard, sent: Sent, receiver_cpu_s: float, carried: RelayCounts) -> Measured:
    per_s = heard.acked * PACKET_BYTES / (heard.to_s - heard.from_s)
    return Measured(
        bytes_per_s=per_s,
        goodput_bytes_per_s=per_s * CHUNK / PACKET_BYTES,
        utilisation=per_s / hop.bytes_per_s,
        round_trip_s=heard.round_trip_s,
        p99_s=heard.quantile_s(0.99),
        loss=heard.lost / max(1, heard.acked + heard.lost),
        cpu_s_per_gbit=(sent.cpu_s + receiver_cpu_s) / max(1e-9, 8e-9 * sent.nbytes),
        late_s=carried.mean_late_s,
        missed=_missed(sent.packets, carried),
    )


def _missed(sent: int, carried: RelayCounts) -> float:
    """Share of packets that a full buffer before the relay has lost."""
    return max(0, sent - carried.came - LAST) / max(1, sent)


def main(words: list[str]) -> None:
    """The receiver's process: the descriptor of its socket; prints its CPU time."""
    with socket.socket(fileno=int(words[0])) as sock, urgent():
        sys.stdout.write(str(receive(sock, lambda chunk, body: None, wait_s=START_S, timeout_s=START_S).cpu_s))


if __name__ == "__main__":
    main(sys.argv[1:])
