"""Waits for gradients that do not come end in time, and say rank, step and tensor."""

import os
import re
import signal
import threading
import time
from datetime import timedelta
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from faulty import STEPS, WHERE, at_once, by_ddp, fail, make_model, once, said, state, train, wrapped
from jobs import make_plan
from ranks import Ranks, server

from autobyte.exchange import session as session_module
from autobyte.exchange.control import CommunicationError
from autobyte.exchange.engines import ENGINES as ENGINES_OF_TRAINING
from autobyte.exchange.progress import Progress
from autobyte.exchange.rollcall import LONG_S
from autobyte.exchange.session import Session
from autobyte.scheduler.block import Block
from autobyte.scheduler.engines.base import Done, Engine, Sent
from autobyte.testing import Faults, FaultyEngine


class StillAtWork(Engine):
    """Blocks are done for the host at once; a device is still at work on those in `kept`."""

    def __init__(self) -> None:
        self.kept: list[Block] = []

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        self.kept.append(block)
        sent(block)
        done(block, None)

    def unfinished(self) -> list[Block]:
        return self.kept

    def close(self) -> None:
        """Nothing to let go of."""


class Later(Engine):
    """Blocks are done when they are told to come."""

    def __init__(self) -> None:
        self._left: list[tuple[Block, Sent, Done]] = []

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        self._left.append((block, sent, done))

    def come(self) -> None:
        for block, sent, done in self._left:
            sent(block)
            done(block, None)

    def close(self) -> None:
        """Nothing to let go of."""


class NobodySilent:
    """A roll call to which all answer."""

    heard = ""

    def alarm(self, message: str) -> None:
        """Nobody listens."""

    def absent(self) -> str:
        return "all ranks are alive"


class OneSilent(NobodySilent):
    """A roll call that takes a moment."""

    def absent(self) -> str:
        time.sleep(0.2)
        return "no word from rank 1"


def test_a_failure_names_the_silent_rank_once_whoever_raises_it() -> None:
    """Though another failure, which names it too, comes between; and though threads raise it at the same time."""
    session = Session(
        make_plan(8), Later(), rank=0, timeout=timedelta(seconds=20), progress=Progress(), rollcall=OneSilent()
    )
    session.fail(CommunicationError("rank 0, step 0: a block is late"))
    session.fail(CommunicationError("rank 0, step 0: no counts; no word from rank 1"), names_silent=True)
    raised = list[str]()

    def check() -> None:
        with pytest.raises(CommunicationError) as error:
            session.check()
        raised.append(str(error.value))

    threads = [threading.Thread(target=check) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert raised == ["rank 0, step 0: a block is late; no word from rank 1"] * 3


def test_a_plan_never_changes_while_blocks_of_the_last_are_on_a_device() -> None:
    first, second, engine = make_plan(8, 4), make_plan(8, 4, piece=4), StillAtWork()
    session = Session(
        first, engine, rank=3, timeout=timedelta(seconds=0.1), progress=Progress(), rollcall=NobodySilent()
    )
    session.begin(first)
    session.ready((0, 1))
    session.end()
    engine.kept = engine.kept[:1]
    with pytest.raises(CommunicationError, match=r"^rank 3, step 0: tensor 'l0.0' .*the plan cannot change.* 0.1 s"):
        session.begin(second)
    assert session.plan is first
    engine.kept = []
    with pytest.raises(CommunicationError, match="the plan cannot change"):  # what has failed stays so
        session.begin(second)


class UnseenElsewhere(set[int]):
    """What one thread has added, others do not see yet."""

    def __contains__(self, tensor: object) -> bool:
        return False


def test_without_a_global_lock_nobody_waits_for_what_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "FREE_THREADED", True)
    plan, engine, took = make_plan(8), Later(), list[float]()
    session = Session(
        plan, engine, rank=0, timeout=timedelta(seconds=20), progress=Progress(), rollcall=NobodySilent()
    )
    monkeypatch.setattr(session, "_awaited", UnseenElsewhere())
    session.begin(plan)
    session.ready([0])
    began_s = time.monotonic()
    waiting = threading.Thread(target=lambda: (session.wait([0]), took.append(time.monotonic() - began_s)))
    waiting.start()
    time.sleep(0.1)
    engine.come()
    waiting.join()
    assert took[0] < LONG_S  # after which it would look by itself


def test_a_rank_that_is_killed_is_named_by_all_others() -> None:
    """With parameter servers on the ranks' hosts, a server is lost besides."""
    others = [Ranks(_killed, 3, engine, "backward", timeout_s=30) for engine in ("leader", "dear")]
    for ranks in (*at_once(_killed, 3, ("forward", "backward", "after step")), *others):
        outcomes = ranks.outcomes()
        assert outcomes[1] is None
        for rank in (0, 2):
            assert re.match("CommunicationError: " + WHERE.format(rank=rank), said(outcomes[rank])), outcomes[rank]
            assert "no word from rank 1" in said(outcomes[rank])


def _killed(rank: int, engine: str, when: str) -> None:
    model = make_model()
    optimizer = wrapped(model, engine, timedelta(seconds=15))
    train(model, optimizer, rank, range(6))
    if rank == 1:
        place = model[1] if when == "forward" else None
        if place is not None:
            place.register_forward_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        elif when == "backward":
            model[2].weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    train(model, optimizer, rank, range(6, 8))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    train(model, optimizer, rank, range(8, STEPS))
    optimizer.flush()


def test_a_rank_that_is_stopped_for_less_than_the_timeout_changes_nothing() -> None:
    both = at_once(_stopped, 2, (1,), 40.0)
    _stop_and_go([(ranks, 1) for ranks in both], 10.0)
    for ranks in both:
        assert ranks.results() == [True, True]


def test_a_rank_that_is_stopped_for_longer_is_named() -> None:
    """Rank 0 is the host of the store through which the silent one is found out."""
    stopped = [(ranks, rank) for rank in (0, 1) for ranks in at_once(_stopped, 2, (rank,), 2.0)]
    _stop_and_go(stopped, 10.0)
    for ranks, rank in stopped:
        outcomes = ranks.outcomes()
        waited = said(outcomes[1 - rank])
        assert re.match("CommunicationError: " + WHERE.format(rank=1 - rank), waited), waited
        assert f"no word from rank {rank}" in waited or (rank == 0 and "the store at which the ranks met" in waited)
        assert f"rank {rank}, step" in said(outcomes[rank])


def _stop_and_go(stopped: list[tuple[Ranks, int]], seconds: float) -> None:
    until = time.monotonic() + 20
    for ranks, rank in stopped:
        status = Path(f"/proc/{ranks.processes[rank].pid}/status")
        while "State:\tT" not in status.read_text():
            assert time.monotonic() < until
            time.sleep(0.05)
    time.sleep(seconds)
    for ranks, rank in stopped:
        ranks.signal(rank, signal.SIGCONT)


def _stopped(rank: int, engine: str, stopped: int, timeout_s: float) -> bool:
    expected = by_ddp(rank)
    model = make_model()
    optimizer = wrapped(model, engine, timedelta(seconds=timeout_s))
    train(model, optimizer, rank, range(6))
    if rank == stopped:
        model[2].weight.register_hook(once(lambda: os.kill(os.getpid(), signal.SIGSTOP)))
    train(model, optimizer, rank, range(6, STEPS))
    return all(torch.equal(a, b) for a, b in zip(state(model, optimizer), expected, strict=True))


def test_an_exception_in_one_rank_ends_the_others() -> None:
    for ranks in at_once(_raising, 3, ("forward", "backward")):
        outcomes = ranks.outcomes()
        assert "RuntimeError: out of luck" in said(outcomes[1])
        for rank in (0, 2):
            assert re.match("CommunicationError: " + WHERE.format(rank=rank), said(outcomes[rank])), outcomes[rank]
            assert "no word from rank 1" in said(outcomes[rank])


def _raising(rank: int, engine: str, where: str) -> None:
    model = make_model()
    optimizer = wrapped(model, engine, timedelta(seconds=5))
    train(model, optimizer, rank, range(6))
    if rank == 1:
        if where == "forward":
            model[3].register_forward_hook(fail)
        else:
            model[2].weight.register_hook(fail)
    train(model, optimizer, rank, range(6, STEPS))
    optimizer.flush()


def test_a_rank_that_parts_does_not_wait_for_those_that_are_busy() -> None:
    """It has raised, say, and the others evaluate: they hear of it when they go on."""
    launches = [Ranks(_leaves, 2, engine, timeout_s=60) for engine in ("ps", "dear", "leader")]
    for ranks in launches:
        outcomes = ranks.outcomes()
        assert outcomes[1] < 8
        assert re.match("CommunicationError: " + WHERE.format(rank=0), said(outcomes[0])), outcomes[0]


def _leaves(rank: int, engine: str) -> float:
    model = make_model()
    optimizer = wrapped(model, engine, timedelta(seconds=40))
    train(model, optimizer, rank, range(4))
    optimizer.flush()
    if rank == 0:
        time.sleep(15)
        train(model, optimizer, rank, range(4, STEPS))
    began = time.monotonic()
    optimizer.close()
    return time.monotonic() - began


@pytest.mark.parametrize("fault", ["fail", "hang", "delay", "jitter"])
def test_an_engine_that_fails_on_purpose(fault: str) -> None:
    """Whatever engine is underneath: the rank whose block fails says so, and the other one hears it."""
    for ranks in at_once(_faulty, 2, (fault,)):
        outcomes = ranks.outcomes()
        if fault in ("delay", "jitter"):
            assert outcomes == [True, True]
            continue
        for rank in (0, 1):
            assert re.match("CommunicationError: " + WHERE.format(rank=rank), said(outcomes[rank])), outcomes[rank]
        why = "failed on purpose on rank 1" if fault == "fail" else "did not arrive within 3 s"
        assert any(why in said(outcome) for outcome in outcomes), outcomes


def _faulty(rank: int, engine: str, fault: str) -> bool:
    expected = by_ddp(rank)
    faults = {
        "fail": Faults().fail_at(rank=1, step=7),
        "hang": Faults().hang_at(rank=1, step=7),
        "delay": Faults().delay_at(rank=1, step=7, seconds=1.0),
        "jitter": Faults().jitter(2e-3, seed=rank),
    }[fault]
    make = ENGINES_OF_TRAINING[engine]

    def faulty(training: Any, timeout: timedelta) -> FaultyEngine:
        return FaultyEngine(make(training, timeout), faults, rank=rank, step=begun)

    def begun() -> int:
        return int(optimizer.training.session.runner.step)

    ENGINES_OF_TRAINING[engine] = faulty
    model = make_model()
    optimizer = wrapped(model, engine, timedelta(seconds=3))
    train(model, optimizer, rank)
    return all(torch.equal(a, b) for a, b in zip(state(model, optimizer), expected, strict=True))


def test_ranks_that_fail_end_by_themselves_and_leave_no_process() -> None:
    server(()).ensure_running()
    resource_tracker.ensure_running()
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    ranks = Ranks(_killed, 3, "ps", "backward", timeout_s=30)
    for process in ranks.processes:
        process.join(30)
    ended = [process.exitcode for process in ranks.processes]
    assert [ended[0], ended[2]] == [0, 0], ended  # they have said why; nobody has killed them
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    _, alive = psutil.wait_procs(left, timeout=5)
    assert not alive, [child.name() for child in alive]
