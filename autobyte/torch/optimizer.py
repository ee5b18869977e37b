"""`DistributedOptimizer`: the two changed lines in a training script."""

import atexit
import contextlib
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.optim import Optimizer

from autobyte.config import Config, Space
from autobyte.errors import InputError
from autobyte.exchange.arguments import AUTO, BYTESCHEDULER, SERVED, check_diagnostics, check_space, rank_0_speaks
from autobyte.exchange.log import show_log
from autobyte.exchange.pacing import pace_of
from autobyte.exchange.planning import begin_with
from autobyte.exchange.tuning.advice import DRIFT
from autobyte.exchange.tuning.callback import Callback, WindowReport
from autobyte.exchange.tuning.metrics import metrics
from autobyte.exchange.tuning.report import Report
from autobyte.exchange.tuning.search import Search, use_kept
from autobyte.internals import is_making_state, is_unscaling, untraced
from autobyte.torch.arguments import HALVES, check, choose_policy, say_untried
from autobyte.torch.exchange.admission import is_off, is_rank_0
from autobyte.torch.exchange.join import Company, is_sharded
from autobyte.torch.exchange.training import Training
from autobyte.torch.groups import free_default_group
from autobyte.torch.listening import Listeners
from autobyte.torch.model.clipping import check_norm
from autobyte.torch.model.compiled import CompiledParts
from autobyte.torch.off import Off
from autobyte.torch.on import On
from autobyte.torch.tracing.tracing import Tracing

log = logging.getLogger("autobyte")

_alive: "weakref.WeakSet[DistributedOptimizer]" = weakref.WeakSet()


class DistributedOptimizer(Optimizer, Joinable):
    """An optimizer whose gradients are averaged over all ranks, in the order in which the next step needs them.

    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> optimizer = ab.DistributedOptimizer(optimizer, model)          # instead of DistributedDataParallel(model)

    The result is DDP's. `step()` returns at once; a layer's parameters are updated when its forward pass is about to
    use them, or when something else reads them. `flush()` completes all updates at once.

    Args:
        optimizer: yours, of any kind. One that is not element-wise updates everything together, in `step()`.
        model: the same on all ranks; rank 0's parameters and buffers are sent to the others.
        policy: how gradients are cut and ordered. `auto` measures what simulation finds fastest beside DDP's buckets,
            at once, and keeps the fastest. None is `auto` with `search_cost=0.01`; beside `config=`, `tuner=`,
            `space=`, `order="leader"` or servers it is `bytescheduler`.
        config: partition and credit; for `bytescheduler` its own by default, small tensors fused. A path is a file
            that `keep` made: rank 0 reads it, and without a tuner its config stays for the whole training.
        tuner: name of the tuner of partition and credit while training goes on, such as `bayesian`; None leaves them.
        space: partitions and credits from which the tuner may choose; by default all that the policy has. Training
            begins with `config`, or with the config in the space that is nearest to the default.
        budget: how many windows of ten steps the tuner has. None is 30 for a tuner that searches once, as `bayesian`
            does, and as long as training lasts for one that adapts, as `twin` does.
        search_cost: the part of the time trained so far that trials of `auto` may cost, gains subtracted: training
            begins with DDP's buckets, and trials wait until they are affordable; 0 tries nothing, infinity waits for
            nothing. None is 0.01 if no policy is named, or 0 if another optimizer is wrapped already; else infinity.
        seed: of the tuner.
        keep: the file for the config that a tuner or `auto` found, for the next training run; None keeps nothing.
            True is `autobyte.toml` if a policy or a tuner is named, else nothing.
        record: a folder in which every measured window is kept, for `autobyte collect --add`; None keeps none.
        engine: `allreduce`, over gloo from host memory; `ps` for parameter servers on the ranks' hosts; `nccl`, an
            all-reduce on a stream of the GPU, for which no thread waits; or `ordered`, the same on streams in host
            memory, which stands for a GPU and is no faster than `allreduce`. `auto` is `nccl` where the group has
            NCCL and all parameters are on one GPU, else `allreduce`. If `auto` is `nccl`, `policy="auto"` measures
            both. No GPU has run `nccl` yet. `kvstore` and `byteps` are for comparison: servers of MXNet and BytePS.
        servers: for `ps`, ranks outside the group that call `ab.serve` instead of training; by default servers run
            beside the workers.
        order: `planned`, all ranks start blocks in a sequence made beforehand; or `leader`, as rank 0 picks them.
        drift: relative change of layer times or rates after which a new plan is made; infinity keeps the first.
        wire_dtype: `bf16` or `fp16` (or torch's names for them) compress gradients on the wire, as DDP's hooks do.
        cross_step: whether updates may wait for the next forward pass.
        accumulation: backward passes per step; `no_sync()` does the same by hand.
        process_group: the ranks; by default all.
        timeout: after which a wait fails, with a message that names rank, step and tensor.
        enabled: False leaves everything to the optimizer; so do AUTOBYTE_DISABLE=1 and a single rank.
        verify_steps: how many steps at the start are compared with a plain all-reduce.
        on_window: called on rank 0 after every window of about ten steps, in the thread that trains, between two
            steps; other ranks do not wait, so it must not call anything collective. One that raises is not called
            again.
        log_every: after so many steps, at the end of a window, rank 0 logs a line with the time of a step, exposed
            communication and overlap; 0 logs none.
        log_to: gets these numbers on rank 0 as often, or after every window if `log_every` is 0. It is a TensorBoard
            `SummaryWriter`, a function of values (a dictionary) and step, or `"wandb"`. Like `on_window`, it must not
            be collective.
        diagnostics: a folder in which each rank leaves a file when communication fails: the last blocks, the tensors
            that have not arrived, and where its threads are. The error names the file. True is a folder of the job in
            the temporary directory; None writes nothing.
        undo: whether a GPU that is ahead of the network keeps copies for `recover()`, on the engine `nccl`: of
            parameters and optimizer state, for two steps. Other engines need none of these, and can always recover.
        pacing: for `ps`, how fast the kernel sends on each connection: `mocc:throughput=0.8,latency=0.1,loss=0.1`,
            weights that `autobyte.congestion` serves, or `rate:1Gbit`; by default the kernel decides.

    Raises:
        InputError: something here cannot be used, or a gradient is sparse.
        CommunicationError: ranks differ in their models, or do not hear each other.
    """

    _step_supports_amp_scaling = False  # GradScaler would leave its scale with the wrapper, not with the user's

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        *,
        policy: str | None = None,
        config: Config | Path | str | None = None,
        tuner: str | None = None,
        space: Space | None = None,
        budget: int | None = None,
        search_cost: float | None = None,
        seed: int = 0,
        keep: bool | os.PathLike[str] | str | None = True,
        record: Path | str | None = None,
        engine: str = AUTO,
        servers: Sequence[int] | None = None,
        order: str = "planned",
        drift: float = DRIFT,
        wire_dtype: str | torch.dtype | None = None,
        cross_step: bool = True,
        accumulation: int = 1,
        process_group: dist.ProcessGroup | None = None,
        timeout: timedelta = timedelta(seconds=120),
        enabled: bool = True,
        verify_steps: int = 0,
        on_window: Callable[[WindowReport], object] | None = None,
        log_every: int = 0,
        log_to: object = None,
        diagnostics: Path | str | bool | None = True,
        undo: bool = False,
        pacing: str | None = None,
    ) -> None:
        Joinable.__init__(self)
        with rank_0_speaks():
            if isinstance(optimizer, DistributedOptimizer):
                raise InputError("the optimizer is wrapped already: wrap it once")
            named, policy = policy, BYTESCHEDULER if policy is None else policy
            check(
                optimizer, model, policy=policy, config=config, tuner=tuner, budget=budget, drift=drift,
                timeout=timeout,
            )  # fmt: skip
            if on_window is not None and not callable(on_window):
                raise InputError(f"on_window must be a function of one WindowReport, got {on_window!r}")
            functions = metrics(every=log_every, target=log_to)
            check_diagnostics(diagnostics)
            check_space(space, tuner=tuner, policy=policy, config=config)
            pace = None if pacing is None else pace_of(pacing, engine=engine)
            others = [each.training for each in _alive if each.training is not None]
            choice = choose_policy(
                named, search_cost, keep, scheduled=any(each is not None for each in (config, tuner, space)),
                engine=engine, order=order, alone=not others,
            )  # fmt: skip
        if on_window is not None:
            functions["on_window="] = on_window
        self._optimizer = optimizer
        self._model = model
        self._group = process_group
        self._mode: On | Off | Tracing = Off(optimizer, self._tell_joined, None)
        self._over = False  # closed
        if is_rank_0(process_group):
            show_log()
        if is_off(process_group, enabled=enabled):
            return
        if any(each.has_any_of(optimizer) for each in others):
            raise InputError("parameters of this optimizer are wrapped already: close() that wrapper first")
        if search_cost is None and not choice.share and is_rank_0(process_group):
            say_untried()
        size = dist.get_world_size(process_group)
        listeners = Listeners(self)
        begin = begin_with(choice.first, workers=size, servers=engine in SERVED, space=space)
        given = config if isinstance(config, Config) else None
        file = None if config is None or given is not None else Path(str(config))
        connect = partial(
            Training, optimizer, model, config=given or begin, engine=engine,
            wire_dtype=HALVES.get(wire_dtype, wire_dtype), accumulation=accumulation, group=process_group,
            timeout=timeout, order=order, servers=servers, listener=listeners,
            average=getattr(model, "autobyte_average", True), diagnostics=diagnostics, pace=pace,
        )  # fmt: skip
        search = partial(Search, tuner=tuner, space=space, budget=budget, seed=seed)
        search = partial(search, keep=choice.keep, share=choice.share)
        self._mode = On(
            optimizer, model, connect=connect,
            chooser=f"{choice}; tuner {tuner}" + (f"; config of {file}" if file is not None else ""),
            config_file=partial(use_kept, path=file, policy=policy, tuner=tuner, space=space) if file else None,
            search=search if tuner is not None or choice.policy == AUTO else None, listeners=listeners, drift=drift,
            record=record, cross_step=cross_step, verify_steps=verify_steps,
            callback=Callback(functions) if functions else None, undo=undo,
        )  # fmt: skip
        self._made_in = os.getpid()
        _alive.add(self)

    @property
    def training(self) -> Training | None:
        """The model's communication; None where AutoByte is off, and after `close()`."""
        return self._mode.training

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The user's own groups: schedulers change them in place."""
        if is_unscaling():  # else averages that arrive later would have the scale still in them
            return self._mode.groups_to_unscale()
        return self._optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The user's own state, after all updates.

        Raises:
            CommunicationError: averages that an update needs do not arrive.
        """
        self._mode.flush()
        return self._optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The user's own defaults."""
        return self._optimizer.defaults

    @untraced
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters, at once or when their layers are called.

        Args:
            closure: evaluates the model again and returns the loss; its gradients are averaged each time.
        """
        if is_making_state():
            self.flush()
            return self._optimizer.step(closure)  # of this rank alone, and no step of the training
        return self._mode.step(closure)

    @untraced
    def synchronize(self) -> None:
        """Wait for all averages: to clip gradients, to unscale them, or to look at them before `step()`."""
        self._mode.synchronize()

    @untraced
    def flush(self) -> None:
        """Complete every update that is due: afterwards parameters are what `step()` made of them. Not collective."""
        self._mode.flush()

    def broadcast_buffers(self) -> None:
        """Send rank 0's buffers, such as batch norm's statistics, to all ranks. Collective."""
        self._mode.broadcast_buffers()

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes within the block accumulate, and send nothing."""
        return self._mode.no_sync()

    @untraced
    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, *, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Clip the gradients of all parameters by their norm, between `backward()` and `step()`. Collective.

        It does what `torch.nn.utils.clip_grad_norm_` does after DDP's averaging. Half of the traffic still crosses
        the step: the norm is known as soon as each rank or server has summed its share of the gradients. The averages
        travel, and are clipped, while the next forward pass goes on. The first call waits for all averages. A
        gradient scaler may unscale first: then one pass over the averages does both.

        Args:
            max_norm: to which the norm is brought, if it is larger.
            norm_type: p of the p-norm, above 0; infinity is the largest element.
            error_if_nonfinite: raise if the norm is not finite, and clip nothing.

        Returns:
            the norm before, shape [].

        Raises:
            InputError: an argument is out of range.
            RuntimeError: the norm is not finite, with `error_if_nonfinite`.
            CommunicationError: some ranks clip, others do not, or to another norm. It may be raised when a later
                step is closed, by `state_dict()` or by `close()`.
        """
        limit, kind = check_norm(max_norm, norm_type)
        return self._mode.clip_grad_norm_(limit, kind, error_if_nonfinite=error_if_nonfinite)

    @untraced
    def clip_grad_value_(self, clip_value: float) -> None:
        """Clamp every element of the averages, between `backward()` and `step()`; not collective.

        Args:
            clip_value: the largest magnitude.

        Raises:
            InputError: it is negative, or no number.
        """
        if not float(clip_value) >= 0:
            raise InputError(f"clip_value must not be negative, got {clip_value}")
        self._mode.clip_grad_value_(float(clip_value))

    @untraced
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients; those that travel are cleared after their update."""
        self._mode.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state after all updates, and the config and plan in force."""
        return self._mode.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` gave, here or without AutoByte; a config of another job is ignored."""
        self._mode.load_state_dict(state_dict)

    @property
    def steps(self) -> int:
        """Steps that parameters and optimizer state have taken, those before the checkpoint that was loaded included.

        A step counts when `step()` has returned, and no more if it had to be undone.
        """
        return self._mode.steps

    def recover(self) -> int:
        """Close the wrapper after a failure, and say how many steps parameters and optimizer state have taken.

        If averages of the last step never arrived, that step is undone on all layers: parameters, optimizer state and
        hyper-parameters are those before it. Ranks may differ by one step. Not collective. A learning-rate scheduler
        or a gradient scaler of yours has counted the step that was undone.

        >>> try:
        ...     train(model, optimizer)
        ... except ab.CommunicationError:
        ...     steps = optimizer.recover()
        ...     torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"after{steps}.pt")
        ...     raise

        Returns:
            how many steps they have taken, as `steps` says.

        Raises:
            InputError: an update is refused, because a parameter or a gradient was changed before it.
            CommunicationError: on the engine `nccl`, if averages are missing, without `undo`, or of more steps than
                it reaches: updates do not wait for averages there.
        """
        try:
            return self._mode.recover()
        finally:
            self._turn_off()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse it: ranks agreed on the gradients that travel when the optimizer was wrapped.

        Raises:
            InputError: always, unless AutoByte is off.
        """
        self._mode.add_param_group(param_group)

    def reconfigure(self, config: Config) -> None:
        """Use a config from the next step on. Collective: all ranks call it between the same two steps.

        Raises:
            InputError: the config's policy, or a knob of it, is unknown.
            CommunicationError: ranks differ in the config.
        """
        self._mode.reconfigure(config)

    def report(self) -> Report | None:
        """What was tried, won and spent; None where AutoByte is off."""
        return self._mode.report()

    def trace(self, steps: int = 20, path: Path | str = "trace.json") -> None:
        """Write what the next steps do on all ranks to one file. Collective: call it between the same two steps.

        https://ui.perfetto.dev opens the file, and `autobyte explain` says in words where the time goes. It has the
        forward and backward pass of every layer, waits, updates, and blocks in the queue and on the wire. The last of
        the steps gathers it on rank 0, which writes it, and all ranks wait for that. If a rank is lost, or the
        optimizer is closed before, the file has what rank 0 has noted itself.

        >>> optimizer.trace(steps=20, path="trace.json")

        Args:
            steps: how many.
            path: of the file, on rank 0; one that is there is replaced.

        Raises:
            InputError: fewer than one step, a trace is on, the model is compiled, or the optimizer is closed.
            FileError: the file cannot be written; on every rank.
            CommunicationError: ranks differ in the number of steps.
        """
        if self._over:
            raise InputError("the optimizer is closed, and has nothing to trace: call trace() before close()")
        if isinstance(self._mode, Tracing):
            raise InputError(f"a trace is on ({self._mode.target}): call trace() again when it is written")
        if type(steps) is not int or steps < 1:
            raise InputError(f"a trace has a number of steps, at least 1, got {steps!r}")
        if CompiledParts(self._model).exist():
            raise InputError("the model is compiled, so its layers have no hooks: trace it before torch.compile")
        mode = self._mode
        first = is_rank_0(self._group) if mode.training is None else mode.training.rank == 0

        def over() -> None:
            self._mode = mode

        self._made_in = os.getpid()
        _alive.add(self)  # so that a script which ends before has written what there is
        self._mode = Tracing(mode, self._model, steps=steps, path=Path(path).absolute(), first=first, over=over)

    def close(self) -> None:
        """Complete the last updates, and release hooks, threads and sockets."""
        try:
            self._mode.close()
        finally:
            self._turn_off()
            free_default_group()

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """Say what this rank does once its inputs have ended, within torch's `Join([optimizer])`.

        Args:
            kwargs: `divide_by_initial_world_size`, which must be true: averages are over all ranks.
        """
        if not kwargs.get("divide_by_initial_world_size", True):
            raise InputError("divide_by_initial_world_size=False is not supported: averages are over all ranks")
        if is_sharded(self._optimizer):
            raise InputError(
                "Join cannot follow ZeroRedundancyOptimizer, whose step() all ranks must take: use another"
            )
        control = None if self.training is None else self.training.control
        return Company(control, step=self._accompany, follow=self._follow)

    @property
    def join_device(self) -> torch.device:
        """Where `Join` communicates."""
        return next(self._model.parameters()).device

    @property
    def join_process_group(self) -> Any:
        """The ranks with which `Join` communicates."""
        return self._group or dist.group.WORLD

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self._optimizer!r})"

    def __getattr__(self, name: str) -> Any:
        """Look up on the user's optimizer what torch keeps on every optimizer."""
        return getattr(self.__dict__["_optimizer"], name)

    def _turn_off(self) -> None:
        over, self._over = self._mode, True
        self._mode = Off(
            self._optimizer, self._tell_joined, over.last_report, steps=over.steps, last_state=over.last_state
        )

    def _accompany(self) -> None:
        self._mode.accompany()

    def _follow(self, source: int) -> None:
        self._mode.follow(source)

    def _tell_joined(self) -> bool:
        """Tell ranks whose inputs have ended that a step begins; whether there can be any."""
        return Join.notify_join_context(self) is not None


@atexit.register
def _part_at_exit() -> None:
    """Wait at the end of a script without `close()`: other ranks may still need what this one sends.

    A process that was forked meanwhile, such as a data loader's worker, holds copies, and must leave them alone.
    """
    for optimizer in list(_alive):
        if optimizer._made_in != os.getpid():
            continue
        with contextlib.suppress(Exception):
            optimizer._mode.part()


def report() -> list[Report]:
    """What was tried, won and spent for every wrapped model of this process; rank 0 knows it all."""
    reports = [each for optimizer in _alive if (each := optimizer.report()) is not None]
    if not reports:
        log.warning(
            "nothing to report: no model is wrapped here, or AutoByte is off, as it is on a single rank; start the "
            "script with torchrun"
        )
    return reports
