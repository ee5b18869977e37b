"""Parameter servers on ranks that do not train."""

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from autobyte.errors import InputError
from autobyte.scheduler.engines.server import ParameterServer
from autobyte.torch.exchange.connect import connect
from autobyte.torch.exchange.control import CommunicationError
from autobyte.torch.exchange.training import name_for


def serve(
    servers: Sequence[int], *, workers: Sequence[int] | None = None, timeout: timedelta = timedelta(seconds=120)
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

    Raises:
        InputError: this rank is not among the servers, or a worker is.
        CommunicationError: a worker is gone, or cannot be reached.
    """
    rank = dist.get_rank()
    if rank not in servers:
        raise InputError(f"rank {rank} is not among the servers {list(servers)}")
    trained = [r for r in range(dist.get_world_size()) if r not in servers] if workers is None else list(workers)
    both = [r for r in trained if r in servers]
    if both or not trained:
        raise InputError(f"servers {list(servers)} do not train; workers are {trained}")
    name = name_for(trained)
    server = ParameterServer(
        None,
        rank=rank,
        workers=trained,
        servers=servers,
        connect=lambda: connect(name, rank=rank, workers=trained, servers=servers, timeout=timeout),
    )
    server.wait()
    if server.broken is not None:
        raise CommunicationError(f"server rank {rank}: {server.broken}")
