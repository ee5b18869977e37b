"""Gradients change from one engine to another between steps, and nothing is lost or mixed up."""

import os
import signal
import time
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import tuned
from faulty import SMALL, STEPS, by_ddp, compare, make_model, state, train
from ranks import Ranks, on_ranks
from tuned import adam, beside_ddp

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.exchange.tuning.kept import Kept
from autobyte.scheduler.engines.allreduce import AllReduce
from autobyte.scheduler.engines.base import Engine
from autobyte.scheduler.engines.ordered import Ordered
from autobyte.torch.exchange.ways import ways_of

HOST = Config(1024, 2048, knobs={"fusion": 1}, engine="allreduce")
HALVES = Config(1024, 1024, "dear", engine="allreduce")


def test_who_names_an_engine_keeps_it() -> None:
    assert ways_of("auto", "nccl") == ("nccl", "allreduce")
    assert ways_of("nccl", "nccl") == ("nccl",)
    assert ways_of("ordered", "ordered") == ("ordered", "allreduce")  # which stands for nccl
    assert ways_of("auto", "allreduce") == ("allreduce",)
    assert ways_of("ps", "ps") == ("ps",)


def test_steps_by_several_engines_are_ddps_to_the_bit() -> None:
    assert on_ranks(_changing, 2) == ["allreduce"] * 2


def _changing(rank: int) -> str:
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = ab.DistributedOptimizer(sgd, model, config=SMALL, engine="ordered")
    training = optimizer.training
    assert training is not None
    moved, done = [], 0
    for step, config in ((2, HOST), (5, HALVES), (8, SMALL), (10, HOST), (STEPS, HOST)):
        train(model, optimizer, rank, range(done, step))
        moved.append(type(training._ways._now))
        optimizer.reconfigure(config)
        done = step
    ours = state(model, optimizer)
    compare(ours)
    assert all(torch.equal(a, b) for a, b in zip(ours, by_ddp(rank), strict=True))
    assert moved == [Ordered, AllReduce, AllReduce, Ordered, AllReduce]
    assert not training.session.runner._untimed  # blocks of either are told, in their order
    assert [row.step for row in training.session.runner.latest] == sorted(
        row.step for row in training.session.runner.latest
    )
    with pytest.raises(InputError, match=r"travel by engine 'ordered' here, and cannot change to 'ps'"):
        optimizer.reconfigure(Config(1024, 2048, engine="ps"))
    engine = training.config.engine
    optimizer.close()
    return engine


def test_a_rank_that_is_lost_after_a_change_is_named_and_its_step_undone() -> None:
    words, steps, left_s = Ranks(_lost, 2, timeout_s=60).outcomes()[0]
    assert words.startswith("rank 0, step ")
    assert "rank 1" in words
    assert steps in (5, 6)
    assert left_s < 15


def _lost(rank: int) -> tuple[str, int, float]:
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = ab.DistributedOptimizer(
        sgd, model, config=SMALL, engine="ordered", timeout=timedelta(seconds=3), diagnostics=None
    )
    train(model, optimizer, rank, range(3))
    optimizer.reconfigure(HOST)
    train(model, optimizer, rank, range(3, 5))
    before = state(model, optimizer)
    if rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    began_s = time.monotonic()
    with pytest.raises(ab.CommunicationError) as told:
        train(model, optimizer, rank, range(5, 20))
    left_s = time.monotonic() - began_s
    steps = optimizer.recover()
    assert steps > 5 or all(torch.equal(one, two) for one, two in zip(before, model.parameters(), strict=True))
    return str(told.value), steps, left_s


@pytest.mark.parametrize("slow", [Ordered, AllReduce])
def test_auto_keeps_the_engine_that_is_faster_and_says_so(slow: type[Engine], tmp_path: Path) -> None:
    keep = tmp_path / "kept.toml"
    fast = on_ranks(_auditioned, 2, slow, str(keep), timeout_s=120)[0]
    kept = Kept.read(keep)
    assert kept is not None
    assert kept.finished
    assert kept.job.engine == "ordered"
    assert (kept.config.engine or "ordered") == fast == ("allreduce" if slow is Ordered else "ordered")
    assert list(kept.engines_s) == [fast, ({"ordered", "allreduce"} - {fast}).pop()]
    assert on_ranks(_again, 2, str(keep)) == [kept.config] * 2


def _auditioned(rank: int, slow: type[Engine], keep: str) -> str:
    start = slow.start

    def late(engine: Engine, *arguments: Any) -> None:
        time.sleep(0.004)
        start(engine, *arguments)

    slow.start = late  # type: ignore[method-assign]
    optimizer, used = beside_ddp(rank, policy="auto", engine="ordered", keep=keep)
    training = optimizer.training
    assert training is not None
    for _ in range(40):  # rank 0 may think long
        tuned.train(optimizer._model, optimizer, rank, 20, lambda: used.append(training.config))
        chosen = torch.tensor([float(Path(keep).exists())])
        dist.broadcast(chosen, 0)
        if chosen:
            break
    tuned.train(optimizer._model, optimizer, rank, 20, lambda: used.append(training.config))  # in force by now
    assert {config.engine for config in used} == {"", "allreduce"}, str(optimizer.report())
    changes = [one.engine != other.engine for one, other in pairwise(used)]
    assert sum(changes) <= 8  # one engine is heard after the other, and then the close ones
    report = optimizer.report()
    assert report is not None
    engine = report.config.engine or report.engine
    if rank == 0:
        assert report.state == "settled"
        assert f"on 2 ranks, {engine}: " in str(report)
        assert f"at best {1e3 * report.to_json()['engines_s'][engine]:.4g} ms by {engine}, " in str(report)
    optimizer.close()
    return engine


def _again(rank: int, keep: str) -> Config:
    optimizer, used = beside_ddp(rank, 20, policy="auto", engine="ordered", keep=keep)
    optimizer.close()
    assert len(used) == 1
    by_name = ab.DistributedOptimizer(adam(model := tuned.make_model()), model, config=keep)  # of gloo alone
    assert by_name.training is not None
    assert by_name.training.config == replace(used[0], engine="")
    by_name.close()
    return used[0]
