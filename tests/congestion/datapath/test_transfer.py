"""Bytes that travel: all arrive, once, through a relay that loses some; and every wait ends with one clear line."""

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from autobyte.congestion.datapath import transfer
from autobyte.congestion.datapath.relay import Hop, relaying
from autobyte.congestion.datapath.transfer import PeerGone, Received, receive, send
from autobyte.congestion.datapath.wire import CHUNK, DATA, DATA_HEAD, END, HEAD, HELLO, TOTAL, WELCOME, headed
from autobyte.congestion.link import SteadyPace
from autobyte.errors import AutoByteError, FileError


@pytest.fixture
def ends() -> Iterator[list[socket.socket]]:
    """Four UDP sockets on this host: sender, relay's two sides, receiver."""
    socks = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(4)]
    for sock in socks:
        sock.bind(("127.0.0.1", 0))
    yield socks
    for sock in socks:
        sock.close()


class Receiving(threading.Thread):
    """Takes in a transfer; `data` is what came."""

    def __init__(self, sock: socket.socket, **limits: float) -> None:
        super().__init__()
        self.data, self.got, self.error = bytearray(), None, None
        self._sock, self._limits = sock, limits
        self.got: Received | None
        self.error: Exception | None

    def run(self) -> None:
        try:
            self.got = receive(self._sock, self._store, **self._limits)
        except AutoByteError as error:
            self.error = error

    def _store(self, chunk: int, body: memoryview) -> None:
        self.data.extend(bytes(max(0, chunk * CHUNK + len(body) - len(self.data))))
        self.data[chunk * CHUNK : chunk * CHUNK + len(body)] = body


def chunks_of(data: bytes):
    view = memoryview(data)
    return lambda chunk, now_s: view[chunk * CHUNK : (chunk + 1) * CHUNK] or None


def test_all_bytes_arrive_once_through_a_relay_that_loses_some(ends: list[socket.socket]) -> None:
    ours, near, far, theirs = ends
    data = random.Random(0).randbytes(600_000)
    near.connect(ours.getsockname())
    far.connect(theirs.getsockname())
    receiver = Receiving(theirs, wait_s=10.0)
    receiver.start()
    with relaying(near.fileno(), far.fileno(), Hop(2.5e6, 0.005, 50, loss=0.03)) as carried:
        sent = send(ours, near.getsockname(), chunks_of(data), SteadyPace(1500.0))
        receiver.join(5.0)
    assert receiver.data == data
    assert receiver.got is not None
    assert sent.nbytes == receiver.got.nbytes == len(data)
    gone, others = carried.lost + carried.dropped, carried.came - sent.packets  # hellos and ends
    assert 0 < gone - others <= sent.packets - receiver.got.chunks - receiver.got.twice <= gone
    assert carried.came == carried.lost + carried.dropped + carried.left


def test_trains_of_packets_are_taken_apart(ends: list[socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    leave, trains = transfer._segments_leave, list[int]()

    def noted(sock: socket.socket, parts: list[bytes | memoryview]) -> None:
        trains.append(len(parts) // 2)
        leave(sock, parts)

    monkeypatch.setattr(transfer, "_segments_leave", noted)
    data = random.Random(1).randbytes(2_000_000)
    receiver = Receiving(ends[3], wait_s=10.0)
    receiver.start()
    sent = send(ends[0], ends[3].getsockname(), chunks_of(data), SteadyPace(1e5, 500))
    receiver.join(5.0)
    assert receiver.data == data
    assert sent.packets >= -(-len(data) // CHUNK)
    assert max(trains) > 1


def test_a_train_is_cut_where_its_sender_cut_it(ends: list[socket.socket]) -> None:
    ours, _, _, theirs = ends
    receiver = Receiving(theirs, wait_s=5.0)
    receiver.start()
    ours.connect(theirs.getsockname())
    ours.send(HEAD.pack(HELLO, 5))
    ours.recv(100)  # the welcome
    parts = [DATA_HEAD.pack(DATA, 5, number, number) + b"abcdefgh" for number in range(3)]
    cut = (socket.IPPROTO_UDP, transfer.UDP_SEGMENT, struct.pack("=H", len(parts[0])))
    ours.sendmsg(parts, [cut])
    ours.send(TOTAL.pack(END, 5, 3, 24))
    receiver.join(5.0)
    assert receiver.got is not None, receiver.error
    assert (receiver.got.chunks, receiver.got.nbytes) == (3, 24)


def test_a_file_that_cannot_be_read_is_not_the_networks_fault(ends: list[socket.socket]) -> None:
    receiver = Receiving(ends[3], wait_s=5.0, timeout_s=0.3)
    receiver.start()

    def read(chunk: int, now_s: float) -> memoryview:
        raise FileError("cannot read data.bin: Input/output error")

    with pytest.raises(FileError, match=r"cannot read data\.bin: Input/output error"):
        send(ends[0], ends[3].getsockname(), read, SteadyPace(100.0))
    receiver.join(5.0)


def test_nobody_answers(ends: list[socket.socket]) -> None:
    host, port = ends[3].getsockname()
    with pytest.raises(PeerGone, match=f"nobody answers at {host}:{port} within 0.3 s: start `autobyte congestion"):
        send(ends[0], (host, port), chunks_of(b"x"), SteadyPace(100.0), timeout_s=0.3)


def test_nobody_sends(ends: list[socket.socket]) -> None:
    with pytest.raises(PeerGone, match=r"nobody began a transfer to 127.0.0.1:\d+ within 0.1 s"):
        receive(ends[3], lambda chunk, body: None, wait_s=0.1)


def test_a_receiver_that_is_gone_ends_the_transfer(ends: list[socket.socket]) -> None:
    ours, _, _, theirs = ends
    to = theirs.getsockname()

    def leave(chunk: int, body: memoryview) -> None:
        if chunk == 20:
            raise InterruptedError

    def take_in() -> None:
        with theirs, contextlib.suppress(InterruptedError):
            receive(theirs, leave, wait_s=5.0)

    receiver = threading.Thread(target=take_in)
    receiver.start()
    zeros = memoryview(bytes(CHUNK))
    with pytest.raises(PeerGone, match=r"nobody listens at 127.0.0.1:\d+ any more"):
        send(ours, to, lambda chunk, now_s: zeros, SteadyPace(400.0), timeout_s=2.0)
    receiver.join(5.0)


def test_a_receiver_that_falls_silent_ends_the_transfer(ends: list[socket.socket]) -> None:
    ours, _, _, theirs = ends

    def welcome() -> None:
        message, peer = theirs.recvfrom(100)
        theirs.sendto(HEAD.pack(WELCOME, headed(message)[1]), peer)

    receiver = threading.Thread(target=welcome)
    receiver.start()
    zeros = memoryview(bytes(CHUNK))
    with pytest.raises(PeerGone, match=r"127.0.0.1:\d+ has acknowledged nothing for 0.3 s"):
        send(ours, theirs.getsockname(), lambda chunk, now_s: zeros, SteadyPace(400.0), timeout_s=0.3)
    receiver.join(5.0)


def test_a_sender_that_is_gone_ends_the_transfer(ends: list[socket.socket]) -> None:
    ours, _, _, theirs = ends
    receiver = Receiving(theirs, wait_s=5.0, timeout_s=0.3)
    receiver.start()
    ours.sendto(HEAD.pack(HELLO, 5), theirs.getsockname())
    ours.sendto(DATA_HEAD.pack(DATA, 5, 0, 0) + b"abc", theirs.getsockname())
    receiver.join(5.0)
    assert "went silent for 0.3 s, after 3 bytes" in str(receiver.error)


def test_strangers_change_nothing(ends: list[socket.socket]) -> None:
    ours, stranger, _, theirs = ends
    receiver = Receiving(theirs, wait_s=5.0, timeout_s=1.0)
    receiver.start()
    to = theirs.getsockname()
    for message in (
        b"noise",
        HEAD.pack(HELLO, 5),
        DATA_HEAD.pack(DATA, 6, 0, 0) + b"of another transfer",
        DATA_HEAD.pack(DATA, 5, 0, 0) + b"ours",
    ):
        ours.sendto(message, to)
    stranger.sendto(DATA_HEAD.pack(DATA, 5, 1, 1) + b"theirs", to)
    stranger.sendto(TOTAL.pack(END, 5, 0, 0), to)
    ours.sendto(TOTAL.pack(END, 5, 1, 4), to)
    receiver.join(5.0)
    assert bytes(receiver.data) == b"ours"
    assert receiver.got is not None
    assert receiver.got.nbytes == 4


def test_a_strangers_noise_neither_ends_the_wait_nor_keeps_the_receiver(ends: list[socket.socket]) -> None:
    ours, stranger, _, theirs = ends
    receiver, to, over = Receiving(theirs, wait_s=10.0, timeout_s=0.4), theirs.getsockname(), threading.Event()

    def chatter() -> None:
        while not over.wait(0.05):
            stranger.sendto(b"noise", to)

    noise = threading.Thread(target=chatter)
    noise.start()
    receiver.start()
    time.sleep(0.7)
    for message in (HEAD.pack(HELLO, 5), DATA_HEAD.pack(DATA, 5, 0, 0) + b"ours", TOTAL.pack(END, 5, 1, 4)):
        ours.sendto(message, to)
    receiver.join(5.0)
    over.set()
    noise.join(5.0)
    assert receiver.got is not None, receiver.error
    assert receiver.got.nbytes == 4


def test_an_end_that_counts_more_than_came_is_an_error(
    ends: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "LINGER_S", 0.1)
    ours, _, _, theirs = ends
    receiver = Receiving(theirs, wait_s=5.0)
    receiver.start()
    for message in (HEAD.pack(HELLO, 5), DATA_HEAD.pack(DATA, 5, 0, 0) + b"ours", TOTAL.pack(END, 5, 2, 9)):
        ours.sendto(message, theirs.getsockname())
    receiver.join(5.0)
    assert "sent 9 bytes in 2 chunks, and 4 bytes in 1 arrived: send them again" in str(receiver.error)
