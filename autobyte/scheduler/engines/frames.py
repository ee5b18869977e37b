"""Messages over TCP, by one thread: frames go out in order, payloads come in straight to where they belong.

A frame is a fixed header and raw bytes. Nothing that is received is ever interpreted as code.
"""

import contextlib
import fcntl
import logging
import os
import selectors
import socket
import struct
import termios
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

log = logging.getLogger("autobyte")

HEADER = struct.Struct("!BBxxIIId")  # kind, dtype, step, block, payload bytes, a number
LARGEST = 1 << 31  # bytes of any payload
AT_ONCE = 1 << 18  # bytes for which the thread wakes: at each wake, Python costs about as much as copying that many
UNSENT = 1 << 19  # bytes that the system holds unsent; with less, a fast network is not kept busy
POLL_S = 0.2  # how often who waits for the end looks whether that has any use
LOOK_S = 0.02  # how often who parts looks whether everything has reached the peers
GRACE_S = (
    1.0  # for their goodbye, once it has: a socket that is closed before takes from them what they have not read
)


class Kind(IntEnum):
    """What a frame says."""

    PUSH = 1  # a worker's part of a block, to the server that keeps it
    ACK = 2  # the server has it
    SUM = 3  # the sum, to a worker
    BYE = 4  # nothing more will come from here
    LOST = 5  # a worker (its rank stands for the block) is gone: what waits for it will not come
    PICK = 6  # the leader starts this block next
    KEEP = 7  # a worker's part of a block, whose sum is sent when it is asked for; the number is p of its norm
    NORM = 8  # the server keeps the sum of its part, and the number is the norm
    PULL = 9  # a worker asks for a sum that is kept


KINDS = {int(kind): kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class Head:
    """A frame's header."""

    kind: Kind
    dtype: int
    step: int
    block: int
    nbytes: int
    number: float = 0.0


Place = Callable[["Connection", Head], memoryview]
Taken = Callable[["Connection", Head], None]


#: Connections of this process. A child that is forked must not hold them: a data loader's worker lives on for a while
#: after its parent was killed, and the peers would take the parent for alive.
_open: "weakref.WeakSet[Connection]" = weakref.WeakSet()


def _close_in_child() -> None:
    """Close the copies; the parent's stay as they are."""
    for connection in list(_open):
        connection.sock.close()


os.register_at_fork(after_in_child=_close_in_child)


class Connection:
    """One TCP connection to a peer; used by the loop's thread only.

    Args:
        sock: connected, its hello exchanged.
        peer: the rank at the other end.
        largest: bytes of the largest payload that it may send; room for more is never made.
    """

    def __init__(self, sock: socket.socket, peer: int, *, largest: int = LARGEST) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # else megabytes lie in the system, which nothing urgent overtakes
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
        self.sock = sock
        _open.add(self)
        self.peer = peer
        self.largest = largest
        self.ended = False  # the peer said BYE
        self._frames: deque[list[memoryview]] = deque()
        self._urgent: deque[list[memoryview]] = deque()
        self._sending: list[memoryview] = []  # what is left of the frame that has begun
        self._header = bytearray(HEADER.size)
        self._target = memoryview(self._header)
        self._filled = 0
        self._head: Head | None = None
        self._lowest = 1  # bytes for which the system wakes the thread

    def queue(self, head: Head, payload: memoryview | None = None, *, urgent: bool = False) -> None:
        """Send a frame after those queued before; an urgent one before all that have not begun."""
        packed = memoryview(HEADER.pack(head.kind, head.dtype, head.step, head.block, head.nbytes, head.number))
        parts = [packed] if payload is None or not len(payload) else [packed, payload]
        (self._urgent if urgent else self._frames).append(parts)

    @property
    def waiting(self) -> bool:
        """Whether anything is left to send."""
        return bool(self._sending or self._urgent or self._frames)

    @property
    def arriving(self) -> bool:
        """Whether a part of a message has come: the thread need not be woken for what follows."""
        return self._head is not None or self._filled > 0

    @property
    def delivered(self) -> bool:
        """Whether all that was queued has reached the peer's host."""
        if self.waiting:
            return False
        with contextlib.suppress(OSError, ValueError):  # the system does not tell, or the socket is closed
            return not any(fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4)))
        return True

    def send(self) -> None:
        """Send what the socket takes."""
        while self.waiting:
            if not self._sending:
                self._sending = (self._urgent or self._frames).popleft()
            try:
                count = self.sock.sendmsg(self._sending)
            except BlockingIOError:
                return
            while self._sending and count >= len(self._sending[0]):
                count -= len(self._sending.pop(0))
            if count:
                self._sending[0] = self._sending[0][count:]

    def receive(self, place: Place, taken: Taken) -> None:
        """Receive what is there; `place` says where a payload goes, `taken` is told when it is complete.

        Raises:
            ConnectionError: the peer is gone, or sends what is no frame.
        """
        while True:
            try:
                count = self.sock.recv_into(self._target[self._filled :])
            except BlockingIOError:
                self._rest(min(len(self._target) - self._filled, AT_ONCE))
                return
            if count == 0:
                raise ConnectionError(f"rank {self.peer} closed its connection")
            self._filled += count
            if self._filled == len(self._target):
                self._complete(place, taken)

    def _rest(self, nbytes: int) -> None:
        """Let the system wake the thread when so many bytes are here, or the connection ends."""
        if nbytes != self._lowest:
            self._lowest = nbytes
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)

    def _complete(self, place: Place, taken: Taken) -> None:
        if self._head is None:
            number_of_kind, dtype, step, block, nbytes, number = HEADER.unpack(self._header)
            kind = KINDS.get(number_of_kind)
            if kind is None:
                raise ConnectionError(f"rank {self.peer} sent what is no frame")
            if nbytes > self.largest:
                raise ConnectionError(f"rank {self.peer} sent a frame of {nbytes} bytes for {self.largest} at most")
            self._head = Head(kind, dtype, step, block, nbytes, number)
            if nbytes:
                self._target, self._filled = place(self, self._head), 0
                return
        head, self._head = self._head, None
        self._target, self._filled = memoryview(self._header), 0
        if head.kind is Kind.BYE:
            self.ended = True
        taken(self, head)


class Loop:
    """The thread that sends and receives for all connections of a process; it ends when they have.

    Args:
        place, taken: as `Connection.receive` calls them.
        lost: called with a connection and the error that ended it, unless the peer had said goodbye.
        failed: called with what went wrong in one of these, or in a job; all connections end then.
        quiet: called when nothing has woken the thread for `patience_s`; part of a message may have come.
    """

    def __init__(
        self,
        place: Place,
        taken: Taken,
        lost: Callable[[Connection, Exception], None],
        failed: Callable[[ConnectionError], None],
        quiet: Callable[[], None] = lambda: None,
    ) -> None:
        self._place, self._taken, self._lost, self._failed, self._quiet = place, taken, lost, failed, quiet
        self.patience_s: float | None = None  # None is for ever; for the loop's thread
        self._selector = selectors.DefaultSelector()
        self._connections: list[Connection] = []
        self._jobs: deque[Callable[[], None]] = deque()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._parting = False  # nothing more will be asked to be sent
        self._delivered_s: float | None = None  # when all of it was seen to have reached the peers
        self._following = False  # parts when all peers have
        self._thread = threading.Thread(target=self._run, name="autobyte-frames", daemon=True)

    def start(self, connections: list[Connection]) -> None:
        """Begin, with the connections there are."""
        self._connections = list(connections)
        for connection in connections:
            self._selector.register(connection.sock, selectors.EVENT_READ, connection)
        self._thread.start()

    def do(self, job: Callable[[], None]) -> None:
        """Have something done by the loop's thread."""
        self._jobs.append(job)
        if threading.current_thread() is not self._thread:
            with contextlib.suppress(OSError):  # full: it is about to wake; closed: it has ended
                self._wake.send(b"\0")

    def flush(self, connection: Connection) -> None:
        """Send what is queued; by the loop's thread only."""
        if connection.sock.fileno() < 0:
            return
        try:
            connection.send()
        except OSError as error:
            self._end(connection, error)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.waiting else 0)
        if self._selector.get_key(connection.sock).events != events:
            self._selector.modify(connection.sock, events, connection)

    def close(self, timeout_s: float) -> None:
        """Say goodbye, and end when everything queued has reached the peers; or at the timeout.

        Peers that have not said goodbye a second later are busy with something else.
        """
        self.do(self._part)
        self._thread.join(timeout_s)
        self.do(self._abandon)
        self._thread.join(1)

    def join(self, over: Callable[[], bool], timeout_s: float) -> None:
        """Wait until every peer has said goodbye; then say the same, and end.

        Args:
            over: whether there is no use in waiting any longer.
            timeout_s: for what is queued by then.
        """
        self.do(self._follow)
        while self._thread.is_alive():
            self._thread.join(POLL_S)
            if over():
                self.close(timeout_s)

    def _abandon(self) -> None:
        self._connections = []

    def _follow(self) -> None:
        self._following = True

    def _part(self) -> None:
        self._parting = True
        for connection in self._connections:
            connection.queue(Head(Kind.BYE, 0, 0, 0, 0))
            self.flush(connection)

    def _run(self) -> None:
        try:
            while self._turned():
                pass
        finally:
            for held in list(self._selector.get_map().values()):
                held.fileobj.close()  # type: ignore[union-attr]
            self._wake.close()
            self._selector.close()

    def _turned(self) -> bool:
        try:
            return self._turn()
        except Exception as error:  # of whoever was called: what comes after it would go to the wrong place
            log.exception("an engine has failed on this rank")
            self._failed(ConnectionError(f"{type(error).__name__} on this rank: {error}"))
            for connection in self._connections:
                self._close(connection)
            return True

    def _turn(self) -> bool:
        """Do what is to be done, wait for more to come; whether there may be any."""
        while self._jobs:
            self._jobs.popleft()()
        if all(c.ended for c in self._connections):
            if self._following and not self._parting:
                self._part()
            if self._parting and not any(c.waiting for c in self._connections):
                return False
        if self._parting and self._is_over():
            return False
        happened = self._selector.select(LOOK_S if self._parting else self.patience_s)
        if not happened:
            self._quiet()
        for key, events in happened:
            if key.data is None:
                self._woken.recv(4096)
                continue
            if events & selectors.EVENT_READ:
                self._receive(key.data)
            if events & selectors.EVENT_WRITE:
                self.flush(key.data)
        return True

    def _is_over(self) -> bool:
        """Whether peers have what was sent, and time to say goodbye."""
        if self._delivered_s is None and all(c.ended or c.delivered for c in self._connections):
            self._delivered_s = time.monotonic()
        return self._delivered_s is not None and time.monotonic() > self._delivered_s + GRACE_S

    def _receive(self, connection: Connection) -> None:
        try:
            connection.receive(self._place, self._taken)
        except OSError as error:
            self._end(connection, error)

    def _end(self, connection: Connection, error: Exception) -> None:
        if self._close(connection) and not connection.ended:
            self._lost(connection, error)

    def _close(self, connection: Connection) -> bool:
        """Whether it was open."""
        if connection.sock.fileno() < 0:
            return False
        self._selector.unregister(connection.sock)
        connection.sock.close()
        self._connections = [other for other in self._connections if other is not connection]
        return True
