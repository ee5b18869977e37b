"""Front ends beside their frameworks' own ways: the arithmetic, what is missing, and a run on shaped links."""

import importlib.util
import json
from pathlib import Path

import pytest
from beds import needs_namespaces
from clusters import WITH_BYTEPS, WITH_HOROVOD, WITH_MXNET
from typer.testing import CliRunner

from autobyte.bench import frontends
from autobyte.bench.bench import Cell
from autobyte.bench.front_rank import told_by
from autobyte.bound import bound_s
from autobyte.cli import app
from autobyte.errors import AutoByteError, MissingExtra

CELL = Cell("vgg16", hosts=4, rate=1.25e8, compute_s=0.3, size_scale=0.05)
SMALL = ["--hosts", "2", "--rate", "2Gbit", "--model", "alexnet", "--compute", "20ms", "--size-scale", "0.002"]
SMALL += ["--steps", "3", "--repeats", "1", "--tuner", "default", "--windows", "1", "--json"]


def test_gains_are_over_the_fastest_of_the_frameworks_own_ways() -> None:
    steps_s = {"after": (0.8, 0.8), "strategy": (0.6, 0.7), "autobyte": (0.5, 0.5)}
    runs = {way: [{"steps_s": [each]} for each in repeats] for way, repeats in steps_s.items()}
    rows = {row["way"]: row for row in frontends.rows(CELL, frontends.FRONT_ENDS["keras-tf"], "ps", runs)}
    assert rows["strategy"]["step_s"] == pytest.approx(0.65)
    assert (rows["strategy"]["step_low_s"], rows["strategy"]["step_high_s"]) == (0.6, 0.7)
    gains = [rows[way]["speedup"] for way in ("after", "strategy", "autobyte")]
    assert gains == pytest.approx([0.65 / 0.8, 1.0, 1.3])
    served = bound_s(CELL.job(servers=True, wire_dtype=None))
    assert rows["autobyte"]["over_bound"] == pytest.approx(0.5 / served)
    assert rows["after"]["bound_s"] == bound_s(CELL.job(servers=False, wire_dtype=None))


def test_times_are_found_among_other_lines() -> None:
    line = '{"steps_s": [0.5, 0.25], "config": null}'
    assert told_by(f"[autobyte 10:00:00] hello\n{line}\ngoodbye") == {"steps_s": [0.5, 0.25], "config": None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--frontend", "kears-tf"], "unknown front end 'kears-tf'; did you mean 'keras-tf'?"),
        (["--frontend", "torch", "--engine", "nccl"], "unknown engine 'nccl'"),
        (["--engine", "ps"], "--engine is for --frontend"),
        (["--frontend", "torch", "--gpu"], "--gpu and --rehearse cannot be measured with --frontend"),
        (["--frontend", "torch", "--wire", "bf16"], "--wire cannot be measured with --frontend"),
    ],
)
def test_what_cannot_be_measured_is_one_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert isinstance(result.exception, AutoByteError)
    assert message in str(result.exception)


def test_a_framework_that_is_missing_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("mxnet", "tensorflow") else name)
    with pytest.raises(MissingExtra, match="--frontend mxnet needs MXNet: `make mxnet`"):
        frontends.check("mxnet", "allreduce")
    with pytest.raises(MissingExtra, match=r"--frontend keras-tf needs TensorFlow: pip install 'autobyte\[keras\]'"):
        frontends.check("keras-tf", "allreduce")
    with pytest.raises(MissingExtra, match="--engine kvstore needs MXNet: `make mxnet`"):
        frontends.check("torch", "kvstore")


def test_a_launch_that_fails_is_tried_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"way": "after", "warmup": 2, "steps": 3}
    failures = [frontends.LaunchError("rank 1 ended with status 1\nmore", [], 1)]
    said: list[str] = []

    def run(*_: object) -> frontends.Run:
        if failures:
            raise failures.pop()
        return {"steps_s": [0.5]}

    monkeypatch.setattr(frontends, "_run", run)
    assert frontends._launched(None, "program", spec, said.append, bound_s=0.3) == {"steps_s": [0.5]}  # type: ignore[arg-type]
    assert said == ["after was launched again: rank 1 ended with status 1"]


@needs_namespaces
def test_pytorch_beside_ddp_on_real_links(tmp_path: Path) -> None:
    asked = ["bench", "--frontend", "torch", "--engine", "ps", *SMALL, "--out", str(tmp_path)]
    outcome = json.loads(CliRunner().invoke(app, asked, catch_exceptions=False).stdout)
    assert [row["way"] for row in outcome["rows"]] == ["ddp-default", "ddp-best", "autobyte"]
    assert all(row["over_bound"] > 0.98 for row in outcome["rows"])
    assert (tmp_path / "torch-ps-alexnet-2000Mbit.json").exists()
    again = CliRunner().invoke(app, asked, catch_exceptions=False)  # read, not measured again
    assert json.loads(again.stdout) == outcome


@needs_namespaces
@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_keras_under_tensorflows_own_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, for TensorFlow takes seconds to load; tests/keras have what AutoByte does there."""
    front = frontends.FRONT_ENDS["keras-tf"]
    monkeypatch.setitem(frontends.FRONT_ENDS, "keras-tf", front._replace(ways={"strategy": front.ways["strategy"]}))
    asked = ["bench", "--frontend", "keras-tf", *SMALL]
    (row,) = json.loads(CliRunner().invoke(app, asked, catch_exceptions=False).stdout)["rows"]
    assert row["way"] == "strategy"
    assert row["over_bound"] > 0.98


@needs_namespaces
@WITH_MXNET
def test_gluon_over_mxnets_servers_and_with_autobyte() -> None:
    asked = ["bench", "--frontend", "mxnet", "--engine", "kvstore", *SMALL]
    outcome = json.loads(CliRunner().invoke(app, asked, catch_exceptions=False).stdout)
    assert [row["way"] for row in outcome["rows"]] == ["dist_sync", "p3", "autobyte"]
    assert all(row["servers"] and row["over_bound"] > 0.98 for row in outcome["rows"])


@needs_namespaces
@WITH_BYTEPS
def test_byteps_own_optimizer_and_autobyte_over_its_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """In few steps: threads of BytePS hardly rest, and on two cores all others wait for them."""
    assert _ways("byteps", "byteps", monkeypatch) == {"byteps": True, "byteps-1mib": True, "autobyte": True}


@needs_namespaces
@WITH_HOROVOD
def test_horovods_own_optimizer_beside_autobyte(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _ways("horovod", "allreduce", monkeypatch) == {"horovod": False, "autobyte": False}


def _ways(name: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Which ways were measured, and whether by servers."""
    for steps in ("WARMUP", "SEARCHED"):
        monkeypatch.setattr(frontends, steps, 2)
    asked = ["bench", "--frontend", name, "--engine", engine, *SMALL]
    outcome = json.loads(CliRunner().invoke(app, asked, catch_exceptions=False).stdout)
    assert "again" not in outcome["warning"]
    assert all(row["over_bound"] > 0.98 for row in outcome["rows"])
    return {row["way"]: row["servers"] for row in outcome["rows"]}
