"""What a parameter server keeps, and the norms that it tells."""

import math
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from autobyte.scheduler.block import Block, Collective, Segment
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.frames import Connection
from autobyte.scheduler.engines.server import STALE, ParameterServer

SIZES = (1000, 5)
SEGMENTS = tuple(Segment(index, 0, size) for index, size in enumerate(SIZES))
PUSH, PULL = (Block(index, SEGMENTS, 4020, op) for index, op in enumerate(list(Collective)[1:]))


def test_a_server_forgets_the_sizes_of_configs_that_are_no_longer_in_force() -> None:
    server = ParameterServer(None, rank=0, workers=[0], servers=[0], connect=dict)
    for _ in range(3):
        server._pool[4000].append(server._memory(torch.float32, 4000))
    for _ in range(2 * STALE):
        server._pool[800].append(server._memory(torch.float32, 800))
    assert {size: len(free) for size, free in server._pool.items()} == {800: 1}
    server.close()


class Network:
    """Workers and servers of this process, and what has been called back."""

    def __init__(self, workers: list[int], servers: list[int], *, wire_dtype: str | None = None) -> None:
        made: dict[int, dict[tuple[int, str], Connection]] = {rank: {} for rank in {*workers, *servers}}
        for worker in workers:
            for server in (each for each in servers if each != worker):
                with socket.create_server(("127.0.0.1", 0)) as listener:
                    near = socket.create_connection(listener.getsockname())
                    far, _ = listener.accept()
                made[worker][server, "server"] = Connection(near, server)
                made[server][worker, "worker"] = Connection(far, worker)
        self.workers = workers
        self.buffers = {rank: Buffers(tensors=2, scale=1 / len(workers), wire_dtype=wire_dtype) for rank in workers}
        self.engines = {
            rank: ParameterServer(
                self.buffers.get(rank), rank=rank, workers=workers, servers=servers, connect=lambda own=own: own
            )
            for rank, own in made.items()
        }
        self.said: list[tuple[int, int, str]] = []  # rank, block, what
        self._changed = threading.Condition()

    def put(self, gradients: dict[int, list[torch.Tensor]], kind: float | None) -> None:
        """Begin a step."""
        for rank, own in gradients.items():
            self.buffers[rank].shares.measure(kind)
            for index, gradient in enumerate(own):
                self.buffers[rank].put(index, gradient)

    def start(self, block: Block, ranks: list[int]) -> None:
        for rank in ranks:
            self.engines[rank].start(
                block,
                lambda block, rank=rank: self._say(rank, block, "sent"),
                lambda block, error, rank=rank: self._say(rank, block, str(error or "done")),
            )

    def await_all(self, block: Block, ranks: list[int]) -> None:
        wanted = {(rank, block.index, "done") for rank in ranks}
        self.await_that(lambda: wanted <= {*self.said})

    def await_that(self, holds: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(holds, 20), self.said

    def _say(self, rank: int, block: Block, what: str) -> None:
        with self._changed:
            self.said.append((rank, block.index, what))
            self._changed.notify_all()


@contextmanager
def network(workers: list[int], servers: list[int], *, wire_dtype: str | None = None) -> Iterator[Network]:
    made = Network(workers, servers, wire_dtype=wire_dtype)
    yield made
    closing = [threading.Thread(target=engine.close) for engine in made.engines.values()]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(20)


@pytest.mark.parametrize("servers", [[0, 1, 2], [3], [3, 4], [3, 4, 5, 6]], ids=str)
def test_norms_of_all_servers_make_that_of_the_averages(servers: list[int]) -> None:
    """Beside the workers or not, more than workers or fewer; pulls of one worker long after those of the others."""
    workers = [0, 1, 2]
    with network(workers, servers) as ranks:
        for step, kind in enumerate((2.0, 1.0, math.inf, 3.0, 0.5)):
            draw = torch.Generator().manual_seed(step)
            gradients = {rank: [torch.randn(n, generator=draw) for n in SIZES] for rank in workers}
            averages = [torch.stack(each).double().mean(dim=0) for each in zip(*gradients.values(), strict=True)]
            ranks.said.clear()
            ranks.put(gradients, kind)
            ranks.start(PUSH, workers)
            ranks.await_all(PUSH, workers)
            assert all(ranks.said.index((r, 0, "sent")) < ranks.said.index((r, 0, "done")) for r in workers)
            (norm,) = {ranks.buffers[r].shares.norm() for r in workers}  # the same to the bit
            expected = float(torch.linalg.vector_norm(torch.cat(averages), kind))
            assert norm == pytest.approx(expected, rel=1e-4)
            for some in ([2], [0, 1]):
                ranks.start(PULL, some)
                ranks.await_all(PULL, some)
            for own in gradients.values():
                for ours, theirs in zip(own, averages, strict=True):
                    torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-6)
            assert not any(engine._kept for engine in ranks.engines.values()), "sums that nobody asks for any more"


@pytest.mark.parametrize("wire_dtype", ["float16", "bfloat16"])
def test_the_norm_is_that_of_what_is_pulled(wire_dtype: str) -> None:
    with network([0, 1], [2], wire_dtype=wire_dtype) as ranks:
        gradients = {rank: [torch.full((n,), 3.0 + 2 * rank) for n in SIZES] for rank in (0, 1)}
        ranks.put(gradients, 2.0)
        ranks.start(PUSH, [0, 1])
        ranks.await_all(PUSH, [0, 1])
        assert [ranks.buffers[r].shares.norm() for r in (0, 1)] == pytest.approx([4.0 * 1005**0.5] * 2)
        ranks.start(PULL, [0, 1])
        ranks.await_all(PULL, [0, 1])
        assert all(bool((each == 4.0).all()) for own in gradients.values() for each in own)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_norms_that_are_not_finite_stay_so(bad: float) -> None:
    for kind in (2.0, math.inf):
        with network([0, 1], [0, 1]) as ranks:
            gradients = {rank: [torch.ones(n) for n in SIZES] for rank in (0, 1)}
            gradients[1][0][700] = bad
            ranks.put(gradients, kind)
            ranks.start(PUSH, [0, 1])
            ranks.await_all(PUSH, [0, 1])
            assert [ranks.buffers[r].shares.norm() for r in (0, 1)] == pytest.approx([bad] * 2, nan_ok=True)


def test_a_push_whose_norm_nobody_asked_for_is_none() -> None:
    with network([0, 1], [2]) as ranks:
        ranks.put({rank: [torch.ones(n) for n in SIZES] for rank in (0, 1)}, None)
        ranks.start(PUSH, [0, 1])
        ranks.await_all(PUSH, [0, 1])
        assert all(math.isnan(buffers.shares.norm()) for buffers in ranks.buffers.values())


@pytest.mark.parametrize("servers", [[0, 1, 2], [3]], ids=str)
def test_credit_comes_back_before_others_have_pushed(servers: list[int]) -> None:
    with network([0, 1, 2], servers) as ranks:
        ranks.put({rank: [torch.ones(n) for n in SIZES] for rank in (0, 1, 2)}, 2.0)
        ranks.start(PUSH, [0])
        ranks.await_that(lambda: ranks.said == [(0, 0, "sent")])
        ranks.start(PUSH, [1, 2])
        ranks.await_all(PUSH, [0, 1, 2])


def test_a_worker_that_is_gone_fails_pushes_and_the_pulls_behind_them() -> None:
    with network([0, 1], [2]) as ranks:
        ranks.put({rank: [torch.ones(n) for n in SIZES] for rank in (0, 1)}, 2.0)
        ranks.start(PUSH, [0])
        ranks.await_that(lambda: bool(ranks.said))
        ranks.engines[1]._to_server[2].sock.shutdown(socket.SHUT_RDWR)
        ranks.await_that(lambda: any("rank 1 is gone" in what for _, _, what in ranks.said))
        ranks.start(PULL, [0])
        ranks.await_that(lambda: any(block == 1 and "rank 1 is gone" in what for _, block, what in ranks.said))


def test_a_pull_of_what_nobody_pushed_ends_the_connection() -> None:
    with network([0], [1]) as ranks:
        ranks.put({0: [torch.ones(n) for n in SIZES]}, 2.0)
        ranks.engines[0]._pushed[SEGMENTS] = (7, 7)
        ranks.start(PULL, [0])
        ranks.await_that(lambda: any("rank 1 is gone" in what for _, _, what in ranks.said))
        ranks.await_that(lambda: ranks.engines[1].broken is not None)
