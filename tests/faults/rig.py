"""Runs a row: starts its processes, waits for their ends, and looks at what they leave behind."""

import contextlib
import ctypes
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from json import dumps, loads
from pathlib import Path
from typing import Any

import psutil
from faults import rank as ranks
from faults.rows import BOUND_S, FAULTS, SIZE, Row
from ranks import free_port

GRACE_S = 2.0  # for what ends with a process, such as multiprocessing's resource tracker
DEADLINE_S = 75.0  # of a row; who has not ended by then hangs
POLL_S = 0.05
CHILD_SUBREAPER = 36  # of prctl(2): orphans among the descendants become this process's children


@dataclass(frozen=True)
class Outcome:
    """What became of one process of a row.

    Args:
        fault, engine, way, rank: which.
        seconds: from the fault to its end (s); from SIGCONT for one that was stopped.
        status: its exit status, negative for a signal; None if it hangs.
        words: its error, in one line.
        parameters: after which step they are, as the replica has them: `step 12`, `step 12 and 13` if they are torn,
            `refused: …`, or nothing where it had none.
        leftovers: what it, or the row, left behind.
        wrong: what is wrong with all this; nothing if it is as it should be.
    """

    fault: str
    engine: str
    way: str
    rank: int
    seconds: float
    status: int | None
    words: str
    parameters: str
    leftovers: str
    wrong: str


def run(row: Row, into: Path) -> None:
    """Run a row in this process, which must have no threads and no other children, and write what became of it.

    Args:
        row: which.
        into: the file for its outcomes, in JSON.
    """
    ctypes.CDLL(None).prctl(CHILD_SUBREAPER, 1, 0, 0, 0)
    folder = Path(tempfile.mkdtemp(prefix="fault"))
    for name in ("tmp", "cwd"):
        (folder / name).mkdir()
    environ = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(SIZE),
        "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    if row.fault == "restart":
        pids = {0: _torchrun(row, folder, environ)}
    else:
        pids = {rank: _fork(row, rank, folder, environ) for rank in range(SIZE)}
    watch = _Watch(row, folder, pids)
    watch.run()
    outcomes = watch.outcomes()
    shutil.rmtree(folder)
    into.write_text(dumps([asdict(outcome) for outcome in outcomes]))


def _fork(row: Row, rank: int, folder: Path, environ: dict[str, str]) -> int:
    """Start a rank: a copy of this process, which has imported everything, and ends as any Python process does."""
    pid = os.fork()
    if pid:
        return pid
    _enter(folder, f"log{rank}", environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
    ranks.run(row, rank, folder)
    sys.exit()


def _torchrun(row: Row, folder: Path, environ: dict[str, str]) -> int:
    """Start ranks as torchrun does."""
    pid = os.fork()
    if pid:
        return pid
    environ = environ | {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # else gloo's groups fail, too
        "PYTHONPATH": os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path),  # it runs elsewhere
    }
    _enter(folder, "log0", environ)
    options = ["--standalone", "--nproc-per-node", str(SIZE), "--max-restarts", "1"]
    module = ["-m", "faults.rank", row.name, str(folder)]
    command = [sys.executable, "-m", "torch.distributed.run", *options, *module]
    os.execv(sys.executable, command)
    return 0  # never


def _enter(folder: Path, log: str, environ: dict[str, str]) -> None:
    os.environ.update(environ)
    tempfile.tempdir = None
    os.chdir(folder / "cwd")
    descriptor = os.open(folder / log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


class _Watch:
    """Waits for the processes of a row.

    Args:
        row, folder: as in `run`.
        pids: of its processes, by rank.
    """

    def __init__(self, row: Row, folder: Path, pids: dict[int, int]) -> None:
        self._row, self._folder, self._pids = row, folder, pids
        self._fault = FAULTS[row.fault]
        self._ends: dict[int, tuple[float, int]] = {}  # time and exit status, by process
        self._shared: set[str] = set()  # files in /dev/shm that its processes have mapped
        self._continued_s = 0.0

    def run(self) -> None:
        """Wait until all have ended, or the deadline is over; end what is left, and note it."""
        until = time.time() + DEADLINE_S
        looked = 0.0
        while not set(self._pids.values()) <= self._ends.keys() and time.time() < until:
            self._reap()
            if time.time() > looked + 0.3:
                self._shared |= {name for child in _descendants() for name in _mapped(child.pid)}
                looked = time.time()
            if self._only_stopped() and not self._continued_s:
                self._continued_s = time.time()
                os.kill(self._pids[self._fault.victim], signal.SIGCONT)
            time.sleep(POLL_S)
        self._hung = [rank for rank, pid in self._pids.items() if pid not in self._ends]
        self._end_child()
        until = time.time() + GRACE_S
        while time.time() < until and (_left(self._folder) or list(_descendants())):
            self._reap()
            time.sleep(POLL_S)
        self._left = [f"process {_command(child)}" for child in _descendants() if child.pid not in self._hanging()]
        self._left += [f"/dev/shm/{name}" for name in sorted(self._shared) if Path("/dev/shm", name).exists()]
        self._left += _left(self._folder)
        for child in _descendants():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        while list(_descendants()):
            self._reap()
            time.sleep(POLL_S)

    def outcomes(self) -> list[Outcome]:
        """What became of every process."""
        return [self._outcome(rank, pid) for rank, pid in self._pids.items()]

    def _outcome(self, rank: int, pid: int) -> Outcome:
        noted = self._noted(rank)
        ended_s, status = self._ends.get(pid, (time.time(), None))
        began_s = self._continued_s if self._is_stopped(rank) else self._struck_s()
        hangs = rank in self._hung
        leftovers = [*(f"thread {name}" for name in noted.get("threads", [])), *(self._left if rank == 0 else [])]
        outcome = Outcome(
            self._row.fault, self._row.engine, self._row.way, rank,
            seconds=round(max(0.0, ended_s - began_s), 1) if began_s else 0.0,
            status=None if hangs else status,
            words=self._words(rank, noted),
            parameters=_said(noted),
            leftovers=", ".join(leftovers),
            wrong="",
        )  # fmt: skip
        return Outcome(**{**asdict(outcome), "wrong": ", ".join(self._wrong(outcome))})

    def _wrong(self, outcome: Outcome) -> Iterator[str]:
        """What is not as it should be."""
        if outcome.status is None:
            yield "hangs"
            return
        if outcome.seconds > BOUND_S and not self._fault.goes_on:
            yield f"took {outcome.seconds:g} s"
        if outcome.leftovers:
            yield "leftovers"
        if not self._struck_s():
            yield "the fault never came"
        if any(it.get("steps") != [it["said"]] for it in self._trainers(outcome.rank)):
            yield "wrong parameters"
        if self._fault.goes_on:
            if outcome.status != 0 or not (self._serves(outcome.rank) or self._trainers(outcome.rank)):
                yield "did not go on"
        elif outcome.rank != self._fault.victim:
            yield from self._wrong_end(outcome)

    def _wrong_end(self, outcome: Outcome) -> Iterator[str]:
        """What is not as it should be where a survivor ends."""
        serves = self._serves(outcome.rank)
        if outcome.status not in ((0, 1) if serves else (1,)):
            yield "went on" if outcome.status == 0 else f"ended with {outcome.status}"
        if serves:
            said = outcome.status == 0 or re.match(
                rf"CommunicationError: (server )?rank {outcome.rank}\b", outcome.words
            )
        else:
            said = self._fault.is_said(outcome.words, outcome.rank)
        if not said:
            yield "words"

    def _serves(self, rank: int) -> bool:
        return rank >= self._row.workers

    def _trainers(self, rank: int) -> list[dict[str, Any]]:
        """What this rank noted of its parameters, or all that torchrun has started; nothing of another model."""
        ranks = range(self._row.workers) if self._row.fault == "restart" else [rank]
        return [noted for noted in map(self._noted, ranks) if "said" in noted and not self._is_other(rank)]

    def _is_other(self, rank: int) -> bool:
        return (self._row.fault, rank) == ("other-model", self._fault.victim)

    def _noted(self, rank: int) -> dict[str, Any]:
        file = self._folder / f"rank{rank}.json"
        return loads(file.read_text()) if file.exists() else {}

    def _words(self, rank: int, noted: dict[str, Any]) -> str:
        """Its error, or the last line that it printed."""
        if noted.get("words"):
            return str(noted["words"])
        if noted.get("said") and not noted["refused"]:
            return ""  # it has ended well
        log = self._folder / f"log{rank}"
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else ""

    def _struck_s(self) -> float:
        file = self._folder / "struck"
        return float(file.read_text()) if file.exists() else 0.0

    def _is_stopped(self, rank: int) -> bool:
        return self._row.fault in ("stopped", "server-stopped") and rank == self._fault.victim

    def _only_stopped(self) -> bool:
        left = [rank for rank, pid in self._pids.items() if pid not in self._ends]
        return len(left) == 1 and self._is_stopped(left[0])

    def _hanging(self) -> set[int]:
        return {self._pids[rank] for rank in self._hung}

    def _end_child(self) -> None:
        """End the child that a rank has forked: it is the user's, and no leftover."""
        file = self._folder / "child"
        if file.exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGKILL)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                self._ends[found[0]] = time.time(), os.waitstatus_to_exitcode(found[1])


def _descendants() -> Iterator[psutil.Process]:
    """Processes of the row that have not ended."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                yield child


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())[-120:]
    return str(process.pid)


def _mapped(pid: int) -> set[str]:
    with contextlib.suppress(OSError):
        return set(re.findall(r"/dev/shm/(\S+)", Path(f"/proc/{pid}/maps").read_text()))
    return set()


def _left(folder: Path) -> list[str]:
    """Temporary files, and drafts beside the kept file."""
    kept = re.compile(r"autobyte\.toml(\.damaged.*|\.bad.*|\.\d+)?$")
    drafts = [path.name for path in (folder / "cwd").iterdir() if not kept.match(path.name)]
    temporary = [
        path.name
        for path in (folder / "tmp").iterdir()
        if not path.name.startswith(("torchinductor", "torchelastic"))
    ]
    return sorted([*drafts, *(f"tmp/{name}" for name in temporary)])


def _said(noted: dict[str, Any]) -> str:
    """Whose parameters a worker has, in words."""
    if noted.get("refused") and len(noted["steps"]) != 1:
        return f"refused: {noted['refused']}"
    steps = ["no step" if step < 0 else str(step) for step in noted.get("steps", [])]
    return "step " + " and ".join(steps) if steps else ""
