"""A failure names the ranks that are silent."""

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from faulty import ENGINES, STEPS, WHERE, at_once, fail, make_model, said, train, wrapped
from ranks import Ranks

import autobyte.torch as ab
from autobyte.exchange import rollcall
from autobyte.exchange.control import CommunicationError
from autobyte.internals import default_store, own_store
from autobyte.scheduler.block import Block, Segment
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.ordered import Ordered
from autobyte.scheduler.engines.streams import HostStreams
from autobyte.torch.exchange import lookout, ways


def test_ranks_of_a_group_are_named_as_torchrun_numbers_them() -> None:
    launches = [Ranks(_grouped, 3, engine, timeout_s=30) for engine in (*ENGINES, "leader", "dear")]
    for ranks in launches:
        outcomes = ranks.outcomes()
        assert (outcomes[0], outcomes[2]) == ("was there", None)
        assert re.match("CommunicationError: " + WHERE.format(rank=1), said(outcomes[1])), outcomes[1]
        assert "no word from rank 2" in said(outcomes[1])
        assert "rank 0" not in said(outcomes[1])


def _grouped(rank: int, engine: str) -> str:
    """Ranks 1 and 2 train, 0 has the store; 2 is lost."""
    group, store = dist.new_group([1, 2]), default_store()
    if rank == 0:
        store.wait(["over"], timedelta(seconds=25))
        return "was there"
    model = make_model()
    with pytest.raises(CommunicationError, match=r"ranks \[2\] have settings unlike rank 1's; rank [12] has"):
        ab.DistributedOptimizer(
            torch.optim.SGD(model.parameters()), model, policy=["ddp", "horovod"][rank - 1], process_group=group
        )
    optimizer = wrapped(model, engine, timedelta(seconds=15), group=group)
    train(model, optimizer, rank, range(3))
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        train(model, optimizer, rank, range(3, STEPS))
        optimizer.flush()
    finally:
        store.set("over", "yes")
    return "went on"


def test_a_rank_that_waits_for_one_that_has_failed_hears_of_it() -> None:
    """Rank 0 knows that rank 1 is gone, and does not come to what rank 2 waits for."""
    ranks = Ranks(_waiting, 3, timeout_s=30)
    outcomes = ranks.outcomes()
    assert outcomes[1] is None
    assert "could not share a plan: rank 0 has failed; no word from rank 1" in outcomes[2]


def _waiting(rank: int) -> str:
    model = make_model()
    optimizer = wrapped(model, "allreduce", timedelta(seconds=25))
    assert optimizer.training is not None
    control = optimizer.training.control
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        control.rollcall.alarm("rank 0 has failed")
        time.sleep(6)  # alive, busy with something else
        return ""
    with pytest.raises(CommunicationError) as caught:
        control.share(None)
    return str(caught.value)


@pytest.mark.parametrize("engine", ["allreduce", "ordered"])
def test_a_stall_is_a_line_in_the_log_while_it_lasts(engine: str) -> None:
    """Rank 1 is stopped for a while, then goes on: no failure, and one line that names it."""
    ranks = Ranks(_stalls, 3, engine, timeout_s=30)
    lines = ranks.results()
    assert lines[1] == []
    for rank in (0, 2):
        (line,) = lines[rank]
        what = r"(tensor '\d\.(weight|bias)' has not arrived|could not .*|a step has not ended)"
        assert re.fullmatch(rf"rank {rank}, step \d+: {what} for 2 s; no word from rank 1", line), line


def _stalls(rank: int, engine: str) -> list[str]:
    model = make_model()
    optimizer = wrapped(model, engine, timedelta(seconds=20))
    assert optimizer.training is not None
    optimizer.training.control.rollcall._stall_s = 2
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("autobyte").addHandler(handler)
    train(model, optimizer, rank, range(3))
    if rank == 1:
        time.sleep(6)
    train(model, optimizer, rank, range(3, STEPS))
    optimizer.close()
    return lines


def test_one_block_that_is_always_under_way_is_not_late() -> None:
    """A plan of one block on a device that is behind: step after step, the same block is the oldest."""
    streams = HostStreams(late=lambda: time.sleep(0.1))
    buffers = Buffers(tensors=1, scale=None, streams=streams)
    buffers.put(0, torch.ones(4))
    alone = SimpleNamespace(size=lambda: 1, allreduce=lambda *_: None)
    engine, block = Ordered(buffers, alone), Block(0, (Segment(0, 0, 4),), 16)
    session = Told()
    looking = lookout.Lookout(session, engine)  # type: ignore[arg-type]
    for _ in range(12):
        engine.start(block, lambda _: None, lambda *_: None)
    while engine.late() is not None:
        time.sleep(0.05)
    looking.close()
    engine.close()
    assert session.said == []


class Told:
    """A session that is told what goes wrong."""

    timeout_s = 0.5

    def __init__(self) -> None:
        self.said: list[str] = []

    def fail_block(self, block: Block, error: Exception) -> None:
        self.said.append(f"block {block.index}: {error}")

    def ignore(self) -> None:
        self.said.append("ignores what another wait listens to")


def test_a_stall_that_lasts_is_said_again_with_its_length(
    alone: rollcall.RollCall, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in (("LONG_S", 0.0), ("AGAIN_S", 1.5), ("ANSWER_S", 0.1)):
        monkeypatch.setattr(rollcall, name, value)
    alone.listen(lambda _: None, where=lambda: "rank 0, step 5: tensor 'x' has not arrived")
    until = time.monotonic() + 10
    while len(caplog.messages) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    alone.ignore()
    said = [re.fullmatch(r".* has not arrived for (\d+) s; no word from rank 1", line) for line in caplog.messages]
    first, second = (int(line[1]) for line in said if line is not None)
    assert 1 <= first < second


def test_who_listens_no_more_hears_nothing_though_another_listens(alone: rollcall.RollCall) -> None:
    early: list[str] = []
    late: list[str] = []
    alone.listen(early.append, every_s=0.3)
    time.sleep(0.1)
    alone.ignore()
    alone.listen(late.append, every_s=0.3)
    rollcall.RollCall("alone", rank=1, ranks=[0, 1]).alarm("rank 1 has failed")
    time.sleep(1)
    alone.ignore()
    assert (early, late) == ([], ["rank 1 has failed"])


def test_an_alarm_of_a_stranger_drowns_no_other(alone: rollcall.RollCall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOBYTE_SECRET", "known to the ranks")
    heard: list[str] = []
    alone._store.set("alarm", "0" * 64 + "rank 7 has failed")
    alone.listen(heard.append, every_s=0.05)
    time.sleep(0.3)
    rollcall.RollCall("alone", rank=1, ranks=[0, 1]).alarm("rank 1 has failed", patience_s=1.0)
    time.sleep(0.5)
    alone.ignore()
    assert heard == ["rank 1 has failed"]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> rollcall.RollCall:
    """Of rank 0, at a store of this process."""
    store = dist.HashStore()
    monkeypatch.setattr(rollcall, "default_store", lambda: store)
    monkeypatch.setattr(rollcall, "own_store", lambda store: store)
    return rollcall.RollCall("alone", rank=0, ranks=[0, 1], stall_s=1.2)


def test_it_asks_where_the_ranks_met_though_the_default_group_is_another_by_now() -> None:
    met, other = dist.HashStore(), dist.HashStore()
    dist.init_process_group("gloo", store=met, rank=0, world_size=1)
    roll = rollcall.RollCall("again", rank=0, ranks=[0, 1])
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=other, rank=0, world_size=1)
    before = met.num_keys(), other.num_keys()
    roll.alarm("rank 0 has failed", patience_s=5.0)
    dist.destroy_process_group()
    assert (met.num_keys(), other.num_keys()) == (before[0] + 2, before[1])


def test_nobody_waits_for_a_store_whose_host_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    host = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", host.port, timeout=timedelta(seconds=5))
    monkeypatch.setattr(rollcall, "default_store", lambda: dist.PrefixStore("attempt0", client))
    roll = rollcall.RollCall("gone", rank=0, ranks=[0, 1])
    del host
    began_s = time.monotonic()
    roll.alarm("rank 0 has failed", patience_s=5.0)
    assert "its host is gone" in roll.absent()
    assert time.monotonic() - began_s < 2
    assert "autobyte-rollcall" not in [thread.name for thread in threading.enumerate()]


def test_nobody_waits_for_a_store_whose_host_accepts_and_is_gone_then() -> None:
    """A process that is killed closes its sockets one by one: its peers may see others closed before the store's."""
    host = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", host.port, timeout=timedelta(seconds=5))
    del host
    with socket.create_server(("127.0.0.1", client.port)) as listener:
        threading.Timer(0.05, lambda: (listener.accept()[0].close(), listener.close())).start()
        began_s = time.monotonic()
        with pytest.raises(ConnectionError):
            own_store(dist.PrefixStore("attempt0", client))
    assert time.monotonic() - began_s < 2


def test_a_host_is_not_gone_because_to_connect_takes_long(
    alone: rollcall.RollCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PyTorch does where a name server does not answer, and longer than anybody is patient with a connection."""
    monkeypatch.setattr(rollcall, "own_store", lambda store: time.sleep(0.8) or store)
    monkeypatch.setattr(rollcall, "PATIENCE_S", 0.3)
    assert alone.absent() == "no word from rank 1"


def test_an_alarm_after_the_end_is_not_heard_by_the_next_training(alone: rollcall.RollCall) -> None:
    """Though the next one has the same name, because the user has made another default group on the same store."""
    alone.close()
    alone.alarm("rank 0 has failed", patience_s=5.0)
    assert not rollcall.default_store().check(["autobyte/alone/rollcall/alarm"])
    following = rollcall.RollCall("alone", rank=0, ranks=[0, 1])
    following.alarm("rank 0 has failed", patience_s=5.0)
    assert rollcall.default_store().check(["autobyte/alone/rollcall/alarm"])


def test_a_rank_that_never_comes_is_named() -> None:
    for ranks in at_once(_alone, 2):
        outcomes = ranks.outcomes()
        assert re.match(
            r"CommunicationError: rank 0, step 0: could not meet .*; no word from rank 1", said(outcomes[0])
        )


def _alone(rank: int, engine: str) -> None:
    if rank == 0:
        wrapped(make_model(), engine)


def test_who_meets_hears_that_another_has_failed() -> None:
    """A rank that fails between two meetings will not come to the second."""
    ranks = Ranks(_fails_between, 3, timeout_s=40)
    outcomes = [said(outcome) for outcome in ranks.outcomes()]
    assert outcomes[1] == "RuntimeError: out of luck"
    for rank in (0, 2):
        why = "could not meet the other ranks: rank 1, step 0: could not begin: out of luck"
        assert outcomes[rank].startswith(f"CommunicationError: rank {rank}, step 0: {why}; "), outcomes[rank]


def _fails_between(rank: int) -> None:
    if rank == 1:
        ways.connector = lambda _engine: fail
    wrapped(make_model(), "allreduce", timedelta(seconds=300))


def test_a_thread_that_asks_the_store_is_back_before_the_process_ends() -> None:
    """Else the interpreter takes away what the store needs, and the process may crash."""
    script = """
import time
from autobyte.exchange import rollcall

def ask():
    time.sleep(0.3)
    print("back", flush=True)

rollcall._in_thread(ask)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "back\n"
