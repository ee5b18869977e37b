"""The processes that torchrun has started: which one this is, and what they say to each other beside gradients."""

import atexit
import os
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from autobyte.errors import InputError
from autobyte.exchange.control import Control
from autobyte.exchange.names import name_for

_timeout = [timedelta(seconds=120)]  # of what ranks say here

Array = npt.NDArray[Any]

_controls: dict[int, Control] = {}  # by process, once it is needed: a fork has none


def begin(timeout: timedelta | None = None) -> None:
    """Let the processes that torchrun has started find each other, unless they have.

    Args:
        timeout: of this, and of what ranks say here from the first word on; None is what was said last.
    """
    if timeout is not None:
        _timeout[0] = timeout
    if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo", timeout=_timeout[0])


def rank() -> int:
    """This process among those that train, from 0 on; 0 where it trains alone."""
    begin()
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    """How many processes train."""
    begin()
    return dist.get_world_size() if dist.is_initialized() else 1


def control() -> Control:
    """What ranks speak through, made when it is needed first. Collective then."""
    if os.getpid() not in _controls:
        ranks = list(range(size()))
        _controls[os.getpid()] = Control(f"{name_for(ranks)}/keras", rank=rank(), ranks=ranks, timeout=_timeout[0])
    return _controls[os.getpid()]


@atexit.register
def _part_at_exit() -> None:
    """Let go of what this process speaks through; other ranks may still be speaking."""
    held = _controls.pop(os.getpid(), None)
    if held is not None:
        held.close(idle=False)


def broadcast_variables(variables: Iterable[Any], root_rank: int = 0) -> None:
    """Send one rank's variables to all others, in place. Collective.

    >>> ab.broadcast_variables(model.weights)

    Args:
        variables: Keras's, or the backend's; the same on all ranks.
        root_rank: whose values count.

    Raises:
        InputError: there is no such rank.
        CommunicationError: a rank does not take part in time.
    """
    if not 0 <= root_rank < size():
        raise InputError(f"root_rank must be one of {size()} ranks, got {root_rank}")
    if size() == 1:
        return
    variables = list(variables)
    values = [np.array(_value(each)) for each in variables]  # of this process alone, and contiguous
    control().agree("variables to share", "; ".join(f"{value.shape} {value.dtype}" for value in values))
    travelling = [torch.from_numpy(value.reshape(-1).view(np.uint8)) for value in values]
    names = [f"variable '{_name(each)}'" for each in variables]
    control().send_each(zip(names, travelling, strict=True), source=root_rank)
    if rank() != root_rank:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def mean(numbers: Sequence[float]) -> list[float]:
    """Means over ranks. Collective."""
    rows = control().gather(torch.tensor(list(numbers), dtype=torch.float64, device="cpu"))
    means: list[float] = rows.mean(dim=0).tolist()
    return means


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)


def _value(variable: Any) -> Array:
    """What a variable holds: Keras's of any backend, or TensorFlow's."""
    held = getattr(variable, "value", variable)
    held = held() if callable(held) else held
    if hasattr(held, "detach"):  # torch's, which may need gradients
        held = held.detach().cpu()
    value: Array = held.numpy()
    return value
