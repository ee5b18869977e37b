"""Who is let in, and where it is listened."""

import socket
from datetime import timedelta

import pytest
from ranks import on_ranks
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
