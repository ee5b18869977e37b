"""A failure leaves what each rank knows in one file; nothing that is wrong with the file hides the failure."""

import os
import re
import resource
import signal
import stat
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from faulty import ENGINES, SMALL, make_model, rows, said, train
from ranks import Ranks

import autobyte.torch as ab
from autobyte.exchange import diagnostics, engines
from autobyte.exchange.diagnostics import STACKS, Diagnostics, format_stacks, job_folder, stacks
from autobyte.exchange.engines import STREAMS
from autobyte.exchange.tuning.online import Online
from autobyte.torch.exchange import training


def test_the_survivors_of_a_killed_rank_leave_what_they_know(tmp_path: Path) -> None:
    launches = {engine: Ranks(_killed, 3, engine, tmp_path / engine, timeout_s=30) for engine in ENGINES}
    for engine, ranks in launches.items():
        for rank, outcome in enumerate(ranks.outcomes()):
            if rank == 1:
                continue
            (file,) = (tmp_path / engine).glob(f"rank{rank}-*.txt")
            assert outcome.endswith(f"; no word from rank 1; details in {file}"), outcome
            assert "\n" not in outcome
            _check_file(file.read_text(), engine, outcome.split("; no word from rank 1")[0])
        assert len(list((tmp_path / engine).iterdir())) == 2


def _check_file(text: str, engine: str, error: str) -> None:
    assert f"\nerror: {error}" in text
    assert "\nother ranks: no word from rank 1" in text
    assert re.search(r"^step 6 travels; 7 steps were closed, the last one is over$", text, re.MULTILINE)
    assert f"\nconfig: {SMALL}\nengine {engine}, order planned, ranks [0, 1, 2]" in text
    table, tensors, threads = re.split(r"\ntensors that have not arrived: \d of 6\n|\n\nthread ", text, maxsplit=2)
    blocks = re.findall(r"^ +(\d+) +\d+ +(\d+) +(-?[\d.]+) +(-?[\d.]*) +(-?[\d.]*)  (.*)$", table, re.MULTILINE)
    assert len(blocks) > 20  # of seven steps
    assert {step for step, *_, done, _ in blocks if done != "-"} >= {"3", "4", "5"}
    stuck = [(float(started), names) for step, _, started, _, done, names in blocks if (step, done) == ("6", "-")]
    assert all(-5_000 < started < -500 for started, _ in stuck), stuck  # a second passed before the rank was killed
    assert any("2.weight" in names for _, names in stuck), stuck
    assert "  2.weight: its gradient is complete here" in tensors.splitlines()
    (waiting,) = re.findall(r"(?:^|\nthread )MainThread.*?(?=\nthread |\Z)", threads, re.DOTALL)
    where = r'session.py", line \d+, in _?wait\n.*(_changed.wait_for|_rollcall.listen)'
    if engine in STREAMS:  # there the thread that trains may be the first to hear of it
        where = r'exchange.py", line \d+, in _follow\n.*(_buffers.follow|_session.fail_tensor)'
    assert re.search(where, waiting), waiting
    assert re.search(r'test_diagnostics.py", line \d+, in _killed\n.*train\(', waiting), waiting


def _killed(rank: int, engine: str, folder: Path | bool | None) -> Any:
    """The others have all begun to wait for averages when the rank dies, and not for a plan."""
    Online.announces = lambda _: False  # type: ignore[method-assign]
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    timeout = timedelta(seconds=15)
    optimizer = ab.DistributedOptimizer(sgd, model, config=SMALL, engine=engine, timeout=timeout, diagnostics=folder)
    train(model, optimizer, rank, range(6))
    if rank == 1:
        model[2].weight.register_hook(lambda _: _die_later())
    with pytest.raises(ab.CommunicationError) as told:
        train(model, optimizer, rank, range(6, 12))
    assert optimizer.training is not None
    with pytest.raises(ab.CommunicationError) as again:
        optimizer.training.session.check()
    assert str(again.value) == str(told.value)
    return str(told.value)


def _die_later() -> None:
    time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGKILL)


def test_by_default_it_is_in_the_temporary_directory_and_with_none_nowhere() -> None:
    launches = [Ranks(_where, 2, folder, timeout_s=30) for folder in (True, None, Path("/proc/none"))]
    (there, files), (silent, none), (refused, nothing) = (ranks.outcomes()[0] for ranks in launches)
    assert there.endswith(f"; no word from rank 1; details in {files[0]}")
    assert len(files) == 1
    assert silent.endswith("; no word from rank 1")
    assert re.search(r"; no word from rank 1; no details are written: cannot write /proc/none/rank0-.*: ", refused)
    assert none == nothing == []


def _where(rank: int, folder: Path | bool | None) -> tuple[str, list[str]]:
    words = _killed(rank, "allreduce", folder)
    return words, [str(file) for file in diagnostics.job_folder().glob("rank0-*.txt")]


def test_a_failure_before_gradients_travel_leaves_one_too(tmp_path: Path) -> None:
    outcome = said(Ranks(_lost_while_wrapping, 2, tmp_path, timeout_s=30).outcomes()[1])
    (file,) = tmp_path.iterdir()
    assert re.match(r"CommunicationError: rank 1, step 0: could not share parameter '0.weight': ", outcome)
    assert outcome.endswith(f"; details in {file}")
    assert re.search(r'training.py", line \d+, in broadcast_state', file.read_text())


def _lost_while_wrapping(rank: int, folder: Path) -> None:
    if rank == 0:
        training.broadcast_state = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    ab.DistributedOptimizer(sgd, model, timeout=timedelta(seconds=5), diagnostics=folder)


def test_failures_outside_a_session_leave_a_file_each(tmp_path: Path) -> None:
    for how, words in OUTSIDE.items():
        folder = tmp_path / how
        outcomes = Ranks(_outside, 2, how, folder, timeout_s=30).outcomes()
        for rank in (0, 1) if how == "left out" else (0,):
            (file,) = folder.glob(f"rank{rank}-*.txt")
            assert re.search(words, said(outcomes[rank])), outcomes[rank]
            assert said(outcomes[rank]).endswith(f"; details in {file}")
            assert "thread MainThread" in file.read_text()


OUTSIDE = {
    "verify": r"rank 0, step 2: tensor '0\.weight' differs by 1 from a plain all-reduce",
    "left out": r"rank \d, step \d: 1 of 2 ranks left out a step that others took",
    "connect": r"rank 0, step 0: could not connect to servers or workers: waited 2 s for server rank 1 to answer, ",
    "serve": r"rank 0, step 0: could not connect to servers or workers: waited 2 s for worker rank 1",
}


def _outside(rank: int, how: str, folder: Path) -> None:
    if how == "serve":
        if rank == 0:
            ab.serve([0], workers=[1], timeout=timedelta(seconds=2), diagnostics=folder)
        time.sleep(4)
        return
    model = make_model()
    keywords: dict[str, Any] = {"timeout": timedelta(seconds=2), "diagnostics": folder, "config": SMALL}
    if how == "connect":
        keywords["engine"] = "ps"
        if rank == 1:
            engines.connect = lambda *_, **__: time.sleep(4)  # type: ignore[assignment]
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = ab.DistributedOptimizer(sgd, model, verify_steps=4 if how == "verify" else 0, **keywords)
    for step in range(6):
        if (how, rank, step) == ("left out", 1, 3):
            model(rows(rank, step)).square().mean().backward()
            continue
        optimizer.zero_grad()
        model(rows(rank, step)).square().mean().backward()
        if (how, rank, step) == ("verify", 0, 2):
            optimizer._mode._verification._before["0.weight"] += 2  # as if what travelled had been something else
        optimizer.step()


def test_there_is_one_file_of_the_moment_at_which_the_failure_was_noticed(tmp_path: Path) -> None:
    seen = ["first", "second"]
    ours = Diagnostics(tmp_path / "new" / "folder", rank=3)
    ours.include(lambda: f"state: {seen.pop(0)}")
    ours.include(lambda: seen[9])
    ours.capture()
    ours.capture()
    said = ours.write("it is broken", "no word from rank 1", "")
    (file,) = (tmp_path / "new" / "folder").iterdir()
    assert said == f"; details in {file}"
    text = file.read_text()
    assert text.startswith(f"rank 3, process {os.getpid()} on ")
    assert "\nerror: it is broken\nother ranks: no word from rank 1\n\nstate: first\n\n" in text
    assert "a part of the state cannot be read: IndexError('list index out of range')" in text
    assert re.search(r"^thread MainThread, which noticed the failure:$", text, re.MULTILINE)
    assert ours.write("it is broken") == said
    assert len(list(file.parent.iterdir())) == 1
    Diagnostics(file.parent, rank=3).write("another model's is, too")
    assert len(list(file.parent.iterdir())) == 2
    assert file.read_text() == text


def test_stacks_that_cannot_be_had_hide_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "stacks", None)
    assert "; details in " in Diagnostics(tmp_path, rank=0).write("it is broken")


def test_a_full_disk_is_a_word_and_leaves_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # as if no file could take more
    try:
        said = Diagnostics(tmp_path, rank=0).write("it is broken")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert re.fullmatch(rf"; no details are written: cannot write {tmp_path}/rank0-.*\.txt: File too large", said)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(diagnostics, "WRITE", timedelta(seconds=0.1))
    monkeypatch.setattr(diagnostics, "job_folder", answers.wait)
    assert Diagnostics(True, rank=0).write("it is broken") == "; no details are written: no answer within 0.1 s"
    monkeypatch.setattr(diagnostics, "draft_of", None)  # nothing is written when it answers after all
    answers.set()


def test_the_folder_of_the_job_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = job_folder()
    assert folder == job_folder() == tmp_path / f"autobyte-{os.getuid()}-{os.getppid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    said = Diagnostics(True, rank=0).write("it is broken")
    assert said == f"; no details are written: {folder} belongs to somebody else; name another folder: diagnostics="
    assert list(elsewhere.iterdir()) == []


def test_stacks_are_of_all_threads_and_bounded() -> None:
    deep, over = threading.Event(), threading.Event()

    def descend(levels: int) -> None:
        if levels:
            descend(levels - 1)
        else:
            deep.set()
            over.wait()

    thread = threading.Thread(target=descend, args=(200,), name="deep")
    thread.start()
    deep.wait()
    found = stacks()
    over.set()
    thread.join()
    assert found[0][0] == "thread MainThread, which noticed the failure"
    (frames,) = (frames for title, frames in found if title == "thread deep")
    assert len(frames) == 64
    assert [name for _, _, name, _ in frames[-3:]] == ["descend", "wait", "wait"]
    text = format_stacks(found * 100)
    assert STACKS < len(text) < STACKS + 100
    assert text.endswith("\n... and so on")
