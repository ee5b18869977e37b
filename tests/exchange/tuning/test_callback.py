"""`on_window=` hears of every window on rank 0; its errors are one line, and training goes on."""

import dataclasses
import itertools

import pytest
from ranks import Ranks, on_ranks
from tuned import CONFIGS, beside_ddp

import autobyte.torch as ab
from autobyte.exchange.tuning.callback import WindowReport


def test_it_is_told_of_every_window_on_rank_0() -> None:
    windows, none = on_ranks(_hears, 2)
    assert none == []
    assert windows[0].state == "starting" and windows[0].best is None
    assert {window.config for window in windows} >= set(CONFIGS)
    assert {window.state for window in windows} >= {"searching", "settled"}
    for before, after in itertools.pairwise(windows):
        assert before.last_step < after.first_step
    for window in windows:
        assert len(window.step_s) == window.last_step - window.first_step + 1
        assert window.steps_per_s == pytest.approx(1 / window.median_s)
    assert windows[-1].best_step_s is not None
    with pytest.raises(dataclasses.FrozenInstanceError):
        windows[0].state = "fixed"


def _hears(rank: int) -> list[WindowReport]:
    told: list[WindowReport] = []
    optimizer, _ = beside_ddp(rank, tuner="script", budget=4, keep=None, on_window=told.append)
    optimizer.close()
    return told


@pytest.mark.parametrize("error", ["ValueError", "SystemExit"])
def test_one_that_fails_is_one_line_and_training_goes_on(error: str) -> None:
    ranks = Ranks(_fails, 2, error)
    try:
        for process in ranks.processes:
            process.join(60)
        written = ranks.written(0)
        assert ranks.results() == [1, 0]  # parameters are DDP's on both
    finally:
        ranks.kill()
    lines = [line for line in written.splitlines() if "on_window= failed" in line]
    assert len(lines) == 1
    assert f"is not called again; training goes on: {error}: no space left" in lines[0]
    assert "test_callback.py:" in lines[0]
    assert "Traceback" not in written


def _fails(rank: int, error: str) -> int:
    calls = []

    def fail(window: ab.WindowReport) -> None:
        calls.append(window)
        raise {"ValueError": ValueError, "SystemExit": SystemExit}[error]("no space left\nat all")

    optimizer, _ = beside_ddp(rank, steps=60, on_window=fail)
    optimizer.close()
    return len(calls)
