"""Who is let in, and where it is listened."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist
from ranks import Ranks, on_ranks
from stories import make_mlp, sgd, train
from torch.distributed.distributed_c10d import PrefixStore
from torch.testing._internal.distributed import fake_pg
from tuned import adam, make_model

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.exchange.connect import (
    CHALLENGE,
    GREETING_S,
    GUESTS,
    HELLO,
    POLL_S,
    WELCOME,
    _Meeting,
    connect,
    own_address,
)
from autobyte.exchange.secret import proof
from autobyte.internals import default_store


def test_strangers_are_sent_away_side_by_side() -> None:
    """Silent ones, ones of another protocol, a liar, and one who has read the store but does not know the secret."""
    ranks = Ranks(_among_strangers, 3, environ={"AUTOBYTE_SECRET": "known to the ranks"}, timeout_s=30)
    connected, reached, seconds = zip(*ranks.results(), strict=True)
    assert connected == (True, True, True)
    assert reached[2] > 60  # strangers that the listener had to look at
    assert max(seconds) < 4  # one after the other, the silent ones would hold it up for 5 s each


def _among_strangers(rank: int) -> tuple[bool, int, float]:
    """Rank 0 serves, rank 1 comes after the strangers, which are on rank 2."""
    store = PrefixStore("autobyte/crowd", default_store())
    if rank == 2:
        host, port = _told(store, "server0").decode().split()
        token = _told(store, "token")
        held = [socket.create_connection((host, int(port))) for _ in range(70)]  # more than may be guests at a time
        for stranger, said in zip(held, (b"GET / HTTP/1.1\r\n\r\n" * 9, token, b"x"), strict=False):
            stranger.sendall(said)
        os.environ["AUTOBYTE_SECRET"] = "guessed"
        answered = _pretend(held[-1], token)
        default_store().set("crowded", "yes")
        _told(default_store(), "over")
        return not answered, len(held), 0.0
    if rank == 1:
        _told(default_store(), "crowded")
    began = time.monotonic()
    made = connect("crowd", rank=rank, workers=[0, 1], servers=[0], timeout=timedelta(seconds=15), largest=4096)
    connection = next(iter(made.values()))
    if rank == 0:
        default_store().set("over", "yes")
        began = time.monotonic()
    assert connection.largest == 4096
    connection.sock.close()
    return list(made) == [(1 - rank, ("worker", "server")[rank])], 0, time.monotonic() - began


def _told(store: dist.Store, key: str) -> bytes:
    store.wait([key], timedelta(seconds=20))
    return bytes(store.get(key))


def _pretend(sock: socket.socket, token: bytes) -> bool:
    """Say to be rank 1, and prove what can be proved; whether it is welcome."""
    hello = HELLO.pack(1, 1 << 31, b"0" * 16)
    sock.sendall(hello)
    nonce, _ = CHALLENGE.unpack(sock.recv(CHALLENGE.size, socket.MSG_WAITALL))
    sock.sendall(proof(b"worker", b"crowd", token, hello, nonce, b"0"))
    return sock.recv(1) == WELCOME


def test_a_crowd_that_comes_at_once_is_no_more_than_the_guests_there_may_be() -> None:
    """More than are let in wait already when the listener looks."""
    with socket.create_server(("127.0.0.1", 0), backlog=5 * GUESTS) as listener, contextlib.ExitStack() as held:
        listener.setblocking(False)
        for _ in range(4 * GUESTS):
            held.enter_context(socket.create_connection(listener.getsockname()))
        asyncio.run(_crowd(listener, strangers=4 * GUESTS))


async def _crowd(listener: socket.socket, *, strangers: int) -> None:
    meeting = _Meeting.__new__(_Meeting)
    meeting._strangers, meeting._here = 0, {}
    letting_in = asyncio.create_task(meeting._let_in(listener))
    async with asyncio.timeout(GREETING_S / 2):
        while meeting._strangers < strangers - GUESTS:
            await asyncio.sleep(POLL_S)
    letting_in.cancel()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> PrefixStore:
    """Of a connection between ranks that this process plays alone."""
    store = dist.HashStore()
    monkeypatch.setattr("autobyte.exchange.connect.default_store", lambda: store)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    return PrefixStore("autobyte/alone", store)


def test_all_workers_that_do_not_come_are_named(store: PrefixStore) -> None:
    whom = "waited 0.3 s for worker rank 1 to connect, worker rank 2 to connect$"
    with pytest.raises(ab.CommunicationError, match=whom):
        connect("alone", rank=0, workers=[0, 1, 2], servers=[0], timeout=timedelta(seconds=0.3))
    assert store.check(["server0"])


def test_a_server_that_cannot_be_reached_is_named(store: PrefixStore) -> None:
    store.set("token", "known")
    store.set("server0", "255.255.255.255 9")
    with pytest.raises(
        ab.CommunicationError, match=r"\[Errno \d+\] .*, while it waited for server rank 0 to answer$"
    ):
        connect("alone", rank=1, workers=[1], servers=[0], timeout=timedelta(seconds=5))


@pytest.mark.parametrize("said", [b"\xff\xfe 9", b"nowhere", b"127.0.0.1 nine"])
def test_an_address_that_is_none_is_one_line(store: PrefixStore, said: bytes) -> None:
    store.set("token", b"\xff\xfe")  # a token of any bytes will do
    store.set("server0", said)
    with pytest.raises(ab.CommunicationError, match=r"the store has no address of server rank 0, but b'.*: somebody"):
        connect("alone", rank=1, workers=[1], servers=[0], timeout=timedelta(seconds=5))


def test_connecting_ends_at_once_when_others_will_not_come(store: PrefixStore) -> None:
    began, why = time.monotonic(), []
    threading.Timer(0.3, why.append, ["they were refused"]).start()
    with pytest.raises(ab.CommunicationError, match=r"could not connect to servers or workers: they were refused$"):
        connect(
            "alone", rank=0, workers=[0, 1], servers=[0], timeout=timedelta(seconds=30), refused=lambda: "".join(why)
        )
    assert time.monotonic() - began < 5
    host, port = store.get("server0").decode().split()
    with pytest.raises(ConnectionRefusedError):  # nobody listens any longer
        socket.create_connection((host, int(port)))
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("autobyte-deadline")]


def test_a_stranger_a_second_keeps_nothing_open() -> None:
    """The rank that never comes is named in time."""
    said = Ranks(_never_comes, 2, timeout_s=30).results()[0]
    assert re.match(r"rank 0, step 0: .*: waited 2 s for worker rank 1 to connect; \d+ strangers were sent", said), (
        said
    )


def _never_comes(rank: int) -> str:
    if rank == 1:
        host, port = _told(PrefixStore("autobyte/lonely", default_store()), "server0").decode().split()
        until, held = time.monotonic() + 4, []
        with contextlib.suppress(OSError):  # nobody listens any longer
            while time.monotonic() < until:
                held.append(socket.create_connection((host, int(port))))
                held[-1].sendall(b"x")
                held[-1].shutdown(socket.SHUT_WR)
                time.sleep(0.2)
        assert time.monotonic() < until
        return ""
    began = time.monotonic()
    with pytest.raises(ab.CommunicationError) as caught:
        connect("lonely", rank=0, workers=[0, 1], servers=[0], timeout=timedelta(seconds=2))
    assert time.monotonic() - began < 3
    return str(caught.value)


def test_ranks_whose_secrets_differ_do_not_begin() -> None:
    for outcome in Ranks(_other_secret, 2, timeout_s=30).outcomes():
        assert "ranks [1] have settings unlike rank 0's; rank" in str(outcome)
        assert "AUTOBYTE_SECRET" in str(outcome)


def _other_secret(rank: int) -> None:
    os.environ["AUTOBYTE_SECRET"] = f"of rank {rank}"
    model = make_model()
    ab.DistributedOptimizer(adam(model), model, engine="ps", timeout=timedelta(seconds=7))


@pytest.mark.parametrize("engine", ["ps", "dear"])
def test_ranks_that_meet_at_an_ipv6_address_train(engine: str) -> None:
    store = dist.TCPStore("::1", 0, is_master=True, wait_for_workers=False)
    assert Ranks(_over_ipv6, 2, engine, store.port, init=False).results() == ["::1"] * 2


def _over_ipv6(rank: int, engine: str, port: int) -> str:
    del os.environ["MASTER_ADDR"]
    store = dist.TCPStore("::1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    model = make_mlp()
    ways = {"ps": {"engine": "ps"}, "dear": {"config": Config(1024, 1024, "dear")}}
    optimizer = ab.DistributedOptimizer(sgd(model), model, timeout=timedelta(seconds=10), **ways[engine])
    train(model, optimizer, rank, range(3))
    optimizer.close()
    return own_address()


def test_sockets_bind_to_the_interface_that_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert own_address() == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such0")
    with pytest.raises(InputError, match="GLOO_SOCKET_IFNAME is 'no-such0', an interface without an IP address"):
        own_address()
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert own_address() == "127.0.0.1"


def test_the_timeout_of_the_users_store_stays() -> None:
    on_ranks(_keeps_timeout, 2)


def _keeps_timeout(rank: int) -> None:
    store = default_store()
    before = store.timeout
    optimizer = ab.DistributedOptimizer(adam(model := make_model()), model, engine="ps", timeout=timedelta(seconds=7))
    assert store.timeout == before
    optimizer.close()


@pytest.mark.parametrize("engine", ["allreduce", "ps"])
def test_ranks_that_are_restarted_meet_in_a_store_that_outlives_them(engine: str) -> None:
    """As under torchelastic, whose agent keeps the store; the default group is one that needs no keys of its own."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    said = []
    for attempt in (0, 1):
        environ = {"TORCHELASTIC_RESTART_COUNT": str(attempt)}
        said.append(Ranks(_attempt, 3, engine, store.port, attempt, environ=environ, init=False).outcomes())
    first, second = said
    assert first == ["lost a rank", None, "lost a rank"]
    assert second == ["trained"] * 3


def _attempt(rank: int, engine: str, port: int, attempt: int) -> str:
    assert fake_pg  # registers the backend
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("fake", store=store, rank=rank, world_size=3)
    model = make_mlp()
    optimizer = ab.DistributedOptimizer(
        sgd(model), model, policy="bytescheduler", engine=engine, timeout=timedelta(seconds=20)
    )
    try:
        for step in range(6):
            if (attempt, rank, step) == (0, 1, 4):
                os.kill(os.getpid(), signal.SIGKILL)
            train(model, optimizer, rank, range(step, step + 1))
        optimizer.flush()
    except ab.CommunicationError:
        return "lost a rank"
    return "trained"
