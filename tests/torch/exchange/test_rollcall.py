"""A failure names the ranks that are silent."""

import logging
import os
import re
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from faulty import ENGINES, STEPS, WHERE, at_once, make_model, said, train, wrapped
from ranks import Ranks

import autobyte.torch as ab
from autobyte.internals import default_store
from autobyte.torch.exchange.control import CommunicationError


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


def test_a_stall_is_a_line_in_the_log_while_it_lasts() -> None:
    """Rank 1 is stopped for a while, then goes on: no failure, and one line that names it."""
    ranks = Ranks(_stalls, 3, timeout_s=30)
    lines = ranks.results()
    assert lines[1] == []
    for rank in (0, 2):
        (line,) = lines[rank]
        what = r"(tensor '\d\.(weight|bias)' has not arrived|could not .*|a step has not ended)"
        assert re.fullmatch(rf"rank {rank}, step \d+: {what} for 2 s; no word from rank 1", line), line


def _stalls(rank: int) -> list[str]:
    model = make_model()
    optimizer = wrapped(model, "allreduce", timedelta(seconds=20))
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


def test_a_rank_that_never_comes_is_named() -> None:
    for ranks in at_once(_alone, 2):
        outcomes = ranks.outcomes()
        assert re.match(
            r"CommunicationError: rank 0, step 0: could not meet .*; no word from rank 1", said(outcomes[0])
        )


def _alone(rank: int, engine: str) -> None:
    if rank == 0:
        wrapped(make_model(), engine)
