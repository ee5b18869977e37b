"""Connections between workers and servers: addresses through the store, a token to tell friend from stranger."""

import os
import secrets
import socket
import struct
from collections.abc import Sequence
from datetime import timedelta

import psutil
from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import PrefixStore

from autobyte.errors import InputError
from autobyte.internals import default_store
from autobyte.scheduler.engines.frames import HELLO, Connection
from autobyte.torch.exchange.control import CommunicationError

LONGEST_S = 32767  # that Linux lets a connection be idle before it looks


def connect(
    name: str, *, rank: int, workers: Sequence[int], servers: Sequence[int], timeout: timedelta
) -> dict[tuple[int, str], Connection]:
    """Connect every worker with every server on another rank.

    Args:
        name: unlike any other, the same on all ranks.
        rank: of this process.
        workers, servers: the ranks.
        timeout: after which it fails.

    Returns:
        connections by (peer, the peer's role); a rank that is both has two with each of its like.
    """
    store = PrefixStore(f"autobyte/{name}", default_store())
    connections: dict[tuple[int, str], Connection] = {}
    listener = None
    try:
        if rank == servers[0]:
            store.set("token", secrets.token_hex(8))
        token = _told(store, "token", timeout)
        if rank in servers:
            listener = socket.create_server((own_address(), 0), backlog=len(workers))
            listener.settimeout(timeout.total_seconds())
            store.set(f"server{rank}", f"{listener.getsockname()[0]} {listener.getsockname()[1]}")
        if rank in workers:
            for server in servers:
                if server != rank:
                    connections[server, "server"] = _reach(store, server, token, rank, timeout)
        if listener is not None:
            expected = [worker for worker in workers if worker != rank]
            while len([1 for _, role in connections if role == "worker"]) < len(expected):
                connection = _admit(listener, token, expected, timeout)
                if connection is not None:
                    connections[connection.peer, "worker"] = connection
    except (OSError, DistStoreError) as error:
        raise CommunicationError(f"rank {rank}, step 0: could not connect to servers or workers: {error}") from error
    finally:
        if listener is not None:
            listener.close()
    return connections


def own_address() -> str:
    """The address to bind to: of the interface that GLOO_SOCKET_IFNAME names, else of the way to the master.

    Raises:
        InputError: no such interface, or it has no IPv4 address.
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        for address in psutil.net_if_addrs().get(interface, []):
            if address.family == socket.AF_INET:
                return str(address.address)
        raise InputError(f"GLOO_SOCKET_IFNAME is '{interface}', an interface without an IPv4 address here")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 9))
        return str(probe.getsockname()[0])


def _told(store: PrefixStore, key: str, timeout: timedelta) -> bytes:
    """What another rank says; the store's own timeout is the user's, and is left as it is."""
    store.wait([key], timeout)
    return bytes(store.get(key))


def _reach(store: PrefixStore, server: int, token: bytes, rank: int, timeout: timedelta) -> Connection:
    host, port = _told(store, f"server{server}", timeout).decode().split()
    sock = socket.create_connection((host, int(port)), timeout.total_seconds(), source_address=(own_address(), 0))
    sock.sendall(HELLO.pack(token, rank))
    return _watched(sock, server, timeout)


def _admit(listener: socket.socket, token: bytes, expected: Sequence[int], timeout: timedelta) -> Connection | None:
    """Take a worker in; a stranger is sent away."""
    sock, _ = listener.accept()
    sock.settimeout(5)
    try:
        offered_token, peer = HELLO.unpack(sock.recv(HELLO.size, socket.MSG_WAITALL))
    except (OSError, struct.error):  # it says too little, or nothing
        offered_token, peer = b"", -1
    if not secrets.compare_digest(offered_token, token) or peer not in expected:
        sock.close()
        return None
    return _watched(sock, peer, timeout)


def _watched(sock: socket.socket, peer: int, timeout: timedelta) -> Connection:
    """A connection that breaks when the peer's host has not answered for so long, with nothing to send, too."""
    seconds = min(max(1, int(timeout.total_seconds())), LONGEST_S)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", -(-seconds // 2)),
        ("TCP_KEEPINTVL", -(-seconds // 8)),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", 1000 * seconds),
    ):
        if hasattr(socket, option):  # Linux has them all
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return Connection(sock, peer)
