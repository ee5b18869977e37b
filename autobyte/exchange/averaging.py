"""`Averaging`: what a front end calls, on top of arrays, connection and tuning."""

import atexit
import contextlib
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from autobyte.config import Config, Space
from autobyte.errors import InputError, unknown
from autobyte.exchange.arguments import AUTO, BYTESCHEDULER, SERVED, check_diagnostics, check_policy, check_space
from autobyte.exchange.arrays import Array
from autobyte.exchange.connection import ArrayConnection
from autobyte.exchange.log import show_log
from autobyte.exchange.planning import DEFAULT, begin_with
from autobyte.exchange.spec import ArraySpec
from autobyte.exchange.tuning.advice import DRIFT, Adviser
from autobyte.exchange.tuning.callback import Callback, WindowReport
from autobyte.exchange.tuning.online import Online
from autobyte.exchange.tuning.report import Report, report_on
from autobyte.exchange.tuning.search import Search
from autobyte.scheduler.policies import POLICIES
from autobyte.tuners import TUNERS

_alive: "weakref.WeakSet[Averaging]" = weakref.WeakSet()


@dataclass(frozen=True)
class AveragingSettings:
    """How gradients travel, and what chooses that; as `autobyte.torch.DistributedOptimizer` has them.

    Args:
        policy, config, tuner, space, budget, seed, keep, drift: what chooses; `config` is no file here.
        engine: `allreduce`, `ps`, or one of another package; `auto` is `allreduce`.
        wire_dtype: the dtype in which gradients travel; None is their own.
        timeout: of every wait.
        diagnostics: the folder for what is known of a failure; True is the job's own, None is none.
        on_window: called on rank 0 after every window.

    Raises:
        InputError: one is of the wrong type, unknown, or contradicts another one.
    """

    policy: str = BYTESCHEDULER
    config: Config | None = None
    tuner: str | None = None
    space: Space | None = None
    budget: int | None = None
    seed: int = 0
    keep: Path | str | None = "autobyte.toml"
    engine: str = AUTO
    wire_dtype: str | None = None
    drift: float = DRIFT
    timeout: timedelta = timedelta(seconds=120)
    diagnostics: Path | str | bool | None = True
    on_window: Callable[[WindowReport], object] | None = None

    def __post_init__(self) -> None:
        if self.policy != AUTO and self.policy not in POLICIES:
            raise unknown("policy", self.policy, (AUTO, *POLICIES.names()))
        if self.tuner is not None and self.tuner not in TUNERS:
            raise unknown("tuner", self.tuner, TUNERS.names())
        if self.policy == AUTO and (self.tuner is not None or self.config is not None):
            raise InputError(f"policy='{AUTO}' chooses its own config: leave out tuner= and config=")
        if self.config is not None and not isinstance(self.config, Config):
            raise InputError(f"config must be a Config, got {self.config!r}")
        if self.config is not None:
            check_policy(self.policy, self.config)
        if not isinstance(self.timeout, timedelta):
            raise InputError(f"timeout must be a timedelta, got {self.timeout!r}")
        check_space(self.space, tuner=self.tuner, policy=self.policy, config=self.config)
        check_diagnostics(self.diagnostics)

    def first(self, workers: int) -> Config:
        """The config that training begins with."""
        if self.policy == AUTO:
            return DEFAULT
        return self.config or begin_with(
            self.policy, workers=workers, servers=self.engine in SERVED, space=self.space
        )


class Averaging:
    """Averages the gradients of one model over all ranks, array by array, and tunes how they travel.

    >>> averaging = Averaging("mlp", [ArraySpec("dense/kernel", "dense", (8, 2), "float32")])
    >>> averaging.ready(0, gradient)
    >>> averaging.end()
    >>> averaging.wait(0)

    torch.distributed must be initialised. `ready` and `wait` may come from any thread. `end` comes once per step,
    when every `ready` is over.

    Args:
        name: of the model.
        specs: of the gradients that travel, in the order in which the forward pass uses them.
        settings: how they travel.

    Raises:
        InputError: something cannot be used.
        CommunicationError: ranks differ in their models or settings, or do not hear each other.
    """

    def __init__(self, name: str, specs: Sequence[ArraySpec], settings: AveragingSettings | None = None) -> None:
        settings = settings or AveragingSettings()
        if not dist.is_initialized():
            raise InputError("call torch.distributed.init_process_group() before Averaging")
        if dist.get_rank() == 0:
            show_log()
        self.specs = list(specs)
        self._settings = settings
        self.connection = connection = ArrayConnection(
            name, specs, config=settings.first(dist.get_world_size()), engine=settings.engine,
            wire_dtype=settings.wire_dtype, timeout=settings.timeout, diagnostics=settings.diagnostics,
        )  # fmt: skip
        self._arrays, self._times = connection.exchange, connection.times
        self._last_report: Report | None = None
        self._made_in = os.getpid()
        try:
            connection.control.agree("policy= or tuner=", f"policy {settings.policy}; tuner {settings.tuner}")
            self._default = connection.config
            self._search = self._make_search()
            self._online = self._make_online()
        except BaseException:
            connection.close()
            raise
        _alive.add(self)

    def begin(self, *, alone: bool = False) -> None:
        """The forward pass of a step begins, as far as the front end sees that.

        Args:
            alone: whether all averages that it needs have been waited for. A few such passes show how long one
                computes.
        """
        self._times.begin(alone=alone)

    def loss(self) -> None:
        """The loss of the step is known, as far as the front end sees that."""
        self._times.loss()

    def ready(self, place: int, gradient: Array, *, lent: bool = False) -> None:
        """A gradient is computed: let it travel.

        Args:
            place: its index.
            gradient: the caller's again afterwards, unless it is lent.
            lent: whether it is averaged where it lies, without a copy. It is contiguous, and nobody else touches it
                until `wait` has returned.

        Raises:
            InputError: it has another size than its spec, or cannot be lent: it has another dtype, or gaps.
            CommunicationError: it was handed in already in this step, or averages can no longer be made.
        """
        self._arrays.ready(place, gradient, lent=lent)

    def end(self) -> None:
        """No more gradients come in this step. Those that this rank did not hand in count as zeros.

        Raises:
            CommunicationError: only some ranks had a gradient in the step before, or one is gone.
        """
        self._online.after_step(announced=self._arrays.end())

    def wait(self, place: int) -> Array:
        """An average, when it has arrived, in its shape. That of a lent gradient is the gradient itself.

        Args:
            place: its index.

        Raises:
            CommunicationError: it does not arrive; it names rank, step and tensor.
        """
        return self._arrays.wait(place).reshape(self.specs[place].shape)

    def report(self) -> Report:
        """What was tried, won and spent; rank 0 knows it all."""
        if self._last_report is not None:
            return self._last_report
        tuner = None if self._search is None else self._search.tuner
        return report_on(self.connection, self._online.adviser, tuner=tuner, default=self._default)

    def close(self) -> None:
        """Release the tuner, threads and sockets; a second call does nothing."""
        if self._last_report is not None:
            return
        _alive.discard(self)
        self._last_report = replace(self.report(), over=True)
        try:
            if self._online.adviser is not None:
                self._online.adviser.part()
        finally:
            self.connection.close()

    def _make_search(self) -> Search | None:
        """What searches for a config, with what an earlier training has kept."""
        settings = self._settings
        if settings.tuner is None and settings.policy != AUTO:
            return None
        search = Search(
            self.connection, tuner=settings.tuner, space=settings.space, budget=settings.budget,
            seed=settings.seed, keep=settings.keep,
        )  # fmt: skip
        search.resume()
        return search

    def _make_online(self) -> Online:
        """What measures windows, and switches plans. A connection offers it what PyTorch's `Training` does."""
        training, layers = self.connection, self.connection.layers
        adviser = None
        if self.connection.rank == 0:
            adviser = Adviser(training, layers, self._search, drift=self._settings.drift)
        heard = self._settings.on_window
        callback = None if heard is None else Callback({"on_window=": heard})
        online = Online(training, layers, self._times, adviser, callback=callback)
        self._arrays.announces = online.announces
        return online


@atexit.register
def _part_at_exit() -> None:
    """Wait at the end of a script without `close()`: other ranks may still need what this one sends."""
    for averaging in list(_alive):
        if averaging._made_in == os.getpid():
            with contextlib.suppress(Exception):
                averaging.close()
