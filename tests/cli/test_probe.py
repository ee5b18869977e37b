"""`autobyte probe`: nccl-tests' columns, the cost of a block, and bad input."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from autobyte.cli import doctor as diagnosis
from autobyte.cli import probe as command
from autobyte.cli import run
from autobyte.testbed.rig import Rig
from autobyte.torch.profiling.probe import Row, Spec


def test_the_table_has_the_columns_of_nccl_tests(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = Row("allreduce", 1_000_000, 250_000, "float32", 0.02, 5e7, 7.5e7, 0)
    monkeypatch.setattr(command, "_measured", lambda spec, start: [asdict(measured)])
    assert run(["probe", "--workers", "4", "--sizes", "1MB"]) == 0
    title, _, head, _, row, *_ = capsys.readouterr().out.splitlines()
    assert title == "4 ranks on this machine · one block at a time · measured"
    columns = ["engine", "size (B)", "count", "type", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "#wrong"]
    assert [cell.strip() for cell in head.split("   ") if cell.strip()] == columns
    assert row.split() == ["allreduce", "1000000", "250000", "float32", "20000.0", "0.0500", "0.0750", "0"]


def test_sizes_enough_give_the_cost_of_a_block(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        asdict(Row("ps", size, size // 4, "float32", 2e-3 + size / 1e8, 1.0, 1.0, 0))
        for size in (2**k for k in range(14, 22))
    ]
    monkeypatch.setattr(command, "_measured", lambda spec, start: rows)
    assert run(["probe", "--workers", "2"]) == 0
    why = "a cost model needs 8 messages at least, got 0; measure more"  # no rows of it
    fits = ["ps: a block of s bytes takes 2 ms + s / 800 Mbit/s", f"allreduce: {why}"]
    assert capsys.readouterr().out.splitlines()[-2:] == fits
    assert run(["probe", "--workers", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["costs"]["allreduce"] is None
    assert told["costs"]["ps"] == pytest.approx({"start_s": 2e-3, "s_per_byte": 1e-8})
    assert told["refused"] == {"allreduce": why}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--engine", "allreduec"), "unknown engine 'allreduec'; did you mean 'allreduce'? (known: allreduce, nccl,"),
        (("--engine", "nccl"), "the engine nccl moves blocks from GPU to GPU: say --gpu"),
        (("--sizes", "10B"), "a block of float32 has a multiple of 4 bytes, not 10"),
        (("--sizes", "some"), "cannot read size 'some'; write it like 4MiB or 160KB"),
        (("--dtype", "int7"), "unknown dtype 'int7'"),
        (("--iterations", "0"), "iterations must be at least 1, got 0"),
        (("--workers", "1"), "workers must be 2 to 200, got 1"),
        (("--hosts", "1"), "a testbed has 2 to 200 hosts, got 1"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"autobyte: {message}")
    assert said.count("\n") == 1


def test_a_rehearsal_needs_no_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen = []

    def on_testbed(spec: Spec, rig: Rig, *, gpu: bool) -> tuple[list[dict[str, Any]], str]:
        seen.append((spec.device, rig.rehearse, gpu))
        return [], "on hosts"

    monkeypatch.setattr(command, "_on_testbed", on_testbed)
    for given in (["--rehearse"], ["--gpu", "--rehearse"]):
        assert run(["probe", *given]) == 0
    assert seen == [("cpu", True, False)] * 2
    assert "rehearsal" in capsys.readouterr().out
    monkeypatch.setattr(diagnosis, "_on_rig", lambda rig, *_, **__: seen.append(rig.rehearse) or 0)
    assert run(["doctor", "--gpu", "--rehearse", "small:cnn"]) == 0
    assert seen[-1] is True
