"""Connections keep to what their pacing says, and the thread that paces ends with them."""

import logging
import socket
import threading
import time

import pytest

from autobyte.congestion.datapath.pacer import parse_pacing
from autobyte.congestion.datapath.tcp import NO_LIMIT, SO_MAX_PACING_RATE, TcpCounts
from autobyte.errors import AutoByteError, InputError


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    return near, far


def pace_of(sock: socket.socket) -> int:
    return sock.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE) & NO_LIMIT


def pacers() -> int:
    return sum(thread.name == "autobyte-pacing" for thread in threading.enumerate())


def test_a_rate_is_each_connections_own() -> None:
    ends = [connected(), connected()]
    parse_pacing("rate:80Mbit")([near for near, _ in ends])
    for near, far in ends:
        assert (pace_of(near), pace_of(far)) == (10_000_000, NO_LIMIT)
        near.close()
        far.close()


def test_mocc_paces_until_the_connections_are_closed() -> None:
    near, far = connected()
    parse_pacing("mocc:0.1,0.8,0.1")([near, far])
    first = pace_of(near)
    assert 0 < first < 100e6
    assert pacers() == 1
    near.setblocking(False)
    until_s = time.monotonic() + 5.0
    while pace_of(near) == first and time.monotonic() < until_s:
        try:
            near.send(bytes(1 << 16))
        except BlockingIOError:
            far.recv(1 << 20)
    assert pace_of(near) > first  # it doubles at the start
    near.close()
    far.close()
    while pacers() and time.monotonic() < until_s:
        time.sleep(0.01)
    assert pacers() == 0


def test_a_connection_is_paced_on_after_the_kernel_said_nothing_about_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    near, far = connected()
    monkeypatch.setattr("autobyte.congestion.datapath.pacer.AGAIN_S", 0.02)
    looks, ask = [0], TcpCounts.of

    def at_times(sock: socket.socket) -> TcpCounts:
        looks[0] += 1
        if looks[0] == 2:
            raise AutoByteError("the kernel says nothing about this connection: Interrupted system call")
        return ask(sock)

    monkeypatch.setattr(TcpCounts, "of", at_times)
    until_s = time.monotonic() + 5.0
    with caplog.at_level(logging.WARNING, "autobyte"):
        parse_pacing("mocc:0.1,0.8,0.1")([near])
        while looks[0] < 4 and time.monotonic() < until_s:
            time.sleep(0.01)
    assert looks[0] >= 4
    assert "a connection keeps its pace for now: the kernel says nothing" in caplog.text
    near.close()
    far.close()
    while pacers() and time.monotonic() < until_s:
        time.sleep(0.01)
    assert pacers() == 0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("cubic", "unknown pacing 'cubic'; write it like mocc:throughput=0.8,latency=0.1,loss=0.1, or rate:1Gbit"),
        ("mocc:0.8,0.1", "cannot read objective '0.8,0.1'"),
        ("mocc:0.8,0.8,0.1", "weights must sum to 1"),
        ("rate:fast", "cannot read pacing 'fast'"),
    ],
)
def test_what_is_no_pacing_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        parse_pacing(text)
