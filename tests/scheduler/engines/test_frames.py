"""How a process parts from its peers: when they have what was sent, whatever else they are busy with."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from autobyte.scheduler.engines.frames import HEADER, Connection, Head, Kind, Loop

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


def _never(*_: object) -> None:
    raise AssertionError("nothing was received")
