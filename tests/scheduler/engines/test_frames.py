"""How a process parts from its peers, and when what they send wakes it.

It parts when they have what was sent, whatever else they are busy with.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from autobyte.scheduler.engines.frames import AT_ONCE, HEADER, Connection, Head, Kind, Loop

NBYTES = 16 << 20  # more than sockets hold


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection to a peer, and the peer's end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        own = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
    with own, peer:
        yield own, peer


def parting(sock: socket.socket, timeout_s: float) -> float:
    """Send a payload and part; how long that takes (s)."""
    loop = Loop(_never, _never, _never, _never)
    connection = Connection(sock, 1)
    loop.start([connection])
    head = Head(Kind.PUSH, 0, 1, 0, NBYTES)

    def send() -> None:
        connection.queue(head, memoryview(bytes(NBYTES)))
        loop.flush(connection)

    loop.do(send)
    began_s = time.monotonic()
    loop.close(timeout_s)
    return time.monotonic() - began_s


def test_who_parts_does_not_wait_for_a_peer_that_is_busy(sockets: tuple[socket.socket, socket.socket]) -> None:
    own, peer = sockets
    got: list[int] = []

    def read_slowly() -> None:
        time.sleep(0.5)
        while count := len(peer.recv(1 << 20)):
            got.append(count)

    reader = threading.Thread(target=read_slowly)
    reader.start()
    took_s = parting(own, timeout_s=60)
    reader.join(10)
    assert sum(got) == NBYTES + 2 * HEADER.size  # the payload and the goodbye
    assert took_s < 20


def test_who_parts_waits_until_the_peer_has_what_was_sent(sockets: tuple[socket.socket, socket.socket]) -> None:
    own, _ = sockets
    assert parting(own, timeout_s=3) >= 3  # it reads nothing


class Receiver:
    """A loop that receives payloads into memory of its own."""

    def __init__(self, sock: socket.socket) -> None:
        self.connection = Connection(sock, 1)
        self.payloads: list[bytearray] = []
        self.heads: list[Head] = []
        self.woken = 0
        self.lost = threading.Event()
        self._changed = threading.Condition()
        receive = self.connection.receive

        def counted(*how: Any) -> None:
            self.woken += 1
            receive(*how)

        self.connection.receive = counted  # type: ignore[method-assign]
        self._loop = Loop(self._place, self._taken, lambda *_: self.lost.set(), _never)
        self._loop.start([self.connection])

    def wait(self, frames: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.heads) == frames, 20)

    def close(self) -> None:
        self._loop.close(0.1)

    def _place(self, _: Connection, head: Head) -> memoryview:
        self.payloads.append(bytearray(head.nbytes))
        return memoryview(self.payloads[-1])

    def _taken(self, _: Connection, head: Head) -> None:
        with self._changed:
            self.heads.append(head)
            self._changed.notify_all()


@pytest.fixture
def receiver(sockets: tuple[socket.socket, socket.socket]) -> Iterator[Receiver]:
    made = Receiver(sockets[0])
    yield made
    made.close()


def header(nbytes: int, kind: Kind = Kind.PUSH) -> bytes:
    return HEADER.pack(kind, 0, 1, 0, nbytes, 0.0)


@pytest.mark.parametrize("nbytes", [1, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE + 5])
def test_frames_arrive_whole_however_long_they_are(
    nbytes: int, receiver: Receiver, sockets: tuple[socket.socket, socket.socket]
) -> None:
    payload = os.urandom(nbytes)
    sockets[1].sendall(header(nbytes))
    time.sleep(0.05)  # the thread waits for the payload meanwhile, then for its last byte
    sockets[1].sendall(payload[:-1])
    time.sleep(0.05)
    sockets[1].sendall(payload[-1:] + header(0, Kind.ACK) + header(nbytes) + payload)
    receiver.wait(3)
    assert receiver.payloads == [payload, payload]
    assert [head.kind for head in receiver.heads] == [Kind.PUSH, Kind.ACK, Kind.PUSH]


def test_a_payload_does_not_wake_the_thread_for_every_segment(
    receiver: Receiver, sockets: tuple[socket.socket, socket.socket]
) -> None:
    pieces = 256
    sockets[1].sendall(header(NBYTES))
    for _ in range(pieces):
        sockets[1].sendall(bytes(NBYTES // pieces))
        time.sleep(5e-4)  # else several come at once
    receiver.wait(1)
    assert receiver.woken <= pieces / 2  # the system may wake it before, while its window is small


def test_a_peer_that_ends_within_a_payload_is_lost_at_once(
    receiver: Receiver, sockets: tuple[socket.socket, socket.socket]
) -> None:
    assert not receiver.connection.arriving
    sockets[1].sendall(header(NBYTES))
    deadline_s = time.monotonic() + 10
    while not receiver.connection.arriving:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    sockets[1].sendall(bytes(1000))  # too little to wake the thread
    assert not receiver.lost.wait(0.05)
    sockets[1].close()
    assert receiver.lost.wait(5)


def _never(*_: object) -> None:
    raise AssertionError("nothing was received")
