"""Faults end in time, in words, with parameters of one step, and leave nothing: a few here, all in docs/faults.md."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from faults import page
from faults.rank import CLOSE, STEPS, replica
from faults.rows import FAULTS, QUICK, Row, all_rows
from faulty import make_model, train
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel

ROOT = Path(__file__).parent.parent.parent


def test_quick_column(tmp_path: Path) -> None:
    out = tmp_path / "quick.csv"
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    command = [sys.executable, "-m", "faults.matrix", "quick", "--out", str(out)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = page.read(out)
    assert len(lines) == 3 * len(QUICK), done.stdout + done.stderr[-2000:]
    assert {line["wrong"] for line in lines} == {""}, done.stdout


def test_the_page_shows_the_data() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.table(page.read(page.DATA)) in text, "run page.fill(page.PAGE, page.DATA)"


def test_the_data_have_every_row() -> None:
    rows = {Row(line["fault"], line["engine"], line["way"]) for line in page.read(page.DATA)}
    assert rows == set(all_rows()), "run make faults"
    assert set(QUICK) <= rows


def test_nothing_in_the_data_hangs_is_wrong_or_left_behind() -> None:
    wrong = {what for line in page.read(page.DATA) for what in line["wrong"].split(", ")}
    assert wrong.isdisjoint({"hangs", "wrong parameters", "leftovers", "went on", "did not go on"})


def test_words_that_blame_nobody_are_not_taken() -> None:
    fault = FAULTS["killed-between"]
    lost = "rank 0, step 12: block 3 of tensor '2.weight': Connection closed by peer; "
    assert fault.is_said(lost + "no word from rank 1", 0)
    assert not fault.is_said(lost + "no word from rank 2", 0)
    assert not fault.is_said(lost + "all ranks are alive", 0)


def test_the_replica_is_ddp() -> None:
    on_ranks(_compared, 3)


def _compared(rank: int) -> None:
    row = Row("killed-between", "allreduce", "fixed")
    states = replica(row)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(DistributedDataParallel(model), optimizer, rank, range(STEPS[row.way]))
    momentum = [optimizer.state[parameter]["momentum_buffer"] for parameter in model.parameters()]
    for ours, theirs in zip(states[-1], [*model.parameters(), *momentum], strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=CLOSE)
    for before, after in itertools.pairwise(states):
        assert all(float((a - b).abs().max()) > 10 * CLOSE for a, b in zip(before, after, strict=False))
    dist.barrier()
