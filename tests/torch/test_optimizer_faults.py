"""What goes wrong in training: it goes on correctly, or every rank ends in time and says rank, step and tensor."""

import itertools
import re
import signal
import time
from datetime import timedelta
from pathlib import Path

from faulty import ENGINES, at_once, make_model, rows, said, state, train, wrapped


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
        for rank in which:
            ranks.signal(rank, signal.SIGINT)
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
