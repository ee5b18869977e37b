"""TCP traffic between hosts: as much as goes through, or at a rate."""

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from autobyte.errors import InputError
from autobyte.testbed.hosts import METER, Testbed
from autobyte.testbed.namespaces import TestbedError, inside

SO_MAX_PACING_RATE = 47  # Linux; Python has no name for it
BYTES_RECEIVED = struct.Struct("128xQ")  # of Linux's struct tcp_info
CHUNK = 256 << 10
CONNECT_S = 2.0
SWITCH = None  # stands for a host without a shaped link

Pair = tuple[int | None, int | None]


class Flows:
    """TCP connections that carry bytes without end, each from one host to another, until the block ends.

    One thread moves them all; the kernel does the pacing. Sockets are bound to their hosts' addresses.

    >>> with Flows(testbed, ring(testbed), rate=1.25e7) as flows:      # 100 Mbit/s from each host to the next
    ...     testbed.run(["python", "train.py"])

    Args:
        testbed: with the hosts.
        pairs: from which host to which; None is the switch, which has no link of its own.
        rate: of each flow's payload (bytes/s); None is as much as goes through.

    Raises:
        TestbedError: a host is not reached.
    """

    def __init__(self, testbed: Testbed, pairs: Sequence[Pair], *, rate: float | None = None) -> None:
        if rate is not None and not 1 <= rate < 1 << 32:
            raise InputError(f"a flow's rate must be between 1 byte/s and 34 Gbit/s, got {rate:g} bytes/s")
        self._testbed = testbed
        self._pairs = list(pairs)
        self._rate = rate
        self._ends: list[tuple[socket.socket, socket.socket]] = []
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._move, name="autobyte-flows", daemon=True)

    def __enter__(self) -> Self:
        try:
            for pair in self._pairs:
                self._connect(*pair)
        except BaseException:
            self._close()
            raise
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.send(b"\0")
        self._thread.join()
        self._close()

    def received(self) -> list[int]:
        """Bytes that each flow has brought so far, as the receiving host's kernel counts them."""
        sizes = [receiver.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256) for _, receiver in self._ends]
        return [int(BYTES_RECEIVED.unpack_from(info)[0]) for info in sizes]

    def _connect(self, source: int | None, target: int | None) -> None:
        (there, to), (source_host, own) = self._place(target), self._place(source)
        try:
            with inside(there):
                listener = socket.create_server((to, 0))
            with listener:
                with inside(source_host):
                    sender = socket.create_connection(listener.getsockname(), CONNECT_S, (own, 0))
                receiver, _ = listener.accept()
        except OSError as error:
            raise TestbedError(f"{_name(target)} is not reached from {_name(source)}: {error}") from error
        self._ends.append((sender, receiver))
        if self._rate is not None:
            sender.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=I", int(self._rate)))
        sender.setblocking(False)
        receiver.setblocking(False)

    def _place(self, host: int | None) -> tuple[str, str]:
        if host is None:
            return self._testbed.switch, METER
        return self._testbed.name(host), self._testbed.address(host)

    def _move(self) -> None:
        """Send zeros and drop what comes; a connection that breaks is left alone."""
        zeros, sink = memoryview(bytes(CHUNK)), bytearray(CHUNK)
        with selectors.DefaultSelector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ)
            for sender, receiver in self._ends:
                selector.register(sender, selectors.EVENT_WRITE)
                selector.register(receiver, selectors.EVENT_READ)
            while True:
                for key, events in selector.select():
                    sock = key.fileobj
                    if sock is self._stopped:
                        return
                    assert isinstance(sock, socket.socket)
                    try:
                        if events & selectors.EVENT_WRITE:
                            sock.send(zeros)
                        elif not sock.recv_into(sink):
                            selector.unregister(sock)
                    except BlockingIOError:
                        continue
                    except OSError:
                        selector.unregister(sock)

    def _close(self) -> None:
        for sock in (self._stop, self._stopped, *(end for ends in self._ends for end in ends)):
            with contextlib.suppress(OSError):
                sock.close()


def ring(testbed: Testbed) -> list[Pair]:
    """From each host to the next, and from the last to the first."""
    return [(host, (host + 1) % testbed.hosts) for host in range(testbed.hosts)]


def _name(host: int | None) -> str:
    return "the switch" if host is None else f"host {host}"
