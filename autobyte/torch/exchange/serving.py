"""Parameter servers on ranks that do not train."""

import math
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from autobyte.errors import InputError
from autobyte.exchange.arguments import check_diagnostics
from autobyte.exchange.connect import connect
from autobyte.exchange.control import CommunicationError
from autobyte.exchange.diagnostics import Diagnostics
from autobyte.exchange.names import name_for
from autobyte.exchange.rollcall import PATIENCE_S, RollCall
from autobyte.scheduler.engines.server import ParameterServer

LISTEN_S = 0.5  # between two looks at whether the workers have failed


def serve(
    servers: Sequence[int],
    *,
    workers: Sequence[int] | None = None,
    timeout: timedelta = timedelta(seconds=120),
    diagnostics: Path | str | bool | None = True,
) -> None:
    """Sum gradients for the workers, and return when all of them have ended.

    >>> workers = dist.new_group([0, 1, 2, 3])
    >>> if dist.get_rank() in (4, 5):
    ...     ab.serve([4, 5])
    ... else:
    ...     optimizer = ab.DistributedOptimizer(optimizer, model, engine="ps", servers=[4, 5], process_group=workers)

    One call serves one wrapped model.

    Args:
        servers: the ranks that serve, this one among them, as `DistributedOptimizer` is told them.
        workers: the ranks that train; by default all others.
        timeout: after which connecting fails, and a host that does not answer counts as gone.
        diagnostics: where a file about a failure goes, as `DistributedOptimizer` has it.

    Raises:
        InputError: this rank is not among the servers, or a worker is.
        CommunicationError: a worker is gone, or cannot be reached.
    """
    check_diagnostics(diagnostics)
    rank = dist.get_rank()
    if rank not in servers:
        raise InputError(f"rank {rank} is not among the servers {list(servers)}")
    trained = [r for r in range(dist.get_world_size()) if r not in servers] if workers is None else list(workers)
    both = [r for r in trained if r in servers]
    if both or not trained:
        raise InputError(f"servers {list(servers)} do not train; workers are {trained}")
    name, alarms = name_for(trained), _Alarms()
    rollcall = RollCall(name, rank=rank, ranks=[*trained, *servers])

    def heard(message: str) -> None:
        rollcall.alarm(message)  # so that workers know that this rank is there
        alarms.add(message)

    rollcall.listen(heard, every_s=LISTEN_S)
    try:
        _serve(name, alarms, rank=rank, workers=trained, servers=servers, timeout=timeout)
    except CommunicationError as error:
        known = Diagnostics(diagnostics, rank=rank)
        known.include(lambda: f"one of the servers {list(servers)} of workers {trained}")
        raise CommunicationError(str(error) + known.write(str(error), alarms.message)) from error
    finally:
        rollcall.ignore()


class _Alarms:
    """What the workers have cried, and when the first of it was heard."""

    def __init__(self) -> None:
        self.message = ""
        self._heard_s = math.inf

    def add(self, message: str) -> None:
        self.message, self._heard_s = message, time.monotonic()

    @property
    def over(self) -> bool:
        """Whether all workers have heard it, too, by now."""
        return time.monotonic() > self._heard_s + PATIENCE_S


def _serve(
    name: str, alarms: _Alarms, *, rank: int, workers: Sequence[int], servers: Sequence[int], timeout: timedelta
) -> None:
    try:  # no longer once workers were refused: they will not come
        made = connect(
            name, rank=rank, workers=workers, servers=servers, timeout=timeout, refused=lambda: alarms.message
        )
    except CommunicationError as error:
        raise CommunicationError(f"server rank {rank}: {alarms.message}" if alarms.message else str(error)) from error
    server = ParameterServer(None, rank=rank, workers=workers, servers=servers, connect=lambda: made)
    server.wait(lambda: alarms.over)
    if server.broken is not None:
        raise CommunicationError(f"server rank {rank}: {server.broken}")
    if alarms.over:
        raise CommunicationError(f"server rank {rank}: {alarms.message}")
