"""Engines keep their contract, all ranks in this process; and so does the network that tests use instead of one."""

import socket
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch.distributed as dist

from autobyte.scheduler.engines.allreduce import AllReduce, own_gloo
from autobyte.scheduler.engines.base import Engine
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.frames import Connection
from autobyte.scheduler.engines.server import ParameterServer
from autobyte.testing import EngineContract, MemoryNetwork


def together(makers: list[Callable[[], Engine]]) -> list[Engine]:
    """Make engines at once, for they wait for each other."""
    made: dict[int, Engine] = {}

    def make(index: int) -> None:
        made[index] = makers[index]()

    threads = [threading.Thread(target=make, args=(index,)) for index in range(len(makers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [made[index] for index in range(len(makers))]


class TestMemoryNetwork(EngineContract):
    sends_alone = True

    def connect(self, buffers: list[Buffers]) -> list[Engine]:
        return list(MemoryNetwork(buffers).engines)


class TestAllReduce(EngineContract):
    steps = 250

    def connect(self, buffers: list[Buffers]) -> list[Engine]:
        store, size, timeout = dist.HashStore(), len(buffers), timedelta(seconds=20)

        def maker(rank: int) -> Callable[[], Engine]:
            return lambda: AllReduce(
                buffers[rank], own_gloo("test", rank=rank, size=size, timeout=timeout, threads=4, store=store)
            )

        return together([maker(rank) for rank in range(size)])


class TestParameterServer(EngineContract):
    sends_alone = True
    steps = 150

    def connect(self, buffers: list[Buffers]) -> list[Engine]:
        ranks = range(len(buffers))
        made: dict[int, dict[tuple[int, str], Connection]] = {rank: {} for rank in ranks}
        for worker in ranks:
            for server in ranks:
                if worker != server:
                    near, far = _pair()
                    made[worker][server, "server"] = Connection(near, server)
                    made[server][worker, "worker"] = Connection(far, worker)

        def maker(rank: int) -> Callable[[], Engine]:
            return lambda: ParameterServer(
                buffers[rank], rank=rank, workers=ranks, servers=ranks, connect=lambda: made[rank]
            )

        return together([maker(rank) for rank in ranks])


def _pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    return near, far


def test_the_contract_finds_what_is_wrong() -> None:
    """A test that cannot fail shows nothing: engines with one fault each are found out."""

    class Broken(TestMemoryNetwork):
        timeout_s = 1.0
        steps = 3

        def __init__(self, spoil: Callable[[Engine], None]) -> None:
            self._spoil = spoil

        def connect(self, buffers: list[Buffers]) -> list[Engine]:
            engines = super().connect(buffers)
            self._spoil(engines[0])
            return engines

    def loses_a_block(engine: Engine) -> None:
        engine.start = lambda block, sent, done: None  # type: ignore[method-assign]

    def done_before_sent(engine: Engine) -> None:
        start = engine.start
        engine.start = lambda block, sent, done: start(block, lambda b: None, lambda b, e: (done(b, e), sent(b)))  # type: ignore[method-assign]

    def sent_twice(engine: Engine) -> None:
        start = engine.start
        engine.start = lambda block, sent, done: start(block, lambda b: (sent(b), sent(b)), done)  # type: ignore[method-assign]

    for spoil in (loses_a_block, done_before_sent, sent_twice):
        with pytest.raises(AssertionError):
            Broken(spoil).test_calls_back_once_each_sent_first()
    with pytest.raises(AssertionError):
        Broken(loses_a_block).test_never_deadlocks_under_jitter()
