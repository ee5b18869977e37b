"""The doctor measures a model on real ranks."""

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from ranks import Ranks, free_port, on_ranks

from autobyte import cli
from autobyte.models import load
from autobyte.torch.profiling import doctor
from autobyte.torch.profiling.doctor import Symptoms, unclaimed_cores

ROOT = Path(__file__).parents[3]
MODEL = (f"{ROOT}/examples/small_vgg.py:make_model", "--input", "2,3,64,64")
LATER_S = 3.0


def _ended(_rank: int, *words: str) -> tuple[int, str, bool]:
    """A rank's exit status, what it writes to stderr, and whether at once."""
    cli.ALONE_S, began = LATER_S, time.monotonic()  # type: ignore[misc]
    with contextlib.redirect_stderr(io.StringIO()) as err:
        status = cli.run(["doctor", *words])
    return status, err.getvalue(), time.monotonic() - began < LATER_S


def test_doctor_measures_a_model_on_the_ranks_that_there_are() -> None:
    ranks = Ranks(_ended, 2, *MODEL, "--json", environ={"TORCHELASTIC_RUN_ID": "none"}, init=False)
    for process in ranks.processes:
        process.join(60)
    assert [process.exitcode for process in ranks.processes] == [0, 0]
    assert json.loads(ranks.written(0))["measured"]["workers"] == 2
    assert not ranks.written(1)
    ranks.kill()


def test_torchrun_takes_a_status_of_3_for_a_failure() -> None:
    """Only --exit-code asks for it."""
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    words += ["-m", "autobyte", "doctor", *MODEL, "--json", "--exit-code"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=200, check=False
    )
    told = json.loads(ended.stdout)
    assert told["measured"]["workers"] == 2
    assert 0 < told["measured"]["compute_s"] < 10
    assert told["bound_s"] <= told["ddp"]["step_s"]
    failed = told["verdict"] != "gain"
    assert ended.returncode == int(failed), ended.stderr
    status = {"gain": "", "keep DDP": "exitcode  : 3", "unknown": "exitcode  : 4"}[told["verdict"]]
    assert not failed or status in ended.stderr
    assert ("FAILED" in ended.stderr) == failed


def test_whether_ranks_share_a_gpu_is_asked_when_a_pass_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(doctor.dist, "barrier", lambda: None)
    monkeypatch.setattr(doctor, "_slowest", lambda seconds: seconds)
    monkeypatch.setattr(doctor, "_synchronize", lambda: calls.append("synchronize"))
    step = SimpleNamespace(clear_gradients=lambda: None, forward=lambda: None, backward=lambda loss: None)
    counts = []
    for folder in ("", "/tmp/mps"):
        if folder:
            monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", folder)
        else:
            monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
        calls.clear()
        doctor._median_s(step, nullcontext, 1)
        counts.append(len(calls))
    assert counts[1] == 2 * counts[0]


def test_a_wrong_input_is_told_by_rank_0_alone() -> None:
    """And at once: torchrun ends the others then, before they would say it."""
    words = (f"{MODEL[0]}l", *MODEL[1:])
    ended = on_ranks(_ended, 2, *words, environ={"TORCHELASTIC_RUN_ID": "none"}, init=False)
    assert [(status, at_once) for status, _, at_once in ended] == [(2, True), (2, False)]
    for _, said, _ in ended:
        assert said.startswith("autobyte: ") and said.count("\n") == 1 and "make_modell" in said


def test_a_rank_that_alone_has_a_wrong_input_tells_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its host lacks a file, say."""
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    waits: list[float] = []
    monkeypatch.setattr(cli, "time", SimpleNamespace(sleep=waits.append))
    assert cli.run(["models", "--nothing"]) == 2
    assert waits == [cli.ALONE_S]
    assert "no such option" in capsys.readouterr().err.lower()


def test_compute_cannot_take_longer_than_the_step_that_it_is_part_of() -> None:
    seen = Symptoms(load("vgg16"), 2, compute_s=3.67, step_s=2.32, bytes_per_s=1e8, per_block_s=1e-4)
    assert seen.contradiction == "compute alone took 3.67 s, longer than all of DDP's step, 2.32 s"
    assert replace(seen, compute_s=2.4).contradiction == ""  # as good as the same


def test_what_ranks_use_is_not_taken_for_the_load_of_others() -> None:
    assert on_ranks(_claims, 2) == [pytest.approx(0.5)] * 2


def _claims(rank: int) -> float:
    """Each rank uses a core, and somebody else half of one."""
    return unclaimed_cores(others=1.5, own=1.0)
