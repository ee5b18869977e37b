"""The engines are measured on ranks that torchrun started."""

import json
import os
import sys
from contextlib import nullcontext
from typing import Any

import pytest

from autobyte.exchange import engines
from autobyte.testbed.launch import Launch, Seat
from autobyte.torch.profiling import probe

ENGINES = ("allreduce", "ps", "ordered")  # all but those that need a GPU
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "160"}


def check(rows: list[dict[str, Any]], *, ranks: int, sizes: list[int], itemsize: int) -> None:
    assert [(row["engine"], row["size_bytes"]) for row in rows] == [(e, size) for e in ENGINES for size in sizes]
    for row in rows:
        assert row["count"] * itemsize == row["size_bytes"]
        assert row["algbw_bytes_per_s"] == pytest.approx(row["size_bytes"] / row["time_s"])
        assert row["busbw_bytes_per_s"] == pytest.approx(2 * (ranks - 1) / ranks * row["algbw_bytes_per_s"])
        assert row["wrong"] == 0


def test_every_engine_is_probed() -> None:
    assert set(probe.PROBED) == set(engines.ENGINES)
    assert set(probe.STREAMS) == set(engines.STREAMS)


def test_ranks_that_torchrun_started_are_measured() -> None:
    words = [
        "probe",
        "--sizes",
        "4KiB,200KB",
        "--engine",
        ",".join(ENGINES),
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
