"""Connections between workers and servers: addresses through the store, a proof to tell friend from stranger.

Both ends prove, by challenge and response, that they know the token in the store and, if there is one, the secret in
AUTOBYTE_SECRET. Neither travels.
"""

import asyncio
import os
import secrets
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta

import psutil
from torch.distributed import DistError
from torch.distributed.distributed_c10d import PrefixStore

from autobyte.errors import InputError
from autobyte.exchange.control import CommunicationError
from autobyte.exchange.deadline import Deadline
from autobyte.exchange.diagnostics import Diagnostics
from autobyte.exchange.secret import PROOF_BYTES, VARIABLE, proof, proves
from autobyte.internals import default_store, store_host
from autobyte.scheduler.engines.frames import LARGEST, Connection

LONGEST_S = 32767  # that Linux lets a connection be idle before it looks
GREETING_S = 5.0  # in which somebody who connects must have proved who it is
GUESTS = 64  # that may be about to do so; one more, and the first of them has to go
POLL_S = 0.02
NONCE_BYTES = 16
HELLO = struct.Struct(f"!IQ{NONCE_BYTES}s")  # rank, bytes of the largest payload, nonce; from the worker
CHALLENGE = struct.Struct(f"!{NONCE_BYTES}s{PROOF_BYTES}s")  # nonce, proof; from the server
WELCOME = b"\1"  # from the server, when the worker has sent its own proof


def connect(
    name: str,
    *,
    rank: int,
    workers: Sequence[int],
    servers: Sequence[int],
    timeout: timedelta,
    largest: int | None = None,
    diagnostics: Diagnostics | None = None,
    refused: Callable[[], str] = lambda: "",
) -> dict[tuple[int, str], Connection]:
    """Connect every worker with every server on another rank.

    Args:
        name: unlike any other, the same on all ranks.
        rank: of this process.
        workers, servers: the ranks.
        timeout: after which it fails, however many strangers come meanwhile.
        largest: bytes of the largest payload that a peer may send; None is what the workers say.
        diagnostics: hears of a failure.
        refused: tells why the others will not come, once that is known.

    Returns:
        connections by (peer, the peer's role); a rank that is both has two with each of its like.

    Raises:
        CommunicationError: naming whom this rank still waits for.
        InputError: this host has no address to listen at.
    """
    deadline = Deadline(timeout)
    meeting = _Meeting(name, rank=rank, workers=workers, servers=servers, timeout=timeout, largest=largest)
    try:
        deadline.run(lambda: asyncio.run(meeting.hold(deadline, refused)))
    except (OSError, DistError) as error:
        for connection in meeting.connections.values():
            connection.sock.close()
        why = f"rank {rank}, step 0: could not connect to servers or workers: {meeting.describe(error)}"
        raise CommunicationError(why + (diagnostics.write(why) if diagnostics is not None else "")) from error
    return meeting.connections


class _Meeting:
    """Reaches servers and lets workers in, side by side; knows who is missing."""

    def __init__(
        self,
        name: str,
        *,
        rank: int,
        workers: Sequence[int],
        servers: Sequence[int],
        timeout: timedelta,
        largest: int | None,
    ) -> None:
        self._name, self._rank, self._servers, self._timeout = name.encode(), rank, servers, timeout
        self._store = PrefixStore(f"autobyte/{name}", default_store())
        self._to_reach = [server for server in servers if server != rank] if rank in workers else []
        self._to_come = [worker for worker in workers if worker != rank] if rank in servers else []
        self._largest = largest
        self._token = b""
        self._waits: dict[str, None] = {}
        self._strangers = 0
        self._imposters: set[int] = set()
        self.connections: dict[tuple[int, str], Connection] = {}

    async def hold(self, deadline: Deadline, refused: Callable[[], str]) -> None:
        async with asyncio.timeout(deadline.left_s):
            tasks = [asyncio.create_task(self._meet()), asyncio.create_task(_until(refused))]
            try:
                over, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in over:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)  # the listener is closed
        if self._largest is None:  # on a server that does not train: no worker may send more than all say
            self._largest = min((connection.largest for connection in self.connections.values()), default=0)
        for connection in self.connections.values():
            connection.largest = self._largest

    async def _meet(self) -> None:
        if self._rank == self._servers[0]:
            self._store.set("token", secrets.token_hex(8))
        self._token = await self._told("token", f"the token of server rank {self._servers[0]}")
        await asyncio.gather(self._receive(), *(self._reach(server) for server in self._to_reach))

    def describe(self, error: Exception) -> str:
        """Why it failed, and whom it waited for."""
        what = ", ".join(self._waits) or "the store at which the ranks met"
        if not isinstance(error, TimeoutError):
            system = getattr(error, "errno", None) is not None  # it does not say whom it is about
            return f"{error}, while it waited for {what}" if system else str(error)
        told = [f"waited {self._timeout.total_seconds():g} s for {what}"]
        if self._imposters:
            who = ", ".join(map(str, sorted(self._imposters)))
            told.append(f"who said to be rank {who} does not know the {VARIABLE} of this rank")
        if self._strangers:
            told.append(f"{self._strangers} strangers were sent away")
        return "; ".join(told)

    async def _receive(self) -> None:
        """Listen until all workers have come, and no longer."""
        if self._rank not in self._servers:
            return
        address = own_address()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server((address, 0), family=family, backlog=GUESTS + len(self._to_come)) as listener:
            listener.setblocking(False)
            self._store.set(f"server{self._rank}", "{} {}".format(*listener.getsockname()[:2]))
            self._here = {worker: asyncio.Event() for worker in self._to_come}
            letting_in = asyncio.create_task(self._let_in(listener))
            try:
                await asyncio.gather(*(self._come(worker) for worker in self._to_come))
            finally:
                letting_in.cancel()
                # else the loop would watch a closed descriptor, which the next socket may get
                await asyncio.gather(letting_in, return_exceptions=True)

    async def _come(self, worker: int) -> None:
        with self._waiting(f"worker rank {worker} to connect"):
            await self._here[worker].wait()

    async def _let_in(self, listener: socket.socket) -> None:
        guests: dict[asyncio.Task[None], None] = {}  # in the order in which they came
        try:
            while True:
                try:
                    sock, _ = await asyncio.get_running_loop().sock_accept(listener)
                except OSError:  # it is gone already, or too many files are open
                    await asyncio.sleep(POLL_S)
                    continue
                guest = asyncio.create_task(self._admit(sock))
                guests[guest] = None
                guest.add_done_callback(lambda over: guests.pop(over, None))
                if len(guests) > GUESTS:
                    first = next(iter(guests))
                    first.cancel()
                    del guests[first]
                await asyncio.sleep(0)  # who has to go, goes before the next one comes
        finally:
            for guest in guests:
                guest.cancel()

    async def _admit(self, sock: socket.socket) -> None:
        """Take a worker in; a stranger is sent away."""
        loop, admitted = asyncio.get_running_loop(), False
        try:
            async with asyncio.timeout(GREETING_S):
                hello = await _received(sock, HELLO.size)
                peer, largest, _ = HELLO.unpack(hello)
                nonce = secrets.token_bytes(NONCE_BYTES)
                shown = proof(b"server", *self._said(hello, nonce, self._rank))
                await loop.sock_sendall(sock, CHALLENGE.pack(nonce, shown))
                offered = await _received(sock, PROOF_BYTES)
                genuine = proves(offered, b"worker", *self._said(hello, nonce, self._rank))
                if not genuine and peer in self._here:
                    self._imposters.add(peer)
                if genuine and peer in self._here and not self._here[peer].is_set():
                    await loop.sock_sendall(sock, WELCOME)
                    self.connections[peer, "worker"] = _watched(sock, peer, self._timeout, min(largest, LARGEST))
                    self._imposters.discard(peer)
                    self._here[peer].set()
                    admitted = True
        except OSError:  # it says too little, or nothing
            pass
        finally:
            if not admitted:
                self._strangers += 1
                sock.close()

    async def _reach(self, server: int) -> None:
        """Connect to a server, again if its host has too many guests."""
        with self._waiting(f"server rank {server} to answer"):
            said = await self._told(f"server{server}", f"the address of server rank {server}")
            host, port = _address(said, server)
            while not await self._greet(server, host, port):
                await asyncio.sleep(10 * POLL_S)

    async def _greet(self, server: int, host: str, port: int) -> bool:
        """Prove to a server who this is; whether it has let this rank in."""
        loop, own = asyncio.get_running_loop(), own_address()
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        sock.setblocking(False)
        try:
            if (":" in own) == (":" in host):
                sock.bind((own, 0))
            await loop.sock_connect(sock, (host, port))
            hello = HELLO.pack(self._rank, self._largest or 0, secrets.token_bytes(NONCE_BYTES))
            await loop.sock_sendall(sock, hello)
            nonce, offered = CHALLENGE.unpack(await _received(sock, CHALLENGE.size))
            if not proves(offered, b"server", *self._said(hello, nonce, server)):
                raise PermissionError(f"server rank {server} does not know the {VARIABLE} of this rank")
            await loop.sock_sendall(sock, proof(b"worker", *self._said(hello, nonce, server)))
            await _received(sock, len(WELCOME))
        except ConnectionError:
            sock.close()
            return False
        except BaseException:
            sock.close()
            raise
        self.connections[server, "server"] = _watched(sock, server, self._timeout, LARGEST)
        return True

    def _said(self, hello: bytes, nonce: bytes, server: int) -> tuple[bytes, ...]:
        """What both prove: this training, who they are, and what neither could know before."""
        return self._name, self._token, hello, nonce, str(server).encode()

    async def _told(self, key: str, what: str) -> bytes:
        """What another rank says; a waiting store would let no other thread of this process ask."""
        with self._waiting(what):
            while not self._store.check([key]):
                await asyncio.sleep(POLL_S)
            return bytes(self._store.get(key))

    @contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        """Note what is waited for; it stays noted if it does not come."""
        self._waits[what] = None
        yield
        del self._waits[what]


async def _until(refused: Callable[[], str]) -> None:
    """Wait until it is known that the others will not come.

    Raises:
        ConnectionAbortedError: it is.
    """
    while not (why := refused()):
        await asyncio.sleep(POLL_S)
    raise ConnectionAbortedError(why)


def _address(said: bytes, server: int) -> tuple[str, int]:
    """Host and port of a server, as the store has them.

    Raises:
        ConnectionError: somebody has written something else.
    """
    try:
        host, port = said.decode().split()
        return host, int(port)
    except ValueError:
        raise ConnectionError(
            f"the store has no address of server rank {server}, but {said[:64]!r}: somebody else has written to it"
        ) from None


async def _received(sock: socket.socket, nbytes: int) -> bytes:
    """So many bytes.

    Raises:
        ConnectionError: the peer closes before.
    """
    got = b""
    while len(got) < nbytes:
        more = await asyncio.get_running_loop().sock_recv(sock, nbytes - len(got))
        if not more:
            raise ConnectionResetError("the connection was closed")
        got += more
    return got


def own_address() -> str:
    """The address to bind to: of the interface that GLOO_SOCKET_IFNAME names, else of the way to the ranks' store.

    Raises:
        InputError: no such interface, or it has no address; or there is no way to the store's host.
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        addresses = psutil.net_if_addrs().get(interface, [])
        for family in (socket.AF_INET, socket.AF_INET6):
            for address in addresses:
                if address.family == family and not address.address.startswith("fe80:"):
                    return str(address.address)
        raise InputError(f"GLOO_SOCKET_IFNAME is '{interface}', an interface without an IP address here")
    host = store_host() or os.environ.get("MASTER_ADDR") or socket.gethostname()
    try:
        ways = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        ways = []
    for family, _, _, _, address in ways:
        with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
            try:
                probe.connect(address)
            except OSError:  # this host has no address of the kind
                continue
            return str(probe.getsockname()[0])
    raise InputError(f"no way to '{host}', where the ranks met: name the interface in GLOO_SOCKET_IFNAME")


def _watched(sock: socket.socket, peer: int, timeout: timedelta, largest: int) -> Connection:
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
    return Connection(sock, peer, largest=largest)
