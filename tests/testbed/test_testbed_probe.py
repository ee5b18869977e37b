"""`autobyte probe`: the engines in nccl-tests' columns, on this machine, under torchrun and on shaped links."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import pytest
from beds import GBIT, needs_namespaces

from autobyte.cli import probe as command
from autobyte.cli import run
from autobyte.testbed.hosts import PAYLOAD
from autobyte.testbed.launch import Launch, Seat
from autobyte.torch.exchange.training import ENGINES
from autobyte.torch.profiling.probe import PROBED, Row

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "160"}


def say(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "autobyte", "probe", *words],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        timeout=120,
        check=True,
    )
    return done.stdout


def check(rows: list[dict[str, Any]], *, ranks: int, sizes: list[int], itemsize: int) -> None:
    assert [(row["engine"], row["size_bytes"]) for row in rows] == [(e, size) for e in ENGINES for size in sizes]
    for row in rows:
        assert row["count"] * itemsize == row["size_bytes"]
        assert row["algbw_bytes_per_s"] == pytest.approx(row["size_bytes"] / row["time_s"])
        assert row["busbw_bytes_per_s"] == pytest.approx(2 * (ranks - 1) / ranks * row["algbw_bytes_per_s"])
        assert row["wrong"] == 0


def test_every_engine_is_probed() -> None:
    assert list(PROBED) == list(ENGINES)


def test_ranks_that_torchrun_started_are_measured() -> None:
    words = [
        "probe",
        "--sizes",
        "4KiB,200KB",
        "--iterations",
        "3",
        "--in-flight",
        "2",
        "--dtype",
        "bfloat16",
        "--json",
    ]
    seats = [Seat(0, nullcontext)] * 2
    with Launch(
        ["python", "-m", "autobyte", *words], seats, master="127.0.0.1", port=29517, env=ENVIRONMENT
    ) as ranks:
        first, second = ranks.wait(timeout_s=120)
    assert second.output == ""
    answer = json.loads(first.output)
    assert (answer["ranks"], answer["in_flight"], answer["what"]) == (2, 2, "measured")
    check(answer["rows"], ranks=2, sizes=[4096, 200_000], itemsize=2)


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


@needs_namespaces
def test_a_large_block_fills_a_shaped_link_and_no_more() -> None:
    words = ("--hosts", "2", "--rate", "200Mbit", "--sizes", "4MiB", "--iterations", "3", "--warmup", "1", "--json")
    answer = json.loads(say(*words))
    check(answer["rows"], ranks=2, sizes=[4 << 20], itemsize=4)
    for row in answer["rows"]:
        assert 0.7 < row["busbw_bytes_per_s"] / (PAYLOAD * GBIT / 5) < 1.03  # the bucket may have been full


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--engine", "allreduec"), "unknown engine 'allreduec'; did you mean 'allreduce'? (known: allreduce, ps)"),
        (("--sizes", "10"), "a block of float32 has a multiple of 4 bytes, not 10"),
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
