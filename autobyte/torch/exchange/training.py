"""What connects one model to its peers: groups, engine, session, exchange, and the plan in force."""

import dataclasses
import hashlib
import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from autobyte.config import Config
from autobyte.errors import InputError, unknown
from autobyte.exchange.arguments import AUTO, SERVED, WIRE, rank_0_speaks
from autobyte.exchange.connect import connect, own_address
from autobyte.exchange.control import CommunicationError, Control, first_line
from autobyte.exchange.diagnostics import Diagnostics
from autobyte.exchange.engines import connector, led
from autobyte.exchange.names import name_for
from autobyte.exchange.pacing import Pace
from autobyte.exchange.planning import DEFAULT, MeasuredPlan, agreed_plan, unmeasured
from autobyte.exchange.progress import Progress
from autobyte.exchange.rollcall import LONG_S
from autobyte.exchange.secret import VARIABLE, mark
from autobyte.exchange.session import Session
from autobyte.internals import own_gloo, restart_fails
from autobyte.job import Cluster, Job
from autobyte.scheduler.engines.allreduce import AllReduce
from autobyte.scheduler.engines.halves import Halves
from autobyte.scheduler.engines.ordered import Ordered
from autobyte.scheduler.engines.server import ParameterServer
from autobyte.scheduler.plan import Plan
from autobyte.torch.exchange.admission import travelling
from autobyte.torch.exchange.exchange import Exchange
from autobyte.torch.exchange.listener import Listener
from autobyte.torch.exchange.lookout import Lookout
from autobyte.torch.exchange.reduction import Reduction
from autobyte.torch.exchange.ways import Way, Ways, resolve, way_of, ways_of

log = logging.getLogger("autobyte")

PLANNED, LEADER = ORDERS = ("planned", "leader")
DDPS_THREADS = 2  # threads of a gloo group that DDP uses


class Training:
    """One model's communication on one rank.

    Args:
        optimizer: its parameters that need gradients are the ones that travel.
        model: holds them.
        config: policy, partition, credit.
        engine: as `DistributedOptimizer` has it; `self.engine` is what `auto` stands for here.
        wire_dtype: what gradients travel as; None as they are.
        accumulation: backward passes per step.
        group: the ranks; None is all.
        timeout: of every wait.
        servers: global ranks of parameter servers that do not train; None is one beside every worker.
        order: `planned`, all ranks start blocks in a sequence made beforehand; `leader`, as rank 0 picks them.
        listener: hears of gradients.
        average: whether sums are divided by the number of ranks.
        diagnostics: the folder for what is known of a failure; True is the job's own, None is none.
        pace: paces the connections of the engine `ps`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        *,
        config: Config | None,
        engine: str,
        wire_dtype: str | None,
        accumulation: int,
        group: dist.ProcessGroup | None,
        timeout: timedelta,
        order: str,
        servers: Sequence[int] | None,
        listener: Listener,
        average: bool = True,
        diagnostics: Path | str | bool | None = None,
        pace: Pace | None = None,
    ) -> None:
        with rank_0_speaks():
            _check_options(engine, wire_dtype=wire_dtype, accumulation=accumulation, order=order)
        self.order, self._timeout, self.pace = order, timeout, pace
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        if self.rank == 0 and restart_fails():
            log.warning(
                "torchrun can restart these ranks, but the next attempt may fail: torch's gloo group will read "
                "addresses that this attempt leaves in the store; set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, and "
                "start torchrun with --standalone or --rdzv-backend c10d"
            )
        self.servers = self.ranks if servers is None else list(servers)
        self.name = name_for(self.ranks)
        self.engine = engine
        self.config = config or DEFAULT
        self.progress = Progress()
        self.before_replan: Callable[[], None] = lambda: None
        self._averages = average
        self._of_buckets: AllReduce | None = None  # once they go by PyTorch's reducer
        known = Diagnostics(diagnostics, rank=self.ranks[self.rank])
        known.include(self._state)
        made = ExitStack()
        try:
            self._connect(
                optimizer, model, made, engine=engine, wire_dtype=wire_dtype, accumulation=accumulation,
                group=group, timeout=timeout, order=order, servers=servers, listener=listener, average=average,
                known=known,
            )  # fmt: skip
        except BaseException as error:
            with suppress(Exception), made:  # whatever it is: what has failed first must be raised
                self._tell_others(error)
            raise

    def _connect(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        made: ExitStack,
        *,
        engine: str,
        wire_dtype: str | None,
        accumulation: int,
        group: dist.ProcessGroup | None,
        timeout: timedelta,
        order: str,
        servers: Sequence[int] | None,
        listener: Listener,
        average: bool,
        known: Diagnostics,
    ) -> None:
        """Agree with the other ranks, and connect to them; `made` lets go of what is there if this fails."""
        self.control = Control(
            self.name,
            rank=self.rank,
            ranks=self.ranks,
            timeout=timeout,
            step=lambda: self.progress.travelling,
            diagnostics=known,
        )
        made.callback(self.control.close, idle=True)
        parameters = self._trained(optimizer, model, group)
        self.ways = (self.engine,) if order == LEADER else ways_of(engine, self.engine)
        engine = self.engine
        given, self.config = self.config, replace(self.config, engine="")
        settings = f"{given}, {given.engine or engine}, {order}, {wire_dtype}, {accumulation} passes a step"
        self._agree("settings", f"{settings}; {VARIABLE} {mark()}")
        broadcast_state(model, self.control)
        if engine == "ps":
            self._agree("servers", str(self.servers))
            if servers is not None and (both := sorted({*servers} & {*self.ranks})):
                raise InputError(
                    f"servers={list(servers)}: ranks {both} train; leave servers= out, or name ranks that do not"
                )
            self.control.rollcall.include(self.servers)
        elif servers is not None:
            raise InputError(f"servers= is for engine='ps', not for '{engine}'")
        cluster = Cluster(self.size, min(self.size, len(self.servers)) if engine in SERVED else 0)
        shape = unmeasured(type(model).__name__, parameters.items())
        self.largest = sum(p.numel() * max(p.element_size(), 2) for p in parameters.values())  # bytes of any payload
        self._cannot_halve = ""  # why there is nothing that moves halves of all-reduces
        self.job = Job(shape, cluster, accumulation=accumulation, wire_dtype=WIRE[wire_dtype] if wire_dtype else None)
        self._order: list[int] | None = None
        plan = self._plan(self.job, self.config, None)
        self._known = [p for group_ in optimizer.param_groups for p in group_["params"]]  # as groups were seen last
        self._members = members = set(self._known)
        scale = 1 / self.size if average else None
        connect_way = partial(way_of, self, parameters, timeout, scale=scale, failed=self._on_failed_copy)
        self._ways = Ways(self.ways, connect_way, tensors=lambda: self.session.plan.job.gradients.names)
        transport, own = self._ways.engine, self._ways.own
        self._engine = own.engine
        made.callback(self._ways.close)
        self.buffers = own.buffers
        self._prepare(plan, own)
        if order == LEADER:
            transport = led(self, transport, timeout)
            made.callback(transport.close)
        rank, rollcall = self.control.global_rank, self.control.rollcall
        self.session: Session = Session(
            plan, transport, rank=rank, timeout=timeout, progress=self.progress, rollcall=rollcall, diagnostics=known
        )
        self._lookout = self._look_out()
        if self._lookout is not None:
            made.callback(self._lookout.close)
        self.exchange = Exchange(
            parameters,
            self.session,
            own.buffers,
            own.mirrors(),
            self.control,
            listener=listener,
            accumulation=accumulation,
            frozen={name: p for name, p in model.named_parameters() if p in members and name not in parameters},
        )
        if given != self.config:
            self.replan(self.job, given, None)

    def _tell_others(self, error: BaseException) -> None:
        """Raise an alarm, so that ranks that wait for this one hear at once that it has failed."""
        control = self.__dict__.get("control")
        if control is not None:
            what = first_line(error) or type(error).__name__
            control.rollcall.alarm(f"rank {control.global_rank}, step 0: could not begin: {what}", patience_s=LONG_S)

    def has_any_of(self, optimizer: Optimizer) -> bool:
        """Whether a parameter of the optimizer travels here."""
        parameters = set(self.exchange.parameters.values())
        return any(parameter in parameters for group in optimizer.param_groups for parameter in group["params"])

    def check_groups(self, optimizer: Optimizer) -> None:
        """Refuse parameters that came to the optimizer after it was wrapped.

        Raises:
            InputError: there are some; their gradients do not travel.
        """
        now = [parameter for group in optimizer.param_groups for parameter in group["params"]]  # hashing takes longer
        if len(now) == len(self._known) and all(map(operator.is_, now, self._known)):
            return
        added = sum(parameter not in self._members for parameter in now)
        if added:
            raise InputError(
                f"{added} parameters were added to the optimizer after it was wrapped, and their gradients do not "
                "travel: close() this wrapper, and wrap the optimizer again"
            )
        self._known = now

    @property
    def reducible(self) -> bool:
        """Whether PyTorch's reducer does with gradients what is done here with DDP's buckets."""
        exchange = self.exchange
        on_host = all(parameter.device.type == "cpu" for parameter in exchange.parameters.values())
        as_they_are = self.job.wire_dtype is None and self.job.accumulation == 1 and self._averages
        return on_host and as_they_are and self.order == PLANNED and isinstance(self._engine, AllReduce)

    def hand_over(self) -> None:
        """Let gradients go by PyTorch's reducer, in buckets as large as the config says, until another plan is used.

        Collective: all ranks call it between the same two steps, when no update is due.
        """
        exchange, engine = self.exchange, self._meet_for_buckets()
        exchange.hand_over(
            lambda begins, completed: Reduction(
                exchange.parameters,
                bucket_bytes=self.config.partition_bytes,
                engine=engine,
                session=self.session,
                control=self.control,
                begins=begins,
                completed=completed,
                muted=lambda: exchange.muted,
            )
        )

    def _meet_for_buckets(self) -> AllReduce:
        """What sums the reducer's buckets: as many threads of gloo's as DDP has, because more cost CPU time."""
        if self._of_buckets is None:
            name, rank, size = f"{self.name}/buckets", self.rank, self.size
            make = partial(own_gloo, name, rank=rank, size=size, timeout=self._timeout, threads=DDPS_THREADS)
            self._of_buckets = AllReduce(self.buffers, self.control.meet(make))
        return self._of_buckets

    def replan(self, job: Job, config: Config, order: Sequence[int] | None) -> None:
        """Use another plan from the next step on. Collective: all ranks call it between the same two steps.

        The plan in force stays where a rank cannot make the connections that the other one needs.

        Args:
            job: its tensors in the order of first use, the same on all ranks.
            config: policy, partition, credit.
            order: of the blocks.
        """
        self.before_replan()
        way = self._ways.reach(config.engine)
        plan = self._plan(job, config, order, messages=isinstance(way.engine, AllReduce | ParameterServer))
        known = bool(self._cannot_halve)
        try:
            self._prepare(plan, way)
        except CommunicationError as error:
            if not self._cannot_halve:
                raise
            if not known:
                log.warning("the config in force stays, because %s cannot be used: %s", config.full_label, error)
            return
        self.job, self.config, self._order = job, config, None if order is None else list(order)
        self.exchange.use(plan, partial(self._ways.take, way))

    def fitting(self, config: Config) -> Config:
        """A config that was found elsewhere, without its engine if gradients cannot travel by that here."""
        known = config.engine in self.ways[1:]
        return config if known else replace(config, engine="")

    def clip(self, kind: float) -> bool:
        """Let the norm of gradients be known before they are in place, from the next step on. Collective.

        Args:
            kind: p of the norm.

        Returns:
            whether another plan is used from now on.
        """
        self.exchange.norm_kind = kind
        if (
            self.job.clips
            or self._cannot_halve
            or not isinstance(self._engine, AllReduce | Ordered | ParameterServer)
        ):
            return False  # what another package's engine can move is not known
        self.replan(replace(self.job, clips=True), self.config, None)
        return self.job.clips

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint keeps: config and plan in force, and what they are for."""
        measured = self.job if self.job.model.compute_s else None
        return MeasuredPlan(self.config, measured, self._order).to_json() | {
            "parameters": self.fingerprint,
            "workers": self.size,
            "engine": self.engine,
            "wire_dtype": self.job.wire_dtype,
            "clips": self.job.clips,
        }

    def fits(self, checkpoint: Mapping[str, Any]) -> bool:
        """Whether config and plan of a checkpoint are of this job; the log says so if not."""
        if checkpoint.keys() == {"steps"}:  # of a training without AutoByte
            return False
        current = self.to_json()
        other = [key for key in ("parameters", "workers") if checkpoint.get(key) != current[key]]
        if other:
            log.info("the checkpoint's config is left aside: its %s differ", " and ".join(other))
            return False
        MeasuredPlan.from_json(checkpoint, self.job)  # whoever loads what cannot be read hears it at once
        return True

    def resume(self, checkpoint: Mapping[str, Any]) -> None:
        """Use config and plan of a checkpoint that fits, the same on all ranks. Collective."""
        current = self.to_json()
        self.job = replace(self.job, clips=self.job.clips or checkpoint.get("clips", False))
        plan = MeasuredPlan.from_json(checkpoint, self.job)
        config = self.fitting(plan.config)
        if plan.job is None or any(checkpoint[key] != current[key] for key in ("engine", "wire_dtype")):
            self.replan(self.job, config, None)
            return
        try:
            self.replan(plan.job, config, plan.order)
        except InputError as error:  # its blocks are cut as another version cuts them
            log.info("the checkpoint's plan is left aside: %s", error)
            self.replan(self.job, config, None)

    def _plan(self, job: Job, config: Config, order: Sequence[int] | None, *, messages: bool = False) -> Plan:
        """A config's plan, the same on all ranks. Collective."""
        plan = agreed_plan(job, config, order, messages=messages)
        if self.order == LEADER:
            plan = plan.with_sequence(None)
        self.control.agree(f"a plan for {config.label}", plan.digest)
        if self.order == LEADER and self.rank:
            return dataclasses.replace(plan, credit_bytes=None)  # the leader's window counts
        return plan

    def _prepare(self, plan: Plan, way: Way) -> None:
        """Connect what moves halves of all-reduces, where a plan has any. Collective.

        Raises:
            CommunicationError: on every rank, if one of them cannot.
        """
        engine = way.engine
        if plan.tiling.gathers is None or not isinstance(engine, AllReduce) or engine.halves is not None:
            return
        if self._cannot_halve:
            raise CommunicationError(self._cannot_halve)
        rank, ranks, connections, problem = self.control.global_rank, self.ranks, {}, ""
        try:  # all look before one of them waits for another
            own_address()
        except InputError as error:
            problem = f"rank {rank}: {error}"
        self._check_all(problem)
        try:  # in half of the time, so that all are back before the others give up
            connections = connect(
                f"{self.name}/halves", rank=rank, workers=ranks, servers=ranks, timeout=self._timeout / 2,
                largest=self.largest,
            )  # fmt: skip
        except CommunicationError as error:
            problem = str(error)
        try:
            self._check_all(problem)
        except CommunicationError:
            for connection in connections.values():
                connection.sock.close()
            raise
        engine.move_halves(Halves(way.buffers, rank=rank, ranks=ranks, connections=connections))

    def _check_all(self, problem: str) -> None:
        """Raise on every rank what keeps one of them from moving halves. Collective."""
        failed = self.control.gather(torch.tensor([bool(problem)], dtype=torch.uint8, device="cpu")).flatten()
        if failed.any():
            self._cannot_halve = self.control.share(problem, source=int(failed.nonzero()[0]))
            raise CommunicationError(self._cannot_halve)

    def close(self) -> None:
        """Let go of hooks, threads and sockets."""
        ended = self.exchange.remove()
        if self._lookout is not None:
            self._lookout.close()
        if self._of_buckets is not None:
            self._of_buckets.close()
        self.control.close(idle=self.session.close(ended=ended))

    def _state(self) -> str:
        progress, engine = self.progress, self.config.engine or self.engine
        return (
            f"step {progress.travelling} travels; {progress.steps} steps were closed, the last one is "
            f"{progress.phase.value}\n"
            f"config: {self.config}\nengine {engine}, order {self.order}, ranks {self.ranks}"
            + (f", servers {self.servers}" if self.engine == "ps" else "")
        )

    def _resolved(self, parameters: Mapping[str, nn.Parameter], group: dist.ProcessGroup | None) -> str:
        """What the engine's name stands for.

        Raises:
            InputError: it cannot be used here.
        """
        if self.order != LEADER:
            return resolve(self.engine, parameters, group)
        if self.engine == "nccl":
            raise InputError(
                f"order='{LEADER}' needs an engine whose blocks end on the host: leave it out with 'nccl'"
            )
        return "allreduce" if self.engine == AUTO else self.engine

    def _look_out(self) -> Lookout | None:
        """What looks after blocks that only a device knows to be over."""
        engine = self._engine
        return Lookout(self.session, engine) if isinstance(engine, Ordered) else None

    def _on_failed_copy(self, error: Exception) -> None:
        self.session.fail(self.session.located(f"a copy from the GPU: {first_line(error)}"))

    def _agree(self, what: str, value: str) -> None:
        """Make sure that all ranks have the same; else servers hear at once that nobody will come."""
        try:
            self.control.agree(what, value)
        except CommunicationError as error:
            self.control.rollcall.alarm(str(error), patience_s=LONG_S)
            raise

    def _trained(
        self, optimizer: Optimizer, model: nn.Module, group: dist.ProcessGroup | None
    ) -> dict[str, nn.Parameter]:
        """What travels, the same on all ranks; one that refuses its model tells the others, who would wait for it."""
        try:
            parameters = travelling(optimizer, model)
            self.engine = self._resolved(parameters, group)
        except InputError as error:
            with suppress(CommunicationError):
                self._agree("a model", f"none that can be trained: {error}")
            raise
        shapes = "; ".join(f"{name} {tuple(p.shape)} {p.dtype}" for name, p in parameters.items())
        self.fingerprint = hashlib.sha256(shapes.encode()).hexdigest()[:16]
        laid = "; ".join(f"{name} {tuple(p.shape)} {p.dtype} stride {p.stride()}" for name, p in parameters.items())
        self._agree("a model", laid)  # gradients travel in the order of memory
        return parameters


def _check_options(engine: str, *, wire_dtype: str | None, accumulation: int, order: str) -> None:
    """Look at what can be wrong without a model.

    Raises:
        InputError: one of them is unknown, or none.
    """
    if engine != AUTO:
        connector(engine)
    if wire_dtype is not None and wire_dtype not in WIRE:
        raise unknown("wire dtype", wire_dtype, WIRE)
    if accumulation < 1:
        raise InputError(f"accumulation must be at least 1, got {accumulation}")
    if order not in ORDERS:
        raise unknown("order", order, ORDERS)


@torch.no_grad()
def broadcast_state(model: nn.Module, control: Control, *, buffers_only: bool = False) -> None:
    """Send the first rank's parameters and buffers to all others. Collective.

    Raises:
        CommunicationError: a rank does not take part within the timeout.
    """
    if not buffers_only:
        control.send_each((f"parameter '{name}'", parameter) for name, parameter in model.named_parameters())
    control.send_each((f"buffer '{name}'", buffer) for name, buffer in model.named_buffers())
