"""Clusters of another library's parameter servers: whether it is there, and what starts them for a training."""

import importlib.util
import logging
import sys
from collections.abc import Callable
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import torch

from autobyte.errors import AutoByteError, InputError, MissingExtra
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.carried import Carried
from autobyte.scheduler.engines.carriers import Carriers
from autobyte.scheduler.engines.mxnet_store import LIBRARY
from autobyte.torch.exchange.connect import own_address
from autobyte.torch.exchange.control import CommunicationError, Control

log = logging.getLogger("autobyte")

MXNET, MXNET_VERSION = "mxnet", "1.9.1"


class Joining(Protocol):
    """What a cluster is told of the training that it is for."""

    rank: int
    size: int
    buffers: Buffers
    control: Control


def kvstore(training: Joining, timeout: timedelta) -> Carried:
    """Start MXNet's parameter servers, one beside every worker, and connect to them. Collective.

    Raises:
        CommunicationError: on every rank, if MXNet is not installed on one of them, or a process does not start.
    """
    return _cluster(training, timeout, "MXNet", mxnet_library)


def mxnet_library() -> dict[str, Any]:
    """What a carrier must know to use MXNet.

    Raises:
        MissingExtra: MXNet is not installed.
        InputError: this is no Linux, where processes can share memory as carriers do.
    """
    if not sys.platform.startswith("linux"):
        raise InputError(f"engine='kvstore' needs Linux, this is {sys.platform}; engine='ps' has servers of its own")
    found = importlib.util.find_spec(MXNET)
    if found is None or found.origin is None:
        raise MissingExtra(f"engine='kvstore' needs MXNet: pip install --no-deps {MXNET}=={MXNET_VERSION}")
    try:
        if (installed := version(MXNET)) != MXNET_VERSION:
            log.warning("MXNet %s was never tried with AutoByte, %s was", installed, MXNET_VERSION)
    except PackageNotFoundError:  # built from source
        log.warning("an MXNet without a version was never tried with AutoByte, %s was", MXNET_VERSION)
    return {"library": str(Path(found.origin).parent / LIBRARY)}


def _cluster(training: Joining, timeout: timedelta, what: str, find: Callable[[], dict[str, Any]]) -> Carried:
    control, told, host, problem = training.control, dict[str, Any](), "", ""
    try:
        told, host = find(), own_address()
    except AutoByteError as error:
        problem = f"rank {control.global_rank}: {error}"
    lacking = control.gather(torch.tensor([bool(problem)], dtype=torch.uint8, device="cpu")).flatten()
    if lacking.any():
        problem = control.share(problem, source=int(lacking.nonzero()[0]))
        raise CommunicationError(problem)
    carriers = Carriers(what, told, rank=training.rank, size=training.size, host=host, share=control.share)
    engine = Carried(training.buffers, carriers)
    try:
        control.meet(lambda: engine.join(timeout.total_seconds()))
    except ConnectionError as error:
        engine.abandon()
        raise CommunicationError(f"rank {control.global_rank}: {error}") from error
    except BaseException:
        engine.abandon()
        raise
    return engine
