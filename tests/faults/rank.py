"""One process of a row: it trains or serves, has its fault, and writes down what it is left with."""

import contextlib
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # torch's optimizers import it in their first step, which would take seconds in every rank
import torch._inductor
import torch.distributed as dist
from faults.rows import FAULTS, SIZE, TIMEOUT_S, Row
from faulty import SMALL, make_model, rows
from torch import Tensor, nn

import autobyte.torch as ab
from autobyte.config import Config

TIMEOUT = timedelta(seconds=TIMEOUT_S)
STRIKES = {"fixed": 12, "twin": 36, "auto": 36}  # the step of the fault: windows have ended where something tunes
STEPS = {"fixed": 24, "twin": 80, "auto": 80}
STEP_S = 0.01  # of computing, so that a tuner has time to think
CLOSE = 1e-6  # of parameters that differ only in the order of sums; those of two steps differ by a hundred times more

State = list[Tensor]  # parameters, then their momentum


def run(row: Row, rank: int, folder: Path) -> None:
    """Be a rank of a row; end as its script would.

    Args:
        row: what is trained, and what goes wrong.
        rank: of this process, whose environment is as torchrun makes it.
        folder: where the ranks of the row write, each a file of its own.
    """
    torch.set_num_threads(1)
    fault = FAULTS[row.fault]
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    (folder / f"pid{rank}").write_text(str(os.getpid()))
    workers = dist.new_group(list(range(row.workers)))
    (folder / f"here{rank}").touch()  # torch's own meetings are over
    before = _sockets()
    if fault.early and rank == fault.victim:
        _prepare(row, folder)
    if rank >= row.workers:
        _serve(row, rank, folder)
        return
    torch.manual_seed(0)
    model = make_model(31 if (row.fault, rank) == ("other-model", fault.victim) else 30)
    inner = _sgd(model)
    note = _Note(row, rank, folder, model, inner)
    try:
        optimizer = ab.DistributedOptimizer(inner, model, process_group=workers, **_keywords(row, rank, folder))
    except Exception as error:
        note.write(words=_line(error), said=0)
        raise
    taken = 0
    for step in range(STEPS[row.way]):
        with note.failing(optimizer):
            if rank == _striker(row) and step == _moment(row):
                strike(row, model, inner, folder, lambda: _shut(_sockets() - before))
                if row.fault == "leaves":
                    break
            optimizer.zero_grad()
            loss = _loss(model, rank, step)
            (loss * float("nan") if _is_nan(row, rank, step) else loss).backward()
            optimizer.step()
            taken += 1
            time.sleep(STEP_S)
    with note.failing(optimizer):
        optimizer.close()
    note.write(said=taken)
    dist.destroy_process_group()


NOW = dict.fromkeys(("killed-between", "store-training", "restart"), signal.SIGKILL)
NOW |= {"terminated": signal.SIGTERM, "stopped": signal.SIGSTOP}
ON_SERVER = {"server-killed": signal.SIGKILL, "server-stopped": signal.SIGSTOP}


def strike(row: Row, model: nn.Module, inner: Any, folder: Path, cut: Callable[[], None]) -> None:
    """Have the fault, now or in the step that begins."""
    name = row.fault
    if name == "restart" and os.environ.get("TORCHELASTIC_RESTART_COUNT") != "0":
        return
    if name in NOW:
        _signal(folder, NOW[name])
    elif name in ON_SERVER:
        _signal(folder, ON_SERVER[name], int((folder / f"pid{row.workers}").read_text()))
    elif name.startswith(("killed", "raises")):
        place = {"forward": model[2].register_forward_pre_hook, "step": inner.register_step_pre_hook}
        hook = place.get(name.split("-")[1], model[2].weight.register_hook)
        hook(lambda *_: _signal(folder, signal.SIGKILL) if name.startswith("killed") else _fail(folder))
    else:
        _struck(folder)
        _harm(name, folder, cut)


def _harm(name: str, folder: Path, cut: Callable[[], None]) -> None:
    match name:
        case "cut":
            cut()
        case "slow":
            time.sleep(3)
        case "full-disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        case "child-lives-on":
            child = os.fork()
            if child == 0:
                time.sleep(1000)  # such as a data loader's worker: it has copies of all sockets
                os._exit(0)
            (folder / "child").write_text(str(child))
            _signal(folder, signal.SIGKILL)


def _signal(folder: Path, number: signal.Signals, pid: int | None = None) -> None:
    _struck(folder)
    os.kill(pid or os.getpid(), number)


def _fail(folder: Path) -> None:
    _struck(folder)
    raise RuntimeError("out of luck")


def _prepare(row: Row, folder: Path) -> None:
    """Have a fault that comes before training."""
    while row.fault == "store-meeting" and len(list(folder.glob("here*"))) < SIZE:
        time.sleep(0.01)
    _struck(folder)
    match row.fault:
        case "late":
            time.sleep(4)
        case "never":
            sys.exit(0)
        case "store-meeting":
            os.kill(os.getpid(), signal.SIGKILL)
        case "damaged-kept":
            (folder / "cwd" / "autobyte.toml").write_text("[found\n\0")


def _keywords(row: Row, rank: int, folder: Path) -> dict[str, Any]:
    """What the rank says to `DistributedOptimizer`."""
    files = {"keep": folder / "cwd" / "autobyte.toml", "diagnostics": folder / "failures"}
    keywords: dict[str, Any] = {"timeout": TIMEOUT, **files}
    if row.engine != "allreduce":
        keywords["engine"] = "ps"
    if row.engine == "separate":
        keywords["servers"] = [row.workers]
    other = (row.fault, rank) == ("other-config", FAULTS[row.fault].victim)
    if row.way == "auto":
        return keywords | {"policy": "bytescheduler" if other else "auto"}
    keywords["config"] = Config(2048, 2048) if other else SMALL
    if row.way == "twin":
        keywords |= {"tuner": "twin", "budget": 4}
    return keywords


def _serve(row: Row, rank: int, folder: Path) -> None:
    try:
        ab.serve([rank], timeout=TIMEOUT, diagnostics=folder / "failures")
        words = ""
    except Exception as error:
        words = _line(error)
        raise
    finally:
        _write(folder, rank, {"words": words})
    dist.destroy_process_group()


def _striker(row: Row) -> int:
    """The worker that does it; a server is struck by one."""
    return min(FAULTS[row.fault].victim, row.workers - 1)


def _moment(row: Row) -> int:
    """The step in which the fault comes."""
    if FAULTS[row.fault].early:
        return -1
    if row.fault == "full-disk":
        return 2  # before anything is kept
    return STEPS[row.way] - 1 if row.fault == "killed-last" else STRIKES[row.way]


def _is_nan(row: Row, rank: int, step: int) -> bool:
    return (row.fault, rank, step) == ("nan", FAULTS[row.fault].victim, STRIKES[row.way])


class _Note:
    """What a worker is left with, and how it compares with a replica that had all ranks' batches.

    Args:
        row, rank, folder: as in `run`.
        model, inner: the user's.
    """

    def __init__(self, row: Row, rank: int, folder: Path, model: nn.Module, inner: torch.optim.Optimizer) -> None:
        self._row, self._rank, self._folder = row, rank, folder
        self._model, self._inner = model, inner

    @contextlib.contextmanager
    def failing(self, optimizer: ab.DistributedOptimizer) -> Any:
        """After a failure, ask for what can be saved, as the user would, and note it."""
        try:
            yield
        except Exception as error:
            said, refused = None, ""
            try:
                said = optimizer.recover()
            except Exception as other:
                refused = _line(other)
            self.write(words=_line(error), refused=refused, said=said)
            raise

    def write(self, *, words: str = "", refused: str = "", said: int | None = None) -> None:
        """Write it down.

        Args:
            words: of the failure.
            refused: what whoever wanted to save a checkpoint was told.
            said: how many steps parameters should have taken.
        """
        try:
            steps = sorted({*self._steps()})
        except Exception as error:  # nobody can read parameters that are not whole
            steps, refused = [], refused or _line(error)
        noted = {"words": words, "refused": refused, "steps": steps, "said": said, "threads": _threads()}
        _write(self._folder, self._rank, noted)

    def _steps(self) -> list[int]:
        """For every tensor the step after which the replica has it; -1 is none."""
        model, inner = self._model, self._inner
        if len(model[0].weight) != 30:
            return []
        states = replica(self._row)
        ours = _state(model, inner)
        found = []
        for index, tensor in enumerate(ours):
            same = (
                step
                for step, state in enumerate(states)
                if index < len(state) and torch.allclose(tensor, state[index], rtol=0, atol=CLOSE, equal_nan=True)
            )
            found.append(list(same))
        common = set.intersection(*(set(steps) for steps in found))
        return [max(common)] if common else [max(steps, default=-1) for steps in found]


def replica(row: Row) -> list[State]:
    """Parameters and momentum after 0, 1, … steps of one process that has all ranks' batches."""
    model = make_model()
    inner = _sgd(model)
    states = [_state(model, inner)]
    for step in range(STEPS[row.way]):
        inner.zero_grad()
        for rank in range(row.workers):
            loss = _loss(model, rank, step)
            ((loss * float("nan") if _is_nan(row, rank, step) else loss) / row.workers).backward()
        inner.step()
        states.append(_state(model, inner))
    return states


def _state(model: nn.Module, inner: torch.optim.Optimizer) -> State:
    parameters = list(model.parameters())
    momentum = [inner.state.get(parameter, {}).get("momentum_buffer") for parameter in parameters]
    return [tensor.detach().clone() for tensor in (*parameters, *momentum) if tensor is not None]


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(rows(rank, step)).square().mean()


def _struck(folder: Path) -> None:
    """Write down when the fault came."""
    (folder / "struck").write_text(repr(time.time()))


def _write(folder: Path, rank: int, what: dict[str, Any]) -> None:
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))  # the disk has space again
    (folder / f"rank{rank}.json").write_text(json.dumps(what))


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _threads() -> list[str]:
    """AutoByte's threads that live on, after a moment for those that are ending."""
    until = time.monotonic() + 2
    while True:
        names = [thread.name for thread in threading.enumerate() if thread.name.startswith("autobyte")]
        if not names or time.monotonic() > until:
            return sorted(names)
        time.sleep(0.05)


def _sockets() -> set[int]:
    """Descriptors of this process's sockets."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(entry.readlink()).startswith("socket:"):
                found.add(int(entry.name))
    return found


def _shut(sockets: set[int]) -> None:
    for descriptor in sockets:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as sock:
            if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                sock.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":  # as torchrun starts it
    run(Row(*sys.argv[1].split(".")), int(os.environ["RANK"]), Path(sys.argv[2]))
