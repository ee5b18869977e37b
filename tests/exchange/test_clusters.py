"""Training over other libraries' parameter servers: equal to averaging, and a clear line where a process is gone."""

import importlib.util
import itertools
import re
import signal
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from clusters import WITH_BYTEPS, WITH_MXNET
from faulty import SMALL, STEPS, WHERE, by_ddp, make_model, said, state, train
from ranks import Ranks, on_ranks

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.exchange import clusters
from autobyte.scheduler.engines.carriers import Library

STARTING_S, TIMEOUT_S = 60.0, 12.0
LIBRARIES = {"kvstore": "MXNet", "byteps": "BytePS"}  # by engine, as messages name them
ENGINES = pytest.mark.parametrize(
    "engine", [pytest.param("kvstore", marks=WITH_MXNET), pytest.param("byteps", marks=WITH_BYTEPS)]
)


def wrapped(model: torch.nn.Module, **keywords: Any) -> ab.DistributedOptimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return ab.DistributedOptimizer(
        optimizer, model, **{"engine": "kvstore", "config": SMALL, "keep": None} | keywords
    )


def test_every_rank_says_what_is_missing() -> None:
    for outcome in Ranks(_without, 2).outcomes():
        assert said(outcome) == (
            "CommunicationError: rank 1: engine='kvstore' needs the package mxnet: pip install --no-deps mxnet==1.9.1"
        )


def _without(rank: int) -> None:
    if rank == 0:
        clusters.mxnet = lambda: Library("MXNet", "", {}, {})
    else:
        importlib.util.find_spec = lambda *_: None  # type: ignore[assignment]
    wrapped(make_model())


def test_says_that_a_version_was_never_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = SimpleNamespace(origin="/opt/mxnet/__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(clusters, "version", lambda package: "1.8.0")
    assert clusters.mxnet().path == "/opt/mxnet/libmxnet.so"
    assert caplog.messages == ["mxnet 1.8.0 was never tried with AutoByte, 1.9.1 was"]


def test_refuses_ipv6() -> None:
    with pytest.raises(ValueError, match="MXNet needs IPv4, this rank has fd00::1: name an interface"):
        clusters._ipv4("fd00::1", Library("MXNet", "", {}, {}))


@ENGINES
def test_trains_as_ddp_does(engine: str) -> None:
    """With one config, with another from the middle on, in rank 0's order, and with bfloat16 on the wire."""
    for results in on_ranks(_parity, 2, engine, timeout_s=2 * STARTING_S):
        assert results == []


def _parity(rank: int, engine: str) -> list[str]:
    reference, wrong = by_ddp(rank), []
    cases: dict[str, tuple[dict[str, Any], float]] = {
        "fused": ({}, 1e-6),
        "recut": ({"recut": True}, 1e-6),
        "leader": ({"order": "leader"}, 1e-6),
        "bf16": ({"wire_dtype": "bf16"}, 5e-3),
    }
    if engine == "byteps":  # whose processes import PyTorch, each
        cases = {"recut": cases["recut"]}
    for name, (keywords, tolerance) in cases.items():
        recut = keywords.pop("recut", False)
        model = make_model()
        optimizer = wrapped(model, engine=engine, **keywords)
        train(model, optimizer, rank, range(6))
        if recut:
            optimizer.reconfigure(Config(700, 4096, knobs={"fusion": 1.0}))
        train(model, optimizer, rank, range(6, STEPS))
        ours = state(model, optimizer)
        optimizer.close()
        furthest = max(float((a - b).abs().max()) for a, b in zip(ours, reference, strict=True))
        if furthest > tolerance:
            wrong.append(f"{name}: {furthest}")
    return wrong


@ENGINES
@pytest.mark.parametrize("role", ["server", "scheduler", "rank", "stopped"])
def test_names_what_has_died(role: str, engine: str, tmp_path: Path) -> None:
    """Rank 1's server, the scheduler, or rank 1 itself is killed: the ranks that are left end at once, in words.

    They end after the timeout, if rank 1 stops.
    """
    starting_s = STARTING_S * (2 if engine == "byteps" else 1)  # whose processes import PyTorch, each
    ranks = Ranks(_goes_on, 2, engine, tmp_path, timeout_s=starting_s)
    until = time.monotonic() + starting_s
    while len(list(tmp_path.glob("*"))) < 2:
        assert time.monotonic() < until, ranks.written(0)
        time.sleep(0.05)
    children = [child for process in ranks.processes for child in psutil.Process(process.pid).children()]
    if role in ("rank", "stopped"):
        ranks.signal(1, signal.SIGKILL if role == "rank" else signal.SIGSTOP)
    else:
        of = ranks.processes[1 if role == "server" else 0].pid
        _child(of, role).kill()
    began_s = time.monotonic()
    outcome = said(ranks._outcome(0))
    assert time.monotonic() < began_s + 15 + (TIMEOUT_S if role == "stopped" else 0)
    ranks.kill()
    assert psutil.wait_procs(children, 10)[1] == []
    assert re.match("CommunicationError: " + WHERE.format(rank=0), outcome), outcome
    library = LIBRARIES[engine]
    gone = {  # or what ranks tell each other
        "rank": f"the (worker|server) of {library} on rank 1 is gone|no word from rank 1",
        "server": f"the server of {library} on rank 1 is gone",
        "scheduler": f"the scheduler of {library} on rank 0 is gone",
        "stopped": "no word from rank 1",
    }
    assert re.search(gone[role], outcome), outcome


def _goes_on(rank: int, engine: str, folder: Path) -> None:
    model = make_model()
    optimizer = wrapped(model, engine=engine, timeout=timedelta(seconds=TIMEOUT_S))
    for step in itertools.count():
        train(model, optimizer, rank, range(step, step + 1))
        if step == 3:
            (folder / str(rank)).touch()


def _child(of: int | None, role: str) -> psutil.Process:
    children = psutil.Process(of).children()
    return next(child for child in children if f'"role": "{role}"' in " ".join(child.cmdline()))
