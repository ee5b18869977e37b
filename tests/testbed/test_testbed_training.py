"""Training on hosts whose links are cut: it goes on where it was, or every rank ends in time and says where."""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import on_hosts
import pytest
import torch
from beds import GBIT, needs_namespaces

from autobyte.testbed import Testbed
from autobyte.testbed.launch import Launch

pytestmark = needs_namespaces
ENGINES = ("allreduce", "ps", on_hosts.SERVED)


@contextmanager
def training(engine: str, folder: Path, *, timeout_s: float) -> Iterator[tuple[Testbed, Launch]]:
    """Two ranks on two hosts that have taken five steps; a server on a third, where they have none themselves."""
    words = [sys.executable, on_hosts.__file__, engine, str(folder), str(timeout_s)]
    with Testbed(on_hosts.WORLD + (engine == on_hosts.SERVED), rate=GBIT) as testbed, testbed.start(words) as launch:
        until = time.monotonic() + 60
        while step(folder) < 5:
            assert launch.running, "ended early"
            assert time.monotonic() < until, "no step was taken"
            time.sleep(0.02)
        yield testbed, launch


def step(folder: Path) -> int:
    """The step that rank 1 is in; −1 before the first."""
    file = folder / "step1"
    return int((file.read_text() if file.exists() else "") or -1)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_host_that_is_cut_off_and_rejoined_loses_nothing(engine: str, tmp_path: Path) -> None:
    with training(engine, tmp_path, timeout_s=60) as (testbed, launch):
        testbed.cut(1)
        time.sleep(0.5)
        stood = step(tmp_path)
        time.sleep(0.5)
        assert step(tmp_path) == stood, "trained on without the other"
        testbed.join(1)
        launch.wait(timeout_s=120)
    expected = on_hosts.alone()
    for rank in range(on_hosts.WORLD):
        assert all(map(torch.equal, torch.load(tmp_path / f"rank{rank}.pt"), expected))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_host_that_stays_cut_off_ends_every_rank_with_a_word(engine: str, tmp_path: Path) -> None:
    with training(engine, tmp_path, timeout_s=3) as (testbed, launch):
        testbed.cut(1)
        finished = launch.wait(timeout_s=120, check=False)
    for one in finished:
        assert not one.stopped, f"rank {one.rank} hung"
        assert one.returncode != 0
        who = rf"rank {one.rank}, step \d+: " if one.rank < on_hosts.WORLD else f"server rank {one.rank}: rank [01]"
        assert re.search(f"CommunicationError: {who}", one.output), one.output[-2000:]
