"""Arguments that cannot be used are one line."""

import logging
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import torch
from ranks import on_ranks
from stories import (
    make_mlp,
    sgd,
)
from tuned import adam, make_model

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.exchange import arguments
from autobyte.exchange.arguments import ALONE_S, KEEP, rank_0_speaks
from autobyte.torch.arguments import PolicyChoice, choose_policy

LATER_S = 3.0


@pytest.mark.parametrize(
    ("keywords", "why"),
    [
        ({"space": ab.Space()}, "say tuner="),
        ({"space": ab.Space(), "policy": "auto"}, "leave out space="),
        ({"space": (1, 2), "tuner": "random"}, "space must be a Space"),
        ({"space": ab.Space(knobs={"fussion": (0, 1)}), "tuner": "random"}, "did you mean 'fusion'"),
        ({"space": ab.Space((4, 8)), "tuner": "random", "config": Config(16, 16)}, "which is not in space="),
        (
            {"space": ab.Space((4, 8)), "tuner": "random", "policy": "ddp"},
            r"^policy 'ddp' has no credit, but space= searches 1x to 16x: say credit_ratio=\(1, 1\)$",
        ),
        (
            {"space": ab.Space((4, 8), (1, 1)), "tuner": "random", "policy": "fifo"},
            "^policy 'fifo' has no partition and no credit to search: leave space= out$",
        ),
    ],
)
def test_spaces_that_cannot_be_used(keywords: dict[str, Any], why: str) -> None:
    model = make_model()
    with pytest.raises(InputError, match=why):
        ab.DistributedOptimizer(adam(model), model, **keywords)


def test_a_partition_of_a_few_bytes_is_refused_where_it_makes_too_many_blocks() -> None:
    model = torch.nn.Linear(1000, 101)
    why = r"partitions of 4 bytes, which make 101,101 blocks of 'Linear'; write Config\(4 \* 2\*\*20, …\)"
    with pytest.raises(InputError, match=why):
        ab.DistributedOptimizer(sgd(model), model, config=Config(4, 16))
    small = make_mlp()
    ab.DistributedOptimizer(sgd(small), small, config=Config(4, 16)).close()  # one rank: off


def test_wrong_arguments_are_one_line() -> None:
    on_ranks(_wrong_arguments, 2)


def _wrong_arguments(rank: int) -> None:
    module = make_mlp()
    for keywords, message in (
        ({"engine": "alreduce"}, "unknown engine 'alreduce'; did you mean 'allreduce'?"),
        ({"wire_dtype": "int8"}, "unknown wire dtype 'int8'"),
        ({"policy": "bytesheduler"}, "unknown policy 'bytesheduler'; did you mean 'bytescheduler'?"),
        ({"accumulation": 0}, "accumulation must be at least 1, got 0"),
        ({"policy": "dear", "engine": "ps"}, "policy 'dear' halves all-reduces"),
        ({"config": 4}, "config must be a Config or a kept file, got 4"),
        ({"config": "4MiB"}, "config='4MiB': there is no such file"),
        (
            {"config": Config(4096, 4096, "fifo")},
            "policy 'fifo' has no partition and no credit, but config= has ⟨4 KiB, 1x⟩: leave it out, or say "
            "Config(1, 1, 'fifo')",
        ),
        (
            {"config": Config(4096, 8192, "ddp")},
            "policy 'ddp' has no credit, but config= has ⟨4 KiB, 2x⟩: say Config(4096, 4096, 'ddp')",
        ),
        ({"on_window": "print"}, "on_window must be a function of one WindowReport, got 'print'"),
        ({"timeout": 30}, "timeout must be a timedelta, got 30"),
        ({"tuner": "twin", "budget": 0}, "budget must be at least 1 window, got 0"),
        ({"budget": 5}, "budget=5 is for a tuner, and there is none: say tuner= or policy='auto', too"),
        ({"search_cost": -0.1}, "search_cost must be a part of the time trained, 0 or more, got -0.1"),
        ({"search_cost": "1%"}, "search_cost must be a part of the time trained, 0 or more, got '1%'"),
        ({"search_cost": 0.1, "tuner": "twin"}, "search_cost=0.1 is for policy='auto', not for 'bytescheduler'"),
        ({"keep": 5}, "keep must be a file, True or None, got 5"),
        ({"drift": 0.0}, "drift must be positive, got 0.0"),
        ({"diagnostics": 3}, "diagnostics must be a folder, True or None, got 3"),
        ({"diagnostics": __file__}, f"diagnostics= is '{__file__}', which is no folder"),
    ):
        with pytest.raises(InputError) as caught:
            ab.DistributedOptimizer(sgd(module), module, **keywords)
        assert message in str(caught.value)
    swapped: Any = module, sgd(module)
    with pytest.raises(InputError, match=r"^say DistributedOptimizer\(optimizer, model\), got Sequential, SGD$"):
        ab.DistributedOptimizer(*swapped)
    wrapped = ab.DistributedOptimizer(sgd(module), module, wire_dtype=torch.bfloat16)
    with pytest.raises(InputError, match="wrapped already"):
        ab.DistributedOptimizer(wrapped, module)
    wrapped.close()


WRONG = """
import sys
import torch
import torch.distributed as dist
import autobyte.torch as ab

dist.init_process_group("gloo")
model = torch.nn.Linear(2, 2)
ab.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, **{sys.argv[1]: sys.argv[2]})
"""


def test_under_torchrun_rank_0_alone_says_what_is_wrong(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text(WRONG)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    words = [*command, "engine", "alreduce"]
    ended = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=150, check=False)
    assert ended.returncode == 1
    assert ended.stderr.count("unknown engine 'alreduce'; did you mean '") == 1


def _wrong(rank: int) -> tuple[str, bool]:
    """What is said, and whether at once."""
    arguments.ALONE_S = LATER_S  # type: ignore[misc]
    model, began = torch.nn.Linear(2, 2), time.monotonic()
    with pytest.raises(InputError) as caught:
        ab.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, policy="horovot")
    return str(caught.value), time.monotonic() - began < LATER_S


def test_an_unknown_policy_is_told_as_an_unknown_engine_is() -> None:
    said = on_ranks(_wrong, 2, environ={"TORCHELASTIC_RUN_ID": "none"})
    assert [at_once for _, at_once in said] == [True, False]
    assert all(words.startswith("unknown policy 'horovot'; did you mean '") for words, _ in said)


def test_a_rank_that_is_wrong_alone_says_so_later(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    for rank, launched in (("1", False), ("0", True), ("1", True)):
        monkeypatch.setenv("RANK", rank)
        if launched:
            monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
        with pytest.raises(InputError, match="a mistake"), rank_0_speaks():
            raise InputError("a mistake")
    assert waited == [ALONE_S]


def test_what_nobody_has_asked_for_is_said_once_or_not_at_all() -> None:
    compiled = "WARNING the model is compiled: nothing is planned or tuned, and on_window= and log_to= hear nothing"
    second = (
        "INFO another optimizer is wrapped already, so this one keeps DDP's buckets: close() that one first, or pass "
        "search_cost="
    )
    assert on_ranks(_unsaid, 2) == [([[], [compiled]], [[], [], [second], []]), ([[], []], [[], [], [], []])]


def _unsaid(rank: int) -> tuple[list[list[str]], list[list[str]]]:
    """What is said of a compiled model by default and under `auto`, and of several optimizers in turn."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(f"{record.levelname} {record.getMessage()}")  # type: ignore[method-assign]
    log = logging.getLogger("autobyte")
    log.addHandler(handler)
    log.setLevel(logging.INFO)

    def wrapped(model: torch.nn.Module, about: str, **keywords: Any) -> tuple[Any, list[str]]:
        lines.clear()
        optimizer = ab.DistributedOptimizer(sgd(model), model, **keywords)
        return optimizer, [line for line in lines if about in line]

    compiled = []
    for asked in ({}, {"policy": "auto", "keep": None}):
        (model := make_mlp()).compile(backend="aot_eager")
        optimizer, said = wrapped(model, "the model is compiled: nothing", **asked)
        optimizer.close()
        compiled.append(said)
    several = [wrapped(make_mlp(), "another", **asked) for asked in ({}, {"search_cost": 0.01}, {}, {})]
    for optimizer, _ in several:
        optimizer.close()
    return compiled, [said for _, said in several]


DDPS = PolicyChoice("auto", 0.01, None)
SCHEDULED = PolicyChoice("bytescheduler", math.inf, None)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, DDPS),
        ({"keep": "file"}, replace(DDPS, keep=Path("file"))),
        ({"keep": PurePosixPath("file")}, replace(DDPS, keep=Path("file"))),
        ({"keep": None}, DDPS),
        ({"search_cost": 0.05}, replace(DDPS, share=0.05)),
        ({"alone": False}, replace(DDPS, share=0.0)),
        ({"engine": "nccl"}, DDPS),
        ({"engine": "ps"}, SCHEDULED),
        ({"order": "leader"}, SCHEDULED),
        ({"scheduled": True}, replace(SCHEDULED, keep=KEEP)),
        ({"policy": "dear", "keep": None}, PolicyChoice("dear", math.inf, None)),
        ({"policy": "auto"}, PolicyChoice("auto", math.inf, KEEP)),
        ({"policy": "auto", "alone": False, "search_cost": 0.1}, PolicyChoice("auto", 0.1, KEEP)),
    ],
)
def test_what_is_left_out_stands_for_what_is_never_slower_than_ddp(
    said: dict[str, Any], expected: PolicyChoice
) -> None:
    unsaid = {"policy": None, "search_cost": None, "keep": True, "scheduled": False, "engine": "auto"}
    choice = choose_policy(**unsaid | {"order": "planned", "alone": True} | said)
    assert choice == expected
    waits = expected.policy == "auto" and not math.isinf(expected.share)
    assert choice.first == ("ddp" if waits else "bytescheduler" if expected.policy == "auto" else expected.policy)
