"""Parameter servers of another library as its users start them: one beside every worker, none of AutoByte's code."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from autobyte.exchange.connect import own_address
from autobyte.scheduler.engines.carriers import environment


@contextmanager
def cluster(serve: str, variables: Mapping[str, str]) -> Iterator[None]:
    """Start servers, and a scheduler beside the first worker; this process becomes a worker. Collective.

    Args:
        serve: a line of Python that serves, or schedules, where the environment says so.
        variables: of the environment, beside what ps-lite reads.
    """
    host = own_address()
    place: list[Any] = [None]
    if dist.get_rank() == 0:
        with socket.create_server((host, 0)) as free:
            place = [(host, free.getsockname()[1])]
    dist.broadcast_object_list(place)
    root, port = place[0]
    known = {"workers": dist.get_world_size(), "root": root, "port": port, "host": host, "rank": dist.get_rank()}
    processes = [
        subprocess.Popen([sys.executable, "-c", serve], env=environment(role, known) | dict(variables))
        for role in (["scheduler", "server"] if dist.get_rank() == 0 else ["server"])
    ]
    os.environ |= environment("worker", known) | dict(variables)
    try:
        yield
    finally:
        for process in processes:
            process.kill()
