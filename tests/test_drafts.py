"""What is written is there whole, with the mode that the umask gives it; or not at all, and one line says why."""

import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from autobyte.cli.files import write_json
from autobyte.comparison.page import OURS, save_page
from autobyte.config import Config
from autobyte.drafts import draft_of
from autobyte.errors import FileError
from autobyte.exchange.tuning.kept import Fingerprint, Kept
from autobyte.models.profile import LayerEntry, Profile
from autobyte.nets.checkpoint import Checkpoint
from autobyte.nets.collection import Folder
from autobyte.nets.dataset import Groups
from autobyte.simulator.calibrate import EngineCalibration
from autobyte.trace import Span, Trace

LONG = "x" * 3000
RANDOM = np.random.default_rng(0).random((3, 3, 100))  # does not get shorter when it is compressed
PROFILE = Profile(name=LONG, batch_size=1, provenance={}, layers=[LayerEntry(name="one", forward_s=1, backward_s=1)])
KEPT = Kept(
    Fingerprint(LONG, "0", 2, "ps", "as they are", "ddp"),
    link_bytes_per_s=1e9,
    config=Config(1, 1, "ddp"),
    tuner="grid",
    windows=1,
    step_s=1,
    first_s=1,
)
WRITERS: dict[str, Callable[[Path], None]] = {
    "profile": lambda path: PROFILE.save(path, replace=True),
    "json": lambda path: write_json(path, {"name": LONG}),
    "kept": KEPT.write,
    "calibration": lambda path: EngineCalibration(provenance={"of": LONG}, engines={}).save(path, force=True),
    "trace": Trace(spans=[Span(0, 0, LONG, 0, LONG, 0.0, 1.0)]).save,
    "page": lambda path: save_page(path, OURS.decode() + LONG),
    "checkpoint": lambda path: Checkpoint(path, {}).keep({"epoch": 1}, weights=[RANDOM]),
    "part": lambda path: Folder(path.parent).keep(
        path.name, Groups(RANDOM, RANDOM, RANDOM, RANDOM, RANDOM, RANDOM, RANDOM[0, 0], np.arange(3), np.arange(3))
    ),
    "order": lambda path: Folder(path.parent).describe({"order": LONG}),
}


@contextmanager
def umask(bits: int) -> Iterator[None]:
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def disk_of(nbytes: int) -> Iterator[None]:
    """No file takes more bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("what", WRITERS)
def test_a_file_has_the_mode_of_any_new_file(what: str, tmp_path: Path) -> None:
    for bits in (0o027, 0o002):
        with umask(bits):
            WRITERS[what](tmp_path / "dataset.json")
        (file,) = tmp_path.iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~bits


@pytest.mark.parametrize("what", WRITERS)
def test_a_full_disk_leaves_no_draft(what: str, tmp_path: Path) -> None:
    path = tmp_path / "dataset.json"
    with disk_of(1000), pytest.raises(FileError, match=r"^cannot write .*dataset.json: File too large$"):
        WRITERS[what](path)
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_stays_if_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    for error in (KeyboardInterrupt(), OSError(28, "No space left on device")):
        with pytest.raises((KeyboardInterrupt, FileError)), draft_of(path) as draft:
            draft.write_text("half of")
            raise error
        assert [file.name for file in tmp_path.iterdir()] == ["file"]
        assert path.read_text() == "before"


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path: Path) -> None:
    """A root user's `--trace /dev/null` must not replace it."""
    path, link, pipe = tmp_path / "file", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(path)
    with draft_of(link) as draft:
        draft.write_text("new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with draft_of(pipe) as draft:
        draft.write_text("through it")
    assert os.read(reader, 100) == b"through it"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
