"""A training whose connections are paced is the same training, and they are paced."""

import os
import socket
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ranks import on_ranks
from stories import assert_equal, make_mlp, parameters_of, sgd, train, with_ab, with_ddp

import autobyte.torch as ab
from autobyte.errors import AutoByteError, InputError
from autobyte.exchange import engines
from autobyte.exchange.pacing import pace_of

SO_MAX_PACING_RATE, NO_LIMIT = 47, (1 << 32) - 1


def test_parameters_are_ddps_at_any_pace() -> None:
    on_ranks(_train, 2)


def _train(rank: int) -> None:
    def story(wrap, **keywords):
        module = make_mlp()
        model, optimizer = wrap(module, sgd(module), **keywords)
        train(model, optimizer, rank)
        return parameters_of(module, optimizer), optimizer, paces()

    expected, _, _ = story(with_ddp)
    for pacing in ("rate:800Mbit", "mocc:throughput=0.8,latency=0.1,loss=0.1"):
        parameters, optimizer, found = story(with_ab, engine="ps", pacing=pacing)
        optimizer.close()
        assert_equal(parameters, expected)
        limited = [pace for pace in found if pace != NO_LIMIT]
        assert len(limited) >= 2  # to a server, and to a worker
        if pacing.startswith("rate"):
            assert set(limited) == {100_000_000}


def paces() -> list[int]:
    """Of this process's TCP connections (bytes/s)."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        if not entry.is_socket():
            continue
        with socket.socket(fileno=os.dup(int(entry.name))) as sock:
            if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM:
                found.append(sock.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE) & NO_LIMIT)
    return found


def test_connections_that_cannot_be_paced_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = socket.socketpair()

    def refuse(socks: Any) -> None:
        raise AutoByteError("this kernel paces nothing")

    monkeypatch.setattr(engines, "_reach", lambda *_, **__: {(0, "server"): SimpleNamespace(sock=near)})
    training: Any = SimpleNamespace(
        name="t", control=SimpleNamespace(global_rank=0), ranks=[0], servers=[0], largest=1, buffers=None, pace=refuse
    )
    with far, pytest.raises(AutoByteError, match="this kernel paces nothing"):
        engines._servers(training, timedelta(seconds=1))
    assert near.fileno() == -1


def test_other_engines_have_no_connections_to_pace() -> None:
    with pytest.raises(InputError, match="pacing= is for engine='ps', not for 'allreduce'"):
        pace_of("rate:1Gbit", engine="allreduce")
    module = make_mlp()
    with pytest.raises(InputError, match="unknown pacing 'fast'"):
        ab.DistributedOptimizer(sgd(module), module, engine="ps", pacing="fast")
