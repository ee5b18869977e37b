"""`autobyte probe`: the engines in nccl-tests' columns, on this machine, under torchrun and on shaped links."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from beds import GBIT, needs_namespaces

from autobyte.testbed.hosts import PAYLOAD

ENGINES = ("allreduce", "ps")
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


@needs_namespaces
def test_a_large_block_fills_a_shaped_link_and_no_more() -> None:
    words = ("--hosts", "2", "--rate", "200Mbit", "--sizes", "4MiB", "--iterations", "3", "--warmup", "1", "--json")
    answer = json.loads(say(*words))
    check(answer["rows"], ranks=2, sizes=[4 << 20], itemsize=4)
    for row in answer["rows"]:
        assert 0.7 < row["busbw_bytes_per_s"] / (PAYLOAD * GBIT / 5) < 1.03  # the bucket may have been full
