"""Engines keep their contract, all ranks in this process; and so does the network that tests use instead of one."""

import os
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import permutations

import pytest
import torch.distributed as dist

from autobyte.internals import own_gloo
from autobyte.scheduler.block import Block, Collective, Segment
from autobyte.scheduler.engines.allreduce import AllReduce
from autobyte.scheduler.engines.base import Done, Engine, Sent
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.frames import HEADER, Connection, Head, Kind
from autobyte.scheduler.engines.halves import Halves
from autobyte.scheduler.engines.leader import Led
from autobyte.scheduler.engines.server import ParameterServer
from autobyte.testing import EngineContract, MemoryNetwork
from autobyte.units import KIB

STEPS = int(os.environ.get("AUTOBYTE_STEPS", "75"))  # with jitter; by night, a thousand


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
    steps = STEPS

    def connect(self, buffers: list[Buffers]) -> list[Engine]:
        store, size, timeout = dist.HashStore(), len(buffers), timedelta(seconds=20)

        def maker(rank: int) -> Callable[[], Engine]:
            return lambda: AllReduce(
                buffers[rank], own_gloo("test", rank=rank, size=size, timeout=timeout, threads=4, store=store)
            )

        return together([maker(rank) for rank in range(size)])


class TestLed(TestAllReduce):
    """Rank 0 picks, the others follow."""

    def connect(self, buffers: list[Buffers]) -> list[Engine]:
        pairs = {rank: _pair() for rank in range(1, len(buffers))}
        to = [[Connection(near, rank) for rank, (near, _) in pairs.items()]]
        to += [[Connection(far, 0)] for _, far in pairs.values()]
        engines = super().connect(buffers)
        return [Led(engine, to[rank], leads=rank == 0) for rank, engine in enumerate(engines)]


class TestParameterServer(EngineContract):
    sends_alone = True
    steps = STEPS

    def connect(self, buffers: list[Buffers]) -> list[Engine]:
        ranks, made = range(len(buffers)), _connections(len(buffers))

        def maker(rank: int) -> Callable[[], Engine]:
            return lambda: ParameterServer(
                buffers[rank], rank=rank, workers=ranks, servers=ranks, connect=lambda: made[rank]
            )

        return together([maker(rank) for rank in ranks])


class BothHalves(Engine):
    """Moves a block by its reduce-scatter and, when that is over, its all-gather."""

    def __init__(self, halves: Engine) -> None:
        self._halves = halves

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        scatter, gather = (
            replace(block, index=2 * block.index + half, op=op)
            for half, op in enumerate((Collective.REDUCE_SCATTER, Collective.ALL_GATHER))
        )

        def scattered(_: Block, error: Exception | None) -> None:
            if error is None:
                self._halves.start(gather, lambda _: sent(block), lambda _, error: done(block, error))
            else:
                done(block, error)

        self._halves.start(scatter, lambda _: None, scattered)

    def close(self) -> None:
        self._halves.close()


class TestPushesAndPulls(TestParameterServer):
    """Servers keep sums until they are asked for."""

    sends_alone = False  # as `BothHalves` tells it: credit comes back with the pull

    def connect(self, buffers: list[Buffers]) -> list[Engine]:
        return [BothHalves(each) for each in super().connect(buffers)]


class TestHalves(EngineContract):
    steps = STEPS

    def connect(self, buffers: list[Buffers]) -> list[Engine]:
        made = _connections(len(buffers))
        return [
            BothHalves(Halves(each, rank=rank, ranks=range(len(buffers)), connections=made[rank]))
            for rank, each in enumerate(buffers)
        ]


def _connections(size: int) -> list[dict[tuple[int, str], Connection]]:
    """Those of every rank: two with every other, as worker and as server."""
    made: list[dict[tuple[int, str], Connection]] = [{} for _ in range(size)]
    for worker, server in permutations(range(size), 2):
        near, far = _pair()
        made[worker][server, "server"] = Connection(near, server)
        made[server][worker, "worker"] = Connection(far, worker)
    return made


def _pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection that takes little at a time, as a slow link does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    for end in (near, far):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * KIB)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * KIB)
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


def test_a_fault_in_a_loop_ends_what_waits() -> None:
    """An engine whose own thread fails says so at once, of what is under way and of what comes later."""

    class Wrong(TestHalves):
        def connect(self, buffers: list[Buffers]) -> list[Engine]:
            engines = super().connect(buffers)
            buffers[0].give = lambda block: buffers[0].nothing  # type: ignore[attr-defined, method-assign]
            return engines

    with Wrong()._network(3) as ranks:
        first, later = (Block(index, (Segment(index, 0, 5),), 20) for index in (0, 1))
        for rank in range(3):
            ranks.start(rank, first)
        ranks.wait_for(lambda: "failed" in ranks.events(0, first))
        assert "done" not in ranks.events(0, first)  # it may have been sent before it failed
        ranks.start(0, later)
        ranks.wait_for(lambda: ranks.events(0, later) == ["failed"])
        ranks.wait_for(lambda: all({"done", "failed"} & set(ranks.events(rank, first)) for rank in (1, 2)))


def test_a_frame_that_is_larger_than_what_is_trained_is_refused_before_there_is_room_for_it() -> None:
    near, far = _pair()
    connection = Connection(near, 1, largest=1000)
    for nbytes in (1000, 1001):
        placed: list[int] = []
        far.sendall(HEADER.pack(Kind.PUSH, 0, 1, 0, nbytes, 2.0) + b"x" * 1000)

        def place(_: Connection, head: Head, placed: list[int] = placed) -> memoryview:
            placed.append(head.nbytes)
            return memoryview(bytearray(head.nbytes))

        select.select([near], [], [], 5)
        if nbytes == 1000:
            connection.receive(place, lambda *_: None)
            assert placed == [1000]
        else:
            with pytest.raises(ConnectionError, match="rank 1 sent a frame of 1001 bytes for 1000 at most"):
                connection.receive(place, lambda *_: None)
            assert placed == []
    near.close()
    far.close()
