"""Blocks that other libraries' servers add up: the contract, keys that are used again, processes that die."""

import threading
from typing import ClassVar

import pytest
import torch
from clusters import WITH_BYTEPS, WITH_MXNET, carried

from autobyte.exchange import clusters
from autobyte.scheduler.block import Block, Segment
from autobyte.scheduler.engines import carried as module
from autobyte.scheduler.engines.base import Engine
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.testing import EngineContract


class CarriedContract(EngineContract):
    """What else holds of an engine whose blocks processes of its own carry."""

    framework: ClassVar[str]

    @pytest.mark.parametrize("role", ["server", "scheduler"])
    def test_says_which_process_is_gone(self, role: str) -> None:
        """What travels fails at once on all ranks, and names it."""
        with self._network(2) as ranks:
            ranks.move(block := Block(0, (Segment(0, 0, 1000),), 4000))
            said: list[str] = []
            heard = threading.Semaphore(0)

            def done(_: Block, error: Exception | None) -> None:
                said.append(str(error))
                heard.release()

            engine = ranks.engines[0]
            assert isinstance(engine, module.Carried)
            engine.start(block, lambda _: None, done)  # waits for the other rank
            of = {"scheduler": 0, "server": 1, "worker": 2}
            engine._carriers._processes[of[role]].kill()
            assert heard.acquire(timeout=10)
            assert said == [f"the {role} of {self.framework} on rank 0 is gone"]
            ranks.start(1, block)
            ranks.wait_for(lambda: "failed" in ranks.events(1, block))


@WITH_MXNET
class TestKVStore(CarriedContract):
    framework = "MXNet"
    ranks = (2, 3)

    def connect(self, buffers: list[Buffers]) -> list[Engine]:
        return carried(buffers, clusters.mxnet())

    def test_uses_keys_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Servers forget none: blocks of one size that are more than the keys wait for each other."""
        monkeypatch.setattr(module, "SAME_BYTES", 2 * 400)
        with self._network(2) as ranks:
            for first in (0, 50):  # the second plan cuts elsewhere, into blocks of the same size
                blocks = [Block(i, (Segment(0, 100 * i + first, 100 * i + first + 100),), 400) for i in range(9)]
                ranks.renew()
                expected = ranks.averages([segment for block in blocks for segment in block.segments])
                for block in blocks:
                    for rank in range(2):
                        ranks.start(rank, block)
                ranks.wait()
                ranks.compare(expected, torch.finfo(torch.float32).eps)
            engine = ranks.engines[0]
            assert isinstance(engine, module.Carried)
            assert len(engine._keys) == 2


@WITH_BYTEPS
class TestBytePS(CarriedContract):
    framework = "BytePS"
    ranks = (2,)
    steps = 30

    def connect(self, buffers: list[Buffers]) -> list[Engine]:
        return carried(buffers, clusters.byteps_library())
