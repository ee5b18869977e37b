"""Halves of all-reduces by messages: norms on all ranks, and blocks that ranks start in any order."""

import math
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import permutations

import pytest
import torch
from jobs import make_job

from autobyte.config import Config
from autobyte.scheduler.block import Block
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.frames import HEADER, Connection, Kind
from autobyte.scheduler.engines.halves import QUIET_S, Halves
from autobyte.scheduler.engines.server import DTYPES
from autobyte.scheduler.policies import make_plan

RANKS = range(3)
SIZES = (1000, 5, 2)  # of the last one, a rank has no share
BLOCKS = make_plan(make_job(*SIZES), Config(4000, 4000)).clipped().tiling.blocks
SCATTERS, GATHERS = BLOCKS[: len(SIZES)], BLOCKS[len(SIZES) :]


class Network:
    """Three ranks, with gradients of their own."""

    def __init__(self, kind: float | None) -> None:
        made: list[dict[tuple[int, str], Connection]] = [{} for _ in RANKS]
        for rank, other in permutations(RANKS, 2):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                near = socket.create_connection(listener.getsockname())
                far, _ = listener.accept()
            made[rank][other, "server"], made[other][rank, "worker"] = Connection(near, other), Connection(far, rank)
        self.connections = made
        self.buffers = [Buffers(tensors=len(SIZES), scale=1 / 3) for _ in RANKS]
        self.gradients = [[torch.randn(n) for n in SIZES] for _ in RANKS]
        self.averages = [torch.stack(each).mean(dim=0) for each in zip(*self.gradients, strict=True)]
        for buffers, own in zip(self.buffers, self.gradients, strict=True):
            buffers.shares.measure(kind)
            for index, gradient in enumerate(own):
                buffers.put(index, gradient)
        self.engines = [
            Halves(buffers, rank=rank, ranks=RANKS, connections=made[rank])
            for rank, buffers in enumerate(self.buffers)
        ]
        self.said: list[tuple[int, int, str]] = []
        self._changed = threading.Condition()

    def start(self, rank: int, block: Block) -> None:
        self.engines[rank].start(
            block,
            lambda block: self._say(rank, block, "sent"),
            lambda block, error: self._say(rank, block, str(error or "done")),
        )

    def wait(self, blocks: tuple[Block, ...], what: str = "done", ranks: range = RANKS) -> None:
        wanted = {(rank, block.index, what) for rank in ranks for block in blocks}
        self.wait_for(lambda: wanted <= {*self.said})

    def wait_for(self, holds: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(holds, 20), self.said

    def compare(self) -> None:
        for own in self.gradients:
            for ours, theirs in zip(own, self.averages, strict=True):
                torch.testing.assert_close(ours, theirs)
        assert len(self.said) == len({*self.said}), "nothing is said twice"

    def _say(self, rank: int, block: Block, what: str) -> None:
        with self._changed:
            self.said.append((rank, block.index, what))
            self._changed.notify_all()


@pytest.fixture
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    made = Network(request.param)
    yield made
    closing = [threading.Thread(target=engine.close) for engine in made.engines]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(20)


@pytest.mark.parametrize("network", [2.0, math.inf, 1.0], indirect=True)
def test_all_ranks_know_the_norm_before_anything_is_gathered(network: Network) -> None:
    for block in SCATTERS:
        for rank in RANKS:
            network.start(rank, block)
    network.wait(SCATTERS)
    (norm,) = {buffers.shares.norm() for buffers in network.buffers}  # the same to the bit
    kind = network.buffers[0].shares.kind
    assert kind is not None
    assert norm == pytest.approx(float(torch.linalg.vector_norm(torch.cat(network.averages), kind)), rel=1e-5)
    for block in GATHERS:
        for rank in RANKS:
            network.start(rank, block)
    network.wait(GATHERS)
    network.compare()


@pytest.mark.parametrize("network", [None, 2.0], indirect=True)
def test_ranks_that_start_blocks_in_another_order_give_their_credit_back(network: Network) -> None:
    """Each with one block in flight, and an all-gather before its sum is here."""
    for rank in RANKS:
        network.start(rank, SCATTERS[rank])
    for rank in RANKS:
        network.wait((SCATTERS[rank],), "sent", range(rank, rank + 1))
    assert not any(what == "done" for *_, what in network.said)
    for rank in RANKS:
        network.start(rank, GATHERS[rank])
        network.wait((GATHERS[rank],), "sent", range(rank, rank + 1))
    for rank in RANKS:
        for block in (*SCATTERS, *GATHERS):
            if block not in (SCATTERS[rank], GATHERS[rank]):
                network.start(rank, block)
    network.wait(BLOCKS)
    network.compare()


@pytest.mark.parametrize("network", [2.0], indirect=True)
def test_a_share_that_waited_for_its_sum_goes_past_those_that_started_after_it(network: Network) -> None:
    """A rank that is ahead starts the front layers' all-gather first, and may not send it last."""
    front, behind = 0, 1
    for rank in RANKS:
        network.start(rank, SCATTERS[behind])
    network.wait(SCATTERS[behind : behind + 1])
    slow = network.connections[0][1, "worker"]
    send, slow.send = slow.send, lambda: None  # type: ignore[method-assign]
    network.start(0, SCATTERS[front])
    for rank in RANKS:
        network.start(rank, GATHERS[front])  # its sum is not here
        network.start(rank, GATHERS[behind])
    for rank in RANKS[1:]:
        network.start(rank, SCATTERS[front])
    network.wait(SCATTERS[front : front + 1])
    network.wait(GATHERS[:2], ranks=range(2, 3))
    slow.send = send  # type: ignore[method-assign]
    network.engines[0]._loop.do(lambda: network.engines[0]._loop.flush(slow))
    network.wait(GATHERS[:2])
    gathers = [GATHERS[front].index, GATHERS[behind].index]
    assert [
        index for rank, index, what in network.said if (rank, what) == (1, "done") and index in gathers
    ] == gathers


def test_a_block_of_which_a_part_comes_in_keeps_its_credit() -> None:
    """Nothing wakes the thread meanwhile; but nobody waits for another block either."""
    near, far, connections = {}, {}, {}
    for role in ("server", "worker"):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            near[role] = socket.create_connection(listener.getsockname())
            far[role], _ = listener.accept()
        connections[1, role] = Connection(near[role], 1)
    buffers = Buffers(tensors=1, scale=None)
    buffers.put(0, torch.ones(SIZES[0]))
    engine, sent = Halves(buffers, rank=0, ranks=range(2), connections=connections), threading.Event()
    block, nbytes = SCATTERS[0], 2 * SIZES[0]  # half of it
    try:
        far["worker"].sendall(HEADER.pack(Kind.PUSH, DTYPES.index(torch.float32), 1, block.index, nbytes, 0.0))
        far["worker"].sendall(bytes(nbytes // 2))
        engine.start(block, lambda block: sent.set(), lambda block, error: None)
        far["server"].recv(HEADER.size + nbytes, socket.MSG_WAITALL)  # all that the rank has sent
        assert not sent.wait(20 * QUIET_S)
        far["worker"].sendall(bytes(nbytes // 2))
        assert sent.wait(5)
    finally:
        for sock in far.values():
            sock.close()
        engine.close()
