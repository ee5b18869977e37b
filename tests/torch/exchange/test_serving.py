"""Servers on ranks of their own: they sum, end with their workers, and end them if one is lost."""

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
import tuned
from faulty import (
    SMALL,
    WHERE,
    make_model,
    said,
    train,
)
from ranks import Ranks, on_ranks
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab
from autobyte.errors import InputError
from autobyte.torch.exchange.serving import LISTEN_S


@pytest.mark.parametrize("clips", [False, True], ids=["whole", "clipped"])
def test_a_server_rank_that_is_killed_ends_all_workers(clips: bool) -> None:
    """The other server hears that its workers have ended, in a sum or between two, and does the same."""
    outcomes = Ranks(_loses_a_server, 4, clips, timeout_s=30).outcomes()
    assert outcomes[3] is None
    assert re.match(r"ended|CommunicationError: server rank 2: rank [01]", str(outcomes[2])), outcomes[2]
    for rank in (0, 1):
        assert re.match("CommunicationError: " + WHERE.format(rank=rank), said(outcomes[rank])), outcomes[rank]
        assert "rank 3 is gone" in said(outcomes[rank])


def _loses_a_server(rank: int, clips: bool, how: signal.Signals = signal.SIGKILL) -> str:
    """Ranks 0 and 1 train, 2 and 3 serve; 3 is lost after a while."""
    workers = dist.new_group([0, 1])
    if rank == 3:
        threading.Timer(1.5, lambda: os.kill(os.getpid(), how)).start()
    if rank > 1:
        ab.serve([2, 3], timeout=timedelta(seconds=20))
        return "ended"
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    keywords = {"config": SMALL, "timeout": timedelta(seconds=20 if how is signal.SIGKILL else 3)}
    wrapper = ab.DistributedOptimizer(
        optimizer, model, engine="ps", servers=[2, 3], process_group=workers, **keywords
    )
    if clips:
        wrapper.step = partial(_clip_and_step, wrapper, wrapper.step)
    try:
        train(model, wrapper, rank, range(10**9))
    finally:
        with contextlib.suppress(ab.CommunicationError):
            wrapper.close()
    return "went on"


def _clip_and_step(wrapper: ab.DistributedOptimizer, step: Callable[[], object]) -> None:
    wrapper.clip_grad_norm_(0.05)
    step()


@pytest.mark.parametrize("clips", [False, True], ids=["whole", "clipped"])
def test_a_server_rank_that_is_stopped_is_named_and_ends_after_its_workers(clips: bool) -> None:
    ranks = Ranks(_loses_a_server, 4, clips, signal.SIGSTOP, timeout_s=30)
    for rank in (0, 1):
        ranks.processes[rank].join(20)
    began = time.monotonic()
    ranks.signal(3, signal.SIGCONT)
    outcomes = ranks.outcomes()
    assert time.monotonic() - began < 8
    for rank in (0, 1):
        assert re.search(r"; no word from rank 3 \(a server\); details in \S+$", said(outcomes[rank])), outcomes[rank]
    for rank in (2, 3):
        assert re.match(r"ended|CommunicationError: server rank [23]: ", str(outcomes[rank])), outcomes[rank]


def test_servers_end_at_once_when_their_workers_are_refused() -> None:
    ranks = Ranks(_refused_workers, 3, timeout_s=30)
    began = time.monotonic()
    outcomes = ranks.outcomes()
    assert time.monotonic() - began < 20
    assert "ranks [1] have settings unlike rank 0's" in said(outcomes[0])
    assert re.match(
        r"CommunicationError: server rank 2: ranks \[1\] have settings unlike rank 0's", said(outcomes[2])
    )


def _refused_workers(rank: int) -> None:
    workers = dist.new_group([0, 1])
    if rank == 2:
        try:
            ab.serve([2], timeout=timedelta(seconds=60))
        finally:
            names = [thread.name for thread in threading.enumerate()]
            assert not {"autobyte-connect", "autobyte-deadline"} & {*names}, names  # nothing listens on
        return
    model, keywords = make_model(), {"engine": "ps", "servers": [2], "process_group": workers}
    try:
        ab.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, accumulation=1 + rank, **keywords)
    finally:
        time.sleep(2 * LISTEN_S)  # rank 0 has the store


def test_ranks_of_their_own_serve() -> None:
    on_ranks(_served, 4)


def _served(rank: int) -> None:
    workers = dist.new_group([0, 1])
    if rank >= 2:
        ab.serve([2, 3])
        return
    theirs, ours = tuned.make_model(), tuned.make_model()
    tuned.train(DistributedDataParallel(theirs, process_group=workers), tuned.adam(theirs), rank, 20)
    optimizer = ab.DistributedOptimizer(tuned.adam(ours), ours, engine="ps", servers=[2, 3], process_group=workers)
    tuned.train(ours, optimizer, rank, 20)
    optimizer.flush()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    optimizer.close()


def test_servers_must_not_train() -> None:
    on_ranks(_cannot_serve, 2)


def _cannot_serve(rank: int) -> None:
    with pytest.raises(InputError, match="not among the servers"):
        ab.serve([1 - rank])
    with pytest.raises(InputError, match="do not train"):
        ab.serve([0, 1])
    model = tuned.make_model()
    with pytest.raises(InputError, match="servers= is for engine='ps'"):
        ab.DistributedOptimizer(tuned.adam(model), model, servers=[1])
    with pytest.raises(InputError, match=r"servers=\[1\]: ranks \[1\] train; leave servers= out"):
        ab.DistributedOptimizer(tuned.adam(model), model, engine="ps", servers=[1])
