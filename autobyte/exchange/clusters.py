"""Clusters of another library's parameter servers: whether it is there, and what starts them for a training."""

import importlib.util
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

import torch

from autobyte.errors import AutoByteError, InputError, MissingExtra
from autobyte.exchange.connect import own_address
from autobyte.exchange.control import CommunicationError, Control
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.byteps_store import ENVIRONMENT
from autobyte.scheduler.engines.carried import Carried
from autobyte.scheduler.engines.carriers import Carriers, Library
from autobyte.scheduler.engines.mxnet_store import LIBRARY

log = logging.getLogger("autobyte")

MXNET, MXNET_VERSION = "mxnet", "1.9.1"
BYTEPS, BYTEPS_VERSION = "byteps", "0.2.5.post15"


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
    return _cluster(training, timeout, mxnet)


def byteps(training: Joining, timeout: timedelta) -> Carried:
    """Start BytePS's parameter servers, one beside every worker, and connect to them. Collective.

    Raises:
        CommunicationError: on every rank, if BytePS is not installed on one of them, or a process does not start.
    """
    return _cluster(training, timeout, byteps_library)


def mxnet() -> Library:
    """MXNet's parameter servers.

    Raises:
        MissingExtra: MXNet is not installed.
        InputError: this is no Linux.
    """
    folder = _folder("kvstore", MXNET, MXNET_VERSION, f"pip install --no-deps {MXNET}=={MXNET_VERSION}")
    return Library("MXNet", str(folder / LIBRARY), {torch.bfloat16: torch.float32}, {})


def byteps_library() -> Library:
    """BytePS's parameter servers.

    Raises:
        MissingExtra: BytePS is not installed.
        InputError: this is no Linux.
    """
    _folder("byteps", BYTEPS, BYTEPS_VERSION, "`make byteps` builds it")
    halves = dict.fromkeys((torch.float16, torch.bfloat16), torch.float32)
    return Library("BytePS", "", halves, ENVIRONMENT)


def _folder(engine: str, package: str, tried: str, way: str) -> Path:
    """Where a package is installed.

    Raises:
        MissingExtra: it is not.
        InputError: this is no Linux, where processes share memory as carriers do.
    """
    if not sys.platform.startswith("linux"):
        raise InputError(f"engine='{engine}' needs Linux, this is {sys.platform}; engine='ps' has servers of its own")
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise MissingExtra(f"engine='{engine}' needs the package {package}: {way}")
    with suppress(PackageNotFoundError):  # built from source
        if (installed := version(package)) != tried:
            log.warning("%s %s was never tried with AutoByte, %s was", package, installed, tried)
    return Path(found.origin).parent


def _cluster(training: Joining, timeout: timedelta, find: Callable[[], Library]) -> Carried:
    control, problem = training.control, ""
    try:
        library = find()
        host = _ipv4(own_address(), library)
    except AutoByteError as error:
        problem = f"rank {control.global_rank}: {error}"
    lacking = control.gather(torch.tensor([bool(problem)], dtype=torch.uint8, device="cpu")).flatten()
    if lacking.any():
        problem = control.share(problem, source=int(lacking.nonzero()[0]))
        raise CommunicationError(problem)
    try:
        carriers = Carriers(library, rank=training.rank, size=training.size, host=host, share=control.share)
    except OSError as error:
        raise CommunicationError(f"rank {control.global_rank}: {error}") from error
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


def _ipv4(host: str, library: Library) -> str:
    """An address that ps-lite can use.

    Raises:
        InputError: it is none.
    """
    if ":" in host:
        raise InputError(
            f"{library.name} needs IPv4, this rank has {host}: name an interface with IPv4 in GLOO_SOCKET_IFNAME"
        )
    return host
