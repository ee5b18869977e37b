"""What a rank knows when communication fails, in one file: the error, the last blocks, and where its threads are."""

import contextlib
import itertools
import os
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from traceback import StackSummary
from types import FrameType

from autobyte.drafts import draft_of
from autobyte.errors import FileError
from autobyte.exchange.deadline import Deadline
from autobyte.scheduler.runner import BlockTimes

WRITE = timedelta(seconds=5)  # a disk that takes longer does not get it
STACKS = 256 * 1024  # characters of all stacks together
FRAMES = 64  # of a thread, the innermost
HEARD = 4096  # characters of what other ranks said
NAMES = 4  # tensors of a fused block that are named
TENSORS = 100  # that have not arrived, and are named

_numbers = itertools.count(1)  # of files of this process: several models may fail at once
Frames = list[tuple[str, int, str, None]]  # file, line and function, the outermost first


class Diagnostics:
    """Writes one file about the first failure of a training, for whoever looks for its cause.

    State and stacks are taken when the failure is noticed; the file is written when it is raised, and other ranks
    have been heard. No problem with the file hides the failure.

    >>> diagnostics = Diagnostics("diagnostics", rank=3)
    >>> diagnostics.include(lambda: "config: …")
    >>> diagnostics.capture()
    >>> raise CommunicationError("tensor '…' did not arrive" + diagnostics.write("…", "no word from rank 1"))

    Args:
        folder: where the file goes; True is `job_folder()`, None or False is nowhere.
        rank: of this process, as torchrun numbers it.
    """

    def __init__(self, folder: Path | str | bool | None, *, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._parts: list[Callable[[], str]] = []
        self._state: list[str] | None = None
        self._stacks: list[tuple[str, Frames]] = []
        self._over = folder is None or folder is False
        self._where = ""

    def include(self, part: Callable[[], str]) -> None:
        """Ask for a part of the state when something fails; it must not wait for anything."""
        self._parts.append(part)

    def capture(self) -> None:
        """Take state and stacks as they are now; the first failure counts."""
        if self._over or self._state is not None:
            return
        self._state = [_text_of(part) for part in self._parts]
        with contextlib.suppress(Exception):  # else the failure would not be told
            self._stacks = stacks()

    def write(self, error: str, *others: str) -> str:
        """Write the file, once.

        Args:
            error: what has gone wrong.
            others: what is heard of other ranks, and from them.

        Returns:
            the end of the error's message: where the file is, or why there is none; empty if none is wanted.
        """
        self.capture()
        if not self._over:
            self._over = True
            self._where = self._written(error, *others)
        return self._where

    def _written(self, error: str, *others: str) -> str:
        try:
            path = Deadline(WRITE).run(lambda: self._write(error, [each for each in others if each]))
        except Exception as problem:  # whatever it is: the failure itself is what must be raised
            return f"; no details are written: {' '.join(str(problem).split()) or type(problem).__name__}"
        self._parts.clear()
        return f"; details in {path}"

    def _write(self, error: str, others: list[str]) -> Path:
        folder = job_folder() if isinstance(self._folder, bool) else Path(str(self._folder)).absolute()
        path = folder / f"rank{self._rank}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{next(_numbers)}.txt"
        head = (
            f"rank {self._rank}, process {os.getpid()} on {socket.gethostname()}, "
            f"{time.strftime('%Y-%m-%d %H:%M:%S %z')}\n"
            f"error: {error}\n"
            f"other ranks: {' '.join('; '.join(others).split())[:HEARD] or 'not asked'}"
        )
        body = "\n\n".join([head, *(self._state or []), format_stacks(self._stacks)])
        with draft_of(path) as draft:
            folder.mkdir(parents=True, exist_ok=True)
            draft.write_text(body + "\n", encoding="utf-8", errors="backslashreplace")
        return path


def job_folder() -> Path:
    """Make the folder of this job in the temporary directory, for this user alone.

    A job is all that one process has started: torchrun's agent on this host, say.

    Raises:
        FileError: somebody else has made it.
        OSError: it cannot be made.
    """
    folder = Path(tempfile.gettempdir()) / f"autobyte-{os.getuid()}-{os.getppid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise FileError(f"{folder} belongs to somebody else; name another folder: diagnostics=")
    return folder


def format_blocks(blocks: Sequence[BlockTimes], now_s: float) -> str:
    """A table of blocks; times are milliseconds since `now_s`, so those before it are negative."""
    rows = [f"{'step':>6} {'block':>6} {'bytes':>11} {'started':>12} {'sent':>12} {'done':>12}  tensors"]
    for each in blocks:
        times = (each.start_s, each.sent_s, each.done_s)
        columns = " ".join(f"{'-' if t is None else f'{(t - now_s) * 1e3:.3f}':>12}" for t in times)
        names = list(dict.fromkeys(each.plan.job.gradients.names[s.tensor] for s in each.block.segments))
        more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
        named = ", ".join(names[:NAMES]) + more
        rows.append(f"{each.step:>6} {each.block.index:>6} {each.block.nbytes:>11} {columns}  {named}")
    return "\n".join(rows)


def format_tensors(names: Sequence[str], *, here: Sequence[bool]) -> str:
    """A list of tensors that have not arrived, and whether their gradients are complete on this rank."""
    rows = [
        f"  {name}: its gradient is {'' if complete else 'not '}complete here"
        for name, complete in zip(names[:TENSORS], here, strict=False)
    ]
    return "\n".join([*rows, *([f"  and {len(names) - TENSORS} more"] if len(names) > TENSORS else [])])


def stacks() -> list[tuple[str, Frames]]:
    """Where every Python thread is: its name and its frames; the thread that asks comes first. No file is read."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    found = []
    for ident, innermost in sorted(sys._current_frames().items(), key=lambda each: each[0] != own):
        frames: Frames = []
        frame: FrameType | None = innermost
        while frame is not None and len(frames) < FRAMES:
            frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, None))
            frame = frame.f_back
        noticed = ", which noticed the failure" if ident == own else ""
        found.append((f"thread {names.get(ident, ident)}{noticed}", frames[::-1]))
    return found


def format_stacks(found: Sequence[tuple[str, Frames]]) -> str:
    """Stacks as Python prints them, with their lines of source, up to a bound."""
    text = "\n".join(f"{title}:\n{''.join(StackSummary.from_list(frames).format())}" for title, frames in found)
    return text if len(text) <= STACKS else text[:STACKS] + "\n... and so on"


def _text_of(part: Callable[[], str]) -> str:
    try:
        return part()
    except Exception as problem:  # something is half changed while another thread works on it
        return f"a part of the state cannot be read: {problem!r}"
