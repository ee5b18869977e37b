"""What is told of steps while training goes on, and to whom."""

import logging
import sys
from types import ModuleType
from typing import Any

import pytest
from ranks import Ranks, on_ranks
from tuned import beside_ddp

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.errors import InputError, MissingExtra
from autobyte.exchange.tuning.callback import Callback, WindowReport
from autobyte.exchange.tuning.metrics import metrics, sink_for


def window(first: int, steps: int, step_s: float, exposed_s: float | None = 0.02) -> WindowReport:
    overlap = None if exposed_s is None else 0.5
    last = first + steps - 1
    return WindowReport(first, last, Config(1, 1), (step_s,) * steps, "fixed", None, None, exposed_s, overlap)


def test_a_line_says_time_exposed_communication_and_overlap(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "autobyte")
    tell = metrics(every=20, target=None)["log_every="]
    tell(window(0, 10, 0.1))
    assert caplog.messages == []
    tell(window(10, 10, 0.3, 0.06))
    assert caplog.messages == [
        "steps 0 to 19: 200.0 ms a step, exposed communication 40.0 ms (20.0 %), overlap 50.0 %"
    ]
    tell(window(20, 25, 0.1, None))
    assert caplog.messages[1:] == ["steps 20 to 44: 100.0 ms a step"]


class Writer:
    """Keeps scalars as TensorBoard's writer takes them."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.scalars.append((tag, scalar_value, global_step))


def test_a_writer_and_a_function_get_every_window_without_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "autobyte")
    writer, told = Writer(), []
    metrics(every=0, target=writer)["log_to="](window(0, 10, 0.1))
    metrics(every=0, target=lambda values, step: told.append((values, step)))["log_to="](window(0, 10, 0.1))
    values = {"autobyte/step_s": pytest.approx(0.1), "autobyte/exposed_s": 0.02, "autobyte/overlap": 0.5}
    assert told == [(values, 9)]
    assert {tag: value for tag, value, _ in writer.scalars} == values
    assert {step for *_, step in writer.scalars} == {9}
    assert caplog.messages == []


def test_wandb_is_told_if_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"^log_to='wandb' needs wandb: pip install wandb$"):
        sink_for("wandb")
    fake: Any = ModuleType("wandb")
    fake.run, fake.rows = None, []
    fake.log = lambda values, commit: fake.rows.append((values, commit))
    monkeypatch.setitem(sys.modules, "wandb", fake)
    sink = sink_for("wandb")
    assert sink is not None
    with pytest.raises(InputError, match=r"call wandb.init\(\) on rank 0"):
        sink({"autobyte/step_s": 0.1}, 9)
    fake.run = object()
    sink({"autobyte/step_s": 0.1}, 9)
    assert fake.rows == [({"autobyte/step_s": 0.1, "autobyte/step": 9}, False)]


@pytest.mark.parametrize(
    ("every", "target", "why"),
    [
        (-1, None, "log_every must be a number of steps"),
        (True, None, "log_every must be a number of steps"),
        (0, "tensorboard", r"unknown log_to 'tensorboard' \(known: wandb\)"),
        (0, 3, "log_to must have add_scalar"),
    ],
)
def test_what_cannot_be_used_is_refused(every: Any, target: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        metrics(every=every, target=target)


def test_nothing_is_told_where_nothing_is_asked() -> None:
    assert metrics(every=0, target=None) == {}


def test_a_sink_that_fails_leaves_the_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "autobyte")

    def fail(values: Any, step: int) -> None:
        raise OSError("disk full")

    callback = Callback(metrics(every=10, target=fail))
    for first in (0, 10):
        callback.tell(window(first, 10, 0.1))
    said = [message.split(",")[0] for message in caplog.messages]
    assert said == ["steps 0 to 9: 100.0 ms a step", "log_to= failed after step 9", "steps 10 to 19: 100.0 ms a step"]


def test_real_ranks_tell_rank_0() -> None:
    ranks = Ranks(_train, 2, timeout_s=60)
    try:
        for process in ranks.processes:
            process.join(60)
        written = ranks.written(0)
        told, nothing = ranks.results()
    finally:
        ranks.kill()
    assert nothing == []
    assert len(told) >= 2
    for values, _ in told:
        assert 0 <= values["autobyte/exposed_s"] <= values["autobyte/step_s"]
        assert 0 <= values["autobyte/overlap"] <= 1
    lines = [line for line in written.splitlines() if "a step, exposed communication" in line]
    assert len(lines) == len(told)


def _train(rank: int) -> list[tuple[dict[str, float], int]]:
    told: list[tuple[dict[str, float], int]] = []
    optimizer, _ = beside_ddp(
        rank, steps=60, log_every=10, log_to=lambda values, step: told.append((dict(values), step))
    )
    report: ab.Report = optimizer.report()
    if rank == 0:
        assert report.step_s is not None and report.overlap is not None
        assert f"in a step of {report.step_s * 1e3:.1f} ms" in str(report)
        assert "of communication is hidden" in str(report)
    optimizer.close()
    return told


def test_off_refuses_the_same_and_tells_nothing() -> None:
    on_ranks(_off, 1)


def _off(rank: int) -> None:
    import torch  # noqa: PLC0415

    model = torch.nn.Linear(2, 2)
    with pytest.raises(InputError, match="log_every"):
        ab.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, log_every=-1)
    optimizer = ab.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, log_to=pytest.fail)
    for _ in range(12):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
