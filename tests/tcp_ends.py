"""Two ends of a TCP connection on this host, and what goes from one to the other."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autobyte.congestion.datapath.tcp import TcpCounts


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    with sender, receiver:
        yield sender, receiver


def drain(receiver: socket.socket) -> threading.Thread:
    def read() -> None:
        while receiver.recv(1 << 20):
            pass

    thread = threading.Thread(target=read)
    thread.start()
    return thread


def sent_in(sender: socket.socket, seconds: float, step: Callable[[float], object] = lambda now_s: None) -> int:
    """Bytes acknowledged while as much is sent as goes."""
    sender.settimeout(0.01)
    before, begun_s = TcpCounts.of(sender).acked_bytes, time.monotonic()
    while (now_s := time.monotonic() - begun_s) < seconds:
        step(now_s)
        try:
            sender.send(bytes(1 << 16))
        except TimeoutError:
            continue
    return TcpCounts.of(sender).acked_bytes - before
