"""What `DistributedOptimizer` is given, looked at before anything is made: one line says what cannot be used."""

import logging
import math
import os
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from autobyte.config import Config
from autobyte.errors import InputError, unknown
from autobyte.exchange.arguments import AUTO, BYTESCHEDULER, KEEP, SERVED, check_policy
from autobyte.scheduler.policies import POLICIES
from autobyte.tuners import TUNERS

log = logging.getLogger("autobyte")

SHARE = 0.01  # of the time trained: what trials of `auto` may cost where nobody has asked for them
TINY, MOST_BLOCKS = 1000, 100_000  # bytes of a partition; beyond, a step takes minutes
HALVES: dict[Any, Any] = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def check(
    optimizer: object,
    model: object,
    *,
    policy: str,
    config: object,
    tuner: str | None,
    budget: int | None,
    drift: float,
    timeout: object,
) -> None:
    """Look at the arguments that name no rank.

    Raises:
        InputError: one is of the wrong kind, out of range, or says what another one contradicts.
    """
    if not isinstance(optimizer, Optimizer) or not isinstance(model, nn.Module):
        given = f"{type(optimizer).__name__}, {type(model).__name__}"
        raise InputError(f"say DistributedOptimizer(optimizer, model), got {given}")
    if not isinstance(timeout, timedelta):
        raise InputError(f"timeout must be a timedelta, got {timeout!r}")
    if budget is not None and budget < 1:
        raise InputError(f"budget must be at least 1 window, got {budget}; None is what the tuner needs")
    if budget is not None and tuner is None and policy != AUTO:
        raise InputError(f"budget={budget} is for a tuner, and there is none: say tuner= or policy='{AUTO}', too")
    if not drift > 0:
        raise InputError(f"drift must be positive, got {drift}; inf keeps the first plan")
    if policy != AUTO and policy not in POLICIES:
        raise unknown("policy", policy, (AUTO, *POLICIES.names()))
    if tuner is not None and tuner not in TUNERS:
        raise unknown("tuner", tuner, TUNERS.names())
    if policy == AUTO and (tuner is not None or config is not None):
        raise InputError(f"policy='{AUTO}' chooses its own config: leave out tuner= and config=")
    if config is None:
        return
    if isinstance(config, str | Path):
        return  # a kept file, of which rank 0's counts: it is read when ranks are connected
    if not isinstance(config, Config):
        raise InputError(f"config must be a Config or a kept file, got {config!r}")
    check_policy(policy, config)
    _check_size(model, config)


def _check_size(model: nn.Module, config: Config) -> None:
    """Refuse a partition of a few bytes, which was probably meant to be megabytes.

    Raises:
        InputError: it is below 1000 bytes, and cuts the model into more than 100,000 blocks.
    """
    size, nbytes = config.partition_bytes, sum(each.nbytes for each in model.parameters() if each.requires_grad)
    if size < TINY and nbytes > MOST_BLOCKS * size:
        raise InputError(
            f"config= has partitions of {size} bytes, which make {nbytes // size:,} blocks of "
            f"'{type(model).__name__}'; write Config({size} * 2**20, …) if you mean MiB"
        )


@dataclass(frozen=True)
class PolicyChoice:
    """What arguments that were left out stand for.

    Args:
        policy: named, or what stands for none.
        share: of the time trained, what trials of `auto` may cost; infinite for trials at once.
        keep: the file for what is found; None keeps nothing.
    """

    policy: str
    share: float
    keep: Path | None

    @property
    def first(self) -> str:
        """The policy that training begins with: where trials wait, DDP's buckets."""
        if self.policy != AUTO:
            return self.policy
        return BYTESCHEDULER if math.isinf(self.share) else "ddp"

    def __str__(self) -> str:
        """What ranks must agree on: what trials may cost, rank 0 decides."""
        return f"policy {self.policy}" + ("" if math.isinf(self.share) else ", which waits for its trials")


def choose_policy(
    policy: str | None,
    search_cost: float | None,
    keep: os.PathLike[str] | str | bool | None,
    *,
    scheduled: bool,
    engine: str,
    order: str,
    alone: bool,
) -> PolicyChoice:
    """Choose what was left out. Where nothing says that gradients are to be scheduled, DDP's buckets come first.

    They go by PyTorch's reducer, and so are not slower than DDP, unless the model is compiled or steps have closures.

    Args:
        policy, search_cost, keep, engine, order: as `DistributedOptimizer` has them.
        scheduled: whether a config, a tuner or a space was given.
        alone: whether no other optimizer is wrapped in this process: trials of two disturb each other.

    Raises:
        InputError: `search_cost` is negative, no number, or for another policy; or `keep` is no file.
    """
    if keep is not None and not isinstance(keep, bool | str | os.PathLike):
        raise InputError(f"keep must be a file, True or None, got {keep!r}")
    kept = None if keep is None or isinstance(keep, bool) else keep
    if keep is True and (policy is not None or scheduled):
        kept = KEEP
    path = None if kept is None else Path(kept)
    by_default = policy is None and not scheduled and order == "planned" and engine not in SERVED
    chosen = policy or (AUTO if by_default else BYTESCHEDULER)
    if search_cost is None:
        share = (SHARE if alone else 0.0) if by_default else math.inf
    elif isinstance(search_cost, bool) or not isinstance(search_cost, int | float) or not search_cost >= 0:
        raise InputError(f"search_cost must be a part of the time trained, 0 or more, got {search_cost!r}")
    elif chosen != AUTO:
        raise InputError(f"search_cost={search_cost} is for policy='{AUTO}', not for '{chosen}': leave it out")
    else:
        share = float(search_cost)
    return PolicyChoice(chosen, share, path)


@cache
def say_untried() -> None:
    """Say why nothing is tried where another optimizer is wrapped; once in a process."""
    log.info(
        "another optimizer is wrapped already, so this one keeps DDP's buckets: close() that one first, or pass "
        "search_cost="
    )
