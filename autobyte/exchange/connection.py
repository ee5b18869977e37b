"""What connects the arrays of one model to its peers: what ranks agree on, engine, session, the plan in force."""

import hashlib
import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from autobyte.config import Config
from autobyte.errors import InputError, unknown
from autobyte.exchange.arguments import AUTO, SERVED, WIRE
from autobyte.exchange.arrays import Arrays
from autobyte.exchange.control import CommunicationError, Control, first_line
from autobyte.exchange.diagnostics import Diagnostics
from autobyte.exchange.engines import STREAMS, connector
from autobyte.exchange.names import name_for
from autobyte.exchange.pacing import Pace
from autobyte.exchange.planning import agreed_plan
from autobyte.exchange.progress import Progress
from autobyte.exchange.rollcall import LONG_S
from autobyte.exchange.secret import VARIABLE, mark
from autobyte.exchange.session import Session
from autobyte.exchange.spec import ArrayLayer, ArraySpec, check_specs, layers_of, shape_of
from autobyte.exchange.times import ArrayTimes
from autobyte.job import ITEMSIZE, Cluster, Job
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.plan import Plan

log = logging.getLogger("autobyte")


class ArrayConnection:
    """One model's communication on one rank. Tuning asks the same of it as of `autobyte.torch`'s `Training`.

    Args:
        model: its name.
        specs: of the gradients that travel, in the order in which the forward pass uses them.
        config: policy, partition, credit.
        engine: `allreduce`, `ps`, or one of another package; `auto` is `allreduce`.
        wire_dtype: what gradients travel as; None as they are.
        timeout: of every wait.
        diagnostics: the folder for what is known of a failure; True is the job's own, None is none.

    Raises:
        InputError: something here cannot be used.
        CommunicationError: ranks differ in their models or settings, or do not hear each other.
    """

    def __init__(
        self,
        model: str,
        specs: Sequence[ArraySpec],
        *,
        config: Config,
        engine: str,
        wire_dtype: str | None,
        timeout: timedelta,
        diagnostics: Path | str | bool | None,
    ) -> None:
        self.engine = _usable(engine)
        if wire_dtype is not None and wire_dtype not in WIRE:
            raise unknown("wire dtype", wire_dtype, WIRE)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.ranks = self.servers = list(range(self.size))
        self.name = name_for(self.ranks)
        self.ways = (self.engine,)
        self.pace: Pace | None = None
        self.config = config
        self.progress = Progress()
        known = Diagnostics(diagnostics, rank=self.rank)
        known.include(self._state)
        made = ExitStack()
        try:
            self._connect(model, specs, made, wire_dtype=wire_dtype, timeout=timeout, known=known)
        except BaseException as error:
            with suppress(Exception), made:  # what has failed first must be raised
                self._tell_others(error)
            raise

    def _connect(
        self,
        model: str,
        specs: Sequence[ArraySpec],
        made: ExitStack,
        *,
        wire_dtype: str | None,
        timeout: timedelta,
        known: Diagnostics,
    ) -> None:
        """Agree with the other ranks, and connect to them; `made` lets go of what is there if this fails."""
        self.control = Control(
            self.name, rank=self.rank, ranks=self.ranks, timeout=timeout, step=lambda: self.progress.travelling,
            diagnostics=known,
        )  # fmt: skip
        made.callback(self.control.close, idle=True)
        specs = self._agree_on_model(specs)
        self.control.agree("settings", f"{self.config}, {self.engine}, {wire_dtype}; {VARIABLE} {mark()}")
        cluster = Cluster(self.size, self.size if self.engine in SERVED else 0)
        self.job = Job(shape_of(model, specs), cluster, wire_dtype=WIRE[wire_dtype] if wire_dtype else None)
        self.largest = sum(spec.size * ITEMSIZE[spec.dtype] for spec in specs)  # bytes of any payload
        plan = self._plan(self.job, self.config, None)
        if plan.tiling.gathers is not None:
            raise InputError(
                f"policy '{self.config.policy}' cuts all-reduces into halves, which needs autobyte.torch"
            )
        self.buffers = Buffers(tensors=len(specs), scale=1 / self.size, wire_dtype=self.job.wire_dtype)
        transport = connector(self.engine)(self, timeout)
        made.callback(transport.close)
        self.session = Session(
            plan, transport, rank=self.rank, timeout=timeout, progress=self.progress,
            rollcall=self.control.rollcall, diagnostics=known,
        )  # fmt: skip
        places = {spec.name: torch.zeros(spec.size, dtype=_dtype(spec), device="cpu") for spec in specs}
        layers = layers_of(specs)
        named = list(places.items())
        self.layers = [ArrayLayer(name, [named[place] for place in each]) for name, each in layers.items()]
        self.times = ArrayTimes(layers.values(), clock=time.perf_counter)
        self.exchange = Arrays(
            places, self.session, self.buffers, self.control, times=self.times, clock=time.perf_counter
        )

    def replan(self, job: Job, config: Config, order: Sequence[int] | None) -> None:
        """Use another plan from the next step on. Collective: all ranks call it between the same two steps.

        The plan in force stays where the other one cuts all-reduces into halves, which nothing moves here.

        Args:
            job: its tensors in the order of first use, the same on all ranks.
            config: policy, partition, credit.
            order: of the blocks.
        """
        plan = self._plan(job, config, order)
        if plan.tiling.gathers is not None:
            if self.rank == 0:
                log.info("the config in force stays: %s cuts all-reduces into halves", config.full_label)
            return
        self.job, self.config = job, config
        self.exchange.use(plan)

    def fitting(self, config: Config) -> Config:
        """A config that was found elsewhere, without its engine: gradients keep to one here."""
        return replace(config, engine="")

    def close(self) -> None:
        """Let go of threads and sockets."""
        self.control.close(idle=self.session.close(ended=not self.exchange.open))

    def _plan(self, job: Job, config: Config, order: Sequence[int] | None) -> Plan:
        """A config's plan, the same on all ranks. Collective."""
        plan = agreed_plan(job, config, order)
        self.control.agree(f"a plan for {config.label}", plan.digest)
        return plan

    def _agree_on_model(self, specs: Sequence[ArraySpec]) -> list[ArraySpec]:
        """Make sure that all ranks train the same; one that refuses its model tells the others.

        Returns:
            the gradients, named as rank 0 names them: some frameworks number layers by all that a process has made.
        """
        try:
            check_specs(specs)
        except InputError as error:
            with suppress(CommunicationError):
                self.control.agree("a model", f"none that can be trained: {error}")
            raise
        if not self.control.same("; ".join(f"{spec.shape} {spec.dtype}" for spec in specs)):
            self.control.agree("a model", "; ".join(f"{spec.name} {spec.shape} {spec.dtype}" for spec in specs))
        named = self.control.share([[spec.name, spec.layer] for spec in specs])
        specs = [spec._replace(name=name, layer=layer) for spec, (name, layer) in zip(specs, named, strict=True)]
        # Sorted, because an order may be measured.
        laid = "; ".join(sorted(f"{spec.name} {spec.shape} {spec.dtype}" for spec in specs))
        self.fingerprint = hashlib.sha256(laid.encode()).hexdigest()[:16]
        return specs

    def _tell_others(self, error: BaseException) -> None:
        """Raise an alarm, so that ranks that wait for this one hear at once that it has failed."""
        control = self.__dict__.get("control")
        if control is not None:
            what = first_line(error) or type(error).__name__
            control.rollcall.alarm(f"rank {self.rank}, step 0: could not begin: {what}", patience_s=LONG_S)

    def _state(self) -> str:
        return (
            f"step {self.progress.travelling} travels; {self.progress.steps} steps were closed\n"
            f"config: {self.config}\nengine {self.engine}, ranks {self.ranks}"
        )


def _usable(engine: str) -> str:
    """The engine that a name stands for.

    Raises:
        InputError: there is none, or it moves tensors of PyTorch's on a device.
    """
    if engine == AUTO:
        return "allreduce"
    if engine in STREAMS:
        raise InputError(
            f"engine='{engine}' needs autobyte.torch; 'allreduce' and 'ps' move gradients of any framework"
        )
    connector(engine)
    return engine


def _dtype(spec: ArraySpec) -> torch.dtype:
    found: torch.dtype = getattr(torch, spec.dtype)
    return found
