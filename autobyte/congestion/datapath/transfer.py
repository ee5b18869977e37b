"""The two ends of a transfer over UDP: `send` paces and sends again, `receive` acknowledges; each wait is limited."""

import contextlib
import errno
import math
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autobyte.congestion.datapath.incoming import Incoming
from autobyte.congestion.datapath.outgoing import Outgoing
from autobyte.congestion.datapath.wire import (
    ACK,
    CHUNK,
    DATA,
    DATA_HEAD,
    END,
    HEAD,
    HELLO,
    MOST_ACKS,
    PACKET,
    RECEIPT,
    TOTAL,
    WELCOME,
    acknowledged,
    acknowledgement,
    headed,
)
from autobyte.congestion.link import Congestion
from autobyte.errors import AutoByteError

AGAIN_S = 0.2  # between two hellos, or two ends
TIMEOUT_S = 5.0
QUANTUM_S, QUANTUM = 0.001, 0.02  # packets leave together that are due within it: at most, and in round trips
BUFFER = 4 << 20  # bytes that a socket may hold
SEGMENTS = 40  # packets that one call hands to the kernel
UDP_SEGMENT, UDP_GRO = 103, 104  # Linux; Python has no name for them
SEGMENT = struct.Struct("=i")  # what UDP_GRO tells: bytes of each packet of a train, but for the last
LARGEST = 2048  # bytes of a message
MOST_READS = 64  # packets, or trains of them, before they are acknowledged
LINGER_S = 0.5  # that the receiver answers a sender that has not heard of its end

Source = Callable[[int, float], memoryview | None]  # the bytes of a chunk, or None after the last


class PeerGone(AutoByteError):  # noqa: N818 - the name says what happened
    """The other end does not answer."""


@dataclass(frozen=True)
class Sent:
    """What became of a transfer.

    Args:
        nbytes: that the receiver has, each once.
        seconds: from the first packet to the last acknowledgement.
        packets: that left.
        lost: of them.
        twice: packets that the receiver had already.
        cpu_s: of the sender's thread.
    """

    nbytes: int
    seconds: float
    packets: int
    lost: int
    twice: int
    cpu_s: float


def send(
    sock: socket.socket,
    peer: tuple[str, int],
    source: Source,
    control: Congestion,
    *,
    timeout_s: float = TIMEOUT_S,
) -> Sent:
    """Send chunks until the source ends and all have arrived.

    Args:
        sock: UDP.
        peer: where `receive` listens.
        source: called with a place and the time; its chunks are as long as `CHUNK`, but for the last.
        control: sets the rate.
        timeout_s: longest wait for any answer.

    Raises:
        PeerGone: the receiver does not answer in time.
    """
    with _explained(peer):
        sock.connect(peer)
        sock.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER)
        transfer = secrets.randbits(63)
        silent = f"nobody answers at {_name(peer)} within {timeout_s:g} s: start `autobyte congestion serve` there"
        _ask(sock, HEAD.pack(HELLO, transfer), WELCOME, transfer, timeout_s, silent)
        sender = _Sender(sock, transfer, source, control)
        begun_s = time.thread_time()
        seconds = sender.run(peer, timeout_s)
        cpu_s = time.thread_time() - begun_s
        end = TOTAL.pack(END, transfer, sender.out.chunk, sender.nbytes)
        silent = f"{_name(peer)} acknowledged all {sender.nbytes} bytes, and no end of it within {timeout_s:g} s"
        receipt = _ask(sock, end, RECEIPT, transfer, timeout_s, silent)
    _, _, nbytes, twice = TOTAL.unpack_from(receipt)
    if nbytes != sender.nbytes:
        raise PeerGone(f"{_name(peer)} has {nbytes} of {sender.nbytes} bytes; send them again")
    return Sent(nbytes, seconds, sender.out.number, sender.out.tally.total_lost, twice, cpu_s)


class _Sender:
    """The loop of a sender: acknowledgements in, packets out, and a wait until the next of either."""

    def __init__(self, sock: socket.socket, transfer: int, source: Source, control: Congestion) -> None:
        self.out, self.nbytes = Outgoing(control, self._is_there), 0
        self._sock, self._transfer, self._source = sock, transfer, source
        self._bodies: dict[int, memoryview] = {}  # of chunks that have not arrived
        self._least_s = math.inf  # round trip

    def run(self, peer: tuple[str, int], timeout_s: float) -> float:
        """Until all has arrived; the seconds it took."""
        out, origin_s, answered_s = self.out, time.monotonic(), 0.0
        while True:
            now_s = time.monotonic() - origin_s
            if self._hear(now_s):
                answered_s = now_s
            if out.done:
                return now_s
            if not out.under_way:
                answered_s = now_s  # nothing is expected
            if now_s - answered_s > timeout_s:
                raise PeerGone(f"{_name(peer)} has acknowledged nothing for {timeout_s:g} s")
            if now_s >= out.silence_s():
                out.despair(now_s)
            if now_s >= out.over_s():
                out.next_interval(now_s)
            self._leave(now_s)
            wait_s = min(out.due_s(now_s), out.over_s(), out.silence_s(), answered_s + timeout_s) - now_s
            quantum_s = min(QUANTUM_S, QUANTUM * self._least_s)
            if wait_s > 0:
                select.select([self._sock], [], [], max(wait_s, quantum_s))

    def _is_there(self, chunk: int, now_s: float) -> bool:
        if chunk not in self._bodies:
            body = self._source(chunk, now_s)
            if body is None:
                return False
            self._bodies[chunk] = body
            self.nbytes += len(body)
        return True

    def _hear(self, now_s: float) -> bool:
        """Take in all acknowledgements that have come; whether there was one."""
        out, heard = self.out, False
        for message in _messages(self._sock):
            if headed(message) != (ACK, self._transfer):
                continue
            heard = True
            for number in acknowledged(message):
                chunk = out.under_way.get(number)
                round_trip_s = out.arrived(now_s, number)
                if chunk is not None:
                    del self._bodies[chunk[0]]
                    self._least_s = min(self._least_s, round_trip_s)
        return heard

    def _leave(self, now_s: float) -> None:
        """Send what is due, as many packets with one call as the kernel takes."""
        out = self.out
        while out.due_s(now_s) <= now_s:
            parts: list[bytes | memoryview] = []
            while out.due_s(now_s) <= now_s and len(parts) < 2 * SEGMENTS:
                number, chunk = out.depart(now_s)
                body = self._bodies[chunk]
                parts += DATA_HEAD.pack(DATA, self._transfer, number, chunk), body
                if len(body) < CHUNK:
                    break  # only the last packet of a call may be shorter
            _segments_leave(self._sock, parts)


def _segments_leave(sock: socket.socket, parts: list[bytes | memoryview]) -> None:
    """Send packets, each of a head and a body; the kernel cuts them apart. What it does not take is lost."""
    cut = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", PACKET))]
    with contextlib.suppress(BlockingIOError):
        try:
            sock.sendmsg(parts, cut if len(parts) > 2 else [])
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EIO, errno.ENOPROTOOPT, errno.EMSGSIZE) or len(parts) == 2:
                raise
            for place in range(0, len(parts), 2):
                sock.sendmsg(parts[place : place + 2])


@dataclass(frozen=True)
class Received:
    """What a transfer brought.

    Args:
        nbytes: each once.
        chunks: that they came in.
        twice: packets whose chunk was there already.
        seconds: from the first message to the last.
        cpu_s: of the receiver's thread.
    """

    nbytes: int
    chunks: int
    twice: int
    seconds: float
    cpu_s: float


def receive(
    sock: socket.socket,
    store: Callable[[int, memoryview], None],
    *,
    wait_s: float = math.inf,
    timeout_s: float = TIMEOUT_S,
) -> Received:
    """Take in one transfer.

    Args:
        sock: UDP, bound.
        store: called once for each chunk, with its place and its bytes; a chunk n begins at byte n × `CHUNK`.
        wait_s: for a sender's hello; whoever says it first is the sender.
        timeout_s: longest silence of the sender.

    Raises:
        PeerGone: no sender came, or it went silent or cannot be answered.
        AutoByteError: the sender is at its end, and something is missing.
    """
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, BUFFER)
    with contextlib.suppress(OSError):  # older than Linux 5.0
        sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    sock.setblocking(False)
    return _Receiver(sock, store).run(wait_s, timeout_s)


class _Receiver:
    """The loop of a receiver: all that has come is taken in, and acknowledged at once."""

    def __init__(self, sock: socket.socket, store: Callable[[int, memoryview], None]) -> None:
        self._sock, self._incoming = sock, Incoming(store)
        self._transfer = -1
        self._peer: tuple[str, int] | None = None
        self._buffer = bytearray(1 << 16)
        self._total: tuple[int, int] | None = None  # chunks and bytes, once the sender has said its end

    def run(self, wait_s: float, timeout_s: float) -> Received:
        """One transfer."""
        own, begun_s, got = _name(self._sock.getsockname()[:2]), time.thread_time(), self._incoming
        if not self._hears(wait_s):
            raise PeerGone(f"nobody began a transfer to {own} within {wait_s:g} s")
        assert self._peer is not None
        began_s = heard_s = time.monotonic()
        while self._hears(timeout_s if self._total is None else LINGER_S):
            heard_s = time.monotonic()
        if self._total is None:
            raise PeerGone(f"{_name(self._peer)} went silent for {timeout_s:g} s, after {got.nbytes} bytes")
        if self._total != (got.chunks, got.nbytes):
            chunks, nbytes = self._total
            raise AutoByteError(
                f"{_name(self._peer)} sent {nbytes} bytes in {chunks} chunks, and {got.nbytes} bytes in {got.chunks} "
                "arrived: send them again"
            )
        return Received(got.nbytes, got.chunks, got.twice, heard_s - began_s, time.thread_time() - begun_s)

    def _hears(self, seconds: float) -> bool:
        """Take in what comes until something is of this transfer; False if nothing is for this long."""
        until_s = time.monotonic() + min(seconds, threading.TIMEOUT_MAX)
        while not self._take():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            select.select([self._sock], [], [], left_s)
        return True

    def _take(self) -> bool:
        """Take in what has come; whether any of it was of this transfer."""
        numbers: list[int] = []
        ours, buffer = False, memoryview(self._buffer)
        for _ in range(MOST_READS):
            try:
                size, told, _, peer = self._sock.recvmsg_into([buffer], socket.CMSG_SPACE(SEGMENT.size))
            except BlockingIOError:
                break
            except ConnectionRefusedError:
                continue  # somebody whom we answered is gone
            segment = SEGMENT.unpack(told[0][2])[0] if told else max(1, size)  # only trains of packets tell it
            for start in range(0, size, segment):
                ours |= self._read(buffer[start : min(size, start + segment)], peer, numbers)
        for start in range(0, len(numbers), MOST_ACKS):
            self._answer(acknowledgement(self._transfer, numbers[start : start + MOST_ACKS]))
        return ours

    def _read(self, message: memoryview, peer: tuple[str, int], numbers: list[int]) -> bool:
        kind, transfer = headed(message)
        if kind == HELLO and self._peer is None:
            self._transfer, self._peer = transfer, peer
        if transfer != self._transfer or peer != self._peer:
            return False  # of a stranger, or of an earlier transfer
        if kind == HELLO:
            self._answer(HEAD.pack(WELCOME, transfer))
        elif kind == DATA and len(message) > DATA_HEAD.size:
            _, _, number, chunk = DATA_HEAD.unpack_from(message)
            if self._incoming.take(chunk, message[DATA_HEAD.size :]):
                numbers.append(number)
        elif kind == END and len(message) == TOTAL.size:
            got = self._incoming
            self._total = TOTAL.unpack_from(message)[2:]
            self._answer(TOTAL.pack(RECEIPT, transfer, got.nbytes, got.twice))
        return True

    def _answer(self, message: bytes) -> None:
        assert self._peer is not None
        with _explained(self._peer), contextlib.suppress(BlockingIOError, ConnectionRefusedError):  # asked again
            self._sock.sendto(message, self._peer)


def _ask(sock: socket.socket, question: bytes, kind: bytes, transfer: int, timeout_s: float, silent: str) -> bytes:
    """Send a message until an answer of this kind comes.

    Raises:
        PeerGone: none comes; the line ends with what `silent` says.
    """
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        with contextlib.suppress(ConnectionRefusedError, BlockingIOError):  # it may be there in a moment
            sock.send(question)
        again_s = time.monotonic() + AGAIN_S
        while (left_s := again_s - time.monotonic()) > 0:
            select.select([sock], [], [], left_s)
            with contextlib.suppress(ConnectionRefusedError):
                for message in _messages(sock):
                    if headed(message) == (kind, transfer):
                        return message
    raise PeerGone(silent)


def _messages(sock: socket.socket) -> Iterator[bytes]:
    """All that has come to a socket."""
    while True:
        try:
            yield sock.recv(LARGEST)
        except BlockingIOError:
            return


@contextlib.contextmanager
def _explained(peer: tuple[str, int]) -> Iterator[None]:
    """Turn what the kernel says of a peer into one line."""
    try:
        yield
    except AutoByteError:
        raise  # of a file that is sent, say
    except ConnectionRefusedError as error:
        raise PeerGone(f"nobody listens at {_name(peer)} any more") from error
    except OSError as error:
        raise PeerGone(f"{_name(peer)} is not reached: {error.strerror or error}") from error


def _name(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
