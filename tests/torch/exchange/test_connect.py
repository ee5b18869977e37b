"""Who is let in, and where it is listened."""

import os
import signal
import socket
from datetime import timedelta

import pytest
import torch.distributed as dist
from ranks import Ranks, on_ranks
from stories import make_mlp, sgd, train
from torch.testing._internal.distributed import fake_pg
from tuned import adam, make_model

import autobyte.torch as ab
from autobyte.errors import InputError
from autobyte.internals import default_store
from autobyte.scheduler.engines.frames import HELLO
from autobyte.torch.exchange.connect import _admit, own_address

TOKEN, SECOND = b"0123456789abcdef", timedelta(seconds=1)


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n", HELLO.pack(TOKEN[::-1], 1), HELLO.pack(TOKEN, 2)],
    ids=["nothing", "another protocol", "another token", "a rank that is not awaited"],
)  # fmt: skip
def test_a_stranger_is_sent_away_and_nobody_minds(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as stranger:
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            assert _admit(listener, TOKEN, [1], SECOND) is None
        with socket.create_connection(listener.getsockname()) as friend:
            friend.sendall(HELLO.pack(TOKEN, 1))
            admitted = _admit(listener, TOKEN, [1], SECOND)
            assert admitted is not None
            assert admitted.peer == 1
            admitted.sock.close()


def test_sockets_bind_to_the_interface_that_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert own_address() == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such0")
    with pytest.raises(InputError, match="GLOO_SOCKET_IFNAME is 'no-such0', an interface without an IPv4 address"):
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
    optimizer = ab.DistributedOptimizer(sgd(model), model, engine=engine, timeout=timedelta(seconds=20))
    try:
        for step in range(6):
            if (attempt, rank, step) == (0, 1, 4):
                os.kill(os.getpid(), signal.SIGKILL)
            train(model, optimizer, rank, range(step, step + 1))
        optimizer.flush()
    except ab.CommunicationError:
        return "lost a rank"
    return "trained"
