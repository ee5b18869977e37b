"""An engine around another one that fails, hangs or dawdles where a test says so."""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec, Self

from autobyte.errors import AutoByteError
from autobyte.scheduler.block import Block
from autobyte.scheduler.engines.base import Done, Engine, Sent

P = ParamSpec("P")


class InjectedError(AutoByteError):
    """A failure that a test injects."""


@dataclass
class Faults:
    """What goes wrong, where and when.

    >>> faults = Faults().fail_at(rank=1, step=3).jitter(1e-4, seed=7)
    >>> engine = FaultyEngine(engine, faults, rank=rank, step=lambda: runner.step)

    `rank` counts from 0, `step` too. A fault strikes the first block its rank starts in that step. After a failure
    or a hang the rank moves nothing more: engines that match blocks by order would add up different ones.
    """

    jitter_s: float = 0.0
    seed: int = 0
    _at: dict[tuple[int, int], tuple[str, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fail_at(self, rank: int, step: int) -> Self:
        """Nothing is moved from here on; `done` gets an `InjectedError`."""
        return self._add(rank, step, "fail")

    def hang_at(self, rank: int, step: int) -> Self:
        """Nothing is moved from here on, and nobody is told."""
        return self._add(rank, step, "hang")

    def delay_at(self, rank: int, step: int, seconds: float) -> Self:
        """The block is moved, after a while."""
        return self._add(rank, step, "delay", seconds)

    def jitter(self, seconds: float, *, seed: int = 0) -> Self:
        """Before every start and callback: a random time of at most so many seconds, often none."""
        self.jitter_s, self.seed = seconds, seed
        return self

    def strike(self, rank: int, step: int) -> tuple[str, float] | None:
        """What happens to a rank's block that starts in a step."""
        with self._lock:
            return self._at.pop((rank, step), None)

    def _add(self, rank: int, step: int, what: str, seconds: float = 0.0) -> Self:
        self._at[rank, step] = what, seconds
        return self


class FaultyEngine(Engine):
    """Moves blocks with another engine, unless a fault strikes.

    Args:
        engine: does the work.
        faults: shared by the ranks of a test.
        rank: of this process.
        step: the step in which the scheduler is, such as `Runner.step`.
    """

    def __init__(self, engine: Engine, faults: Faults, *, rank: int, step: Callable[[], int]) -> None:
        self._engine = engine
        self._faults = faults
        self._rank = rank
        self._step = step
        self._random = random.Random(f"{faults.seed} {rank}")
        self._for_good: tuple[str, float] | None = None

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        """Start a block, or let it fail."""
        fault = self._for_good or self._faults.strike(self._rank, self._step())
        self._dawdle()
        if fault is None:
            self._engine.start(block, self._late(sent), self._late(done))
        elif fault[0] == "delay":
            time.sleep(fault[1])
            self._engine.start(block, sent, done)
        else:
            self._for_good = fault
            if fault[0] == "fail":
                done(block, InjectedError(f"failed on purpose on rank {self._rank}"))

    def close(self) -> None:
        """Close the other engine."""
        self._engine.close()

    def _late(self, callback: Callable[P, None]) -> Callable[P, None]:
        def called(*arguments: P.args, **keywords: P.kwargs) -> None:
            self._dawdle()
            callback(*arguments, **keywords)

        return called

    def _dawdle(self) -> None:
        if self._faults.jitter_s and self._random.random() < 0.2:
            time.sleep(self._random.random() * self._faults.jitter_s)
