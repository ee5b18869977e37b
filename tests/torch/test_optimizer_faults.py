"""What goes wrong in training: it goes on correctly, or every rank ends in time and says rank, step and tensor."""

import itertools
import os
import re
import signal
import time
from datetime import timedelta
from pathlib import Path

from faulty import ENGINES, SMALL, STEPS, at_once, by_ddp, make_model, rows, said, state, train, wrapped
from ranks import Ranks
from torch import nn

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.torch.exchange import training


def test_nan_gradients_are_averaged_as_they_are() -> None:
    for ranks in at_once(_nan, 2):
        assert ranks.results() == [[True] * 6] * 2


def _nan(rank: int, engine: str) -> list[bool]:
    model = make_model()
    optimizer = wrapped(model, engine)
    for step in range(4):
        optimizer.zero_grad()
        loss = model(rows(rank, step)).square().mean()
        (loss * float("nan") if rank == 1 and step == 2 else loss).backward()
        optimizer.step()
    return [bool(each.isnan().any()) for each in state(model, optimizer)]


def test_ctrl_c_ends_all_ranks(tmp_path: Path) -> None:
    """Whether the terminal sends it to all of them, or somebody to one."""
    interrupted = []
    for which in ((0, 1), (1,)):
        folder = tmp_path / str(which)
        folder.mkdir()
        interrupted += [(ranks, which) for ranks in at_once(_interrupted, 2, (), folder, timeout_s=60)]
    until = time.monotonic() + 60
    while len(list(tmp_path.glob("*/*"))) < 4 * len(ENGINES):
        assert time.monotonic() < until, "not all of them train"
        time.sleep(0.05)
    for ranks, which in interrupted:
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGCONT):  # a terminal interrupts all in one moment
            for rank in which:
                ranks.signal(rank, number)
    for ranks, which in interrupted:
        outcomes = ranks.outcomes()
        assert "KeyboardInterrupt" in said(outcomes[1])
        assert re.match("KeyboardInterrupt|CommunicationError: rank 0", said(outcomes[0])), (which, outcomes)


def _interrupted(rank: int, engine: str, folder: Path) -> None:
    model = make_model()
    optimizer = wrapped(model, engine, timedelta(seconds=10))  # eight processes train at a time
    for step in itertools.count():
        train(model, optimizer, rank, range(step, step + 1))
        time.sleep(0.01)
        if step == 1:
            (folder / f"{engine}{rank}").touch()


def test_a_rank_that_stops_while_parameters_or_buffers_are_sent_is_named() -> None:
    stopped = {where: Ranks(_stops_sending, 2, where, timeout_s=30) for where in ("wrap", "buffers")}
    for where, ranks in stopped.items():
        outcome = said(ranks._outcome(1))
        ranks.kill()
        what = {"wrap": "parameter '0.weight'", "buffers": "buffer '5.running_mean'"}[where]
        assert re.match(rf"CommunicationError: rank 1, step \d: could not share {what}: ", outcome), outcome
        assert "no word from rank 0" in outcome or "the store at which the ranks met does not answer" in outcome


def _stops_sending(rank: int, where: str) -> None:
    model = make_model().append(nn.BatchNorm1d(4))
    if (rank, where) == (0, "wrap"):
        training.broadcast_state = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)
    optimizer = wrapped(model, "allreduce")
    train(model, optimizer, rank, range(2))
    optimizer.flush()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    optimizer.broadcast_buffers()


def test_a_switch_that_one_rank_cannot_make_leaves_the_config_in_force() -> None:
    expected, ours = zip(*Ranks(_cannot_switch, 2, timeout_s=30).results(), strict=True)
    assert ours == expected


def _cannot_switch(rank: int) -> tuple[list[list[float]], list[list[float]]]:
    expected = by_ddp(rank)
    model = make_model()
    optimizer = wrapped(model, "allreduce", timedelta(seconds=10))
    train(model, optimizer, rank, range(4))
    if rank == 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "no-such0"
    for _ in range(2):
        optimizer.reconfigure(Config(1024, 1024, "dear"))
        assert optimizer.training is not None
        assert optimizer.training.config == SMALL
    train(model, optimizer, rank, range(4, STEPS))
    return [each.flatten().tolist() for each in expected], [
        each.flatten().tolist() for each in state(model, optimizer)
    ]


def test_a_killed_rank_is_heard_of_although_its_children_live_on() -> None:
    for ranks in at_once(_leaves_a_child, 2):
        outcomes = ranks.outcomes()
        assert "no word from rank 1" in said(outcomes[0])
        assert float(re.findall(r"after (\S+) s", said(outcomes[0]))[0]) < 5, outcomes[0]


def _leaves_a_child(rank: int, engine: str) -> None:
    """The child is one as a data loader's worker is: forked, and it does not notice for a while."""
    model = make_model()
    optimizer = wrapped(model, engine, timedelta(seconds=20))
    train(model, optimizer, rank, range(3))
    if rank == 1:
        if os.fork() == 0:
            time.sleep(8)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        train(model, optimizer, rank, range(3, STEPS))
        optimizer.flush()
    except ab.CommunicationError as error:
        raise RuntimeError(f"after {time.monotonic() - began:.1f} s: {error}") from error
