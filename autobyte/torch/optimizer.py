"""`DistributedOptimizer`: the two changed lines in a training script."""

import atexit
import contextlib
import logging
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from autobyte.config import Config, Space
from autobyte.errors import InputError
from autobyte.torch.arguments import AUTO, BYTESCHEDULER, HALVES, check, check_space
from autobyte.torch.exchange.exchange import Exchange
from autobyte.torch.exchange.join import Company
from autobyte.torch.exchange.training import Training, broadcast_state, is_off
from autobyte.torch.exchange.verify import Verification
from autobyte.torch.model.hooks import Hook
from autobyte.torch.model.layers import CalledLayer, find_layers, is_compiled
from autobyte.torch.model.planning import DEFAULT, begin_with
from autobyte.torch.model.times import LayerTimes
from autobyte.torch.model.updates import Updates, can_cross_steps, drop, see_hooks, zero
from autobyte.torch.tuning.advice import DRIFT, Adviser
from autobyte.torch.tuning.online import Online
from autobyte.torch.tuning.recording import Recording
from autobyte.torch.tuning.report import Report, report_on
from autobyte.torch.tuning.search import Search, fingerprint

log = logging.getLogger("autobyte")

_alive: "weakref.WeakSet[DistributedOptimizer]" = weakref.WeakSet()


class DistributedOptimizer(Optimizer, Joinable):
    """An optimizer whose gradients are averaged over all ranks, in the order in which the next step needs them.

    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> optimizer = ab.DistributedOptimizer(optimizer, model)          # instead of DistributedDataParallel(model)

    The result is DDP's. `step()` returns at once; a layer's parameters are updated when its forward pass is about to
    use them. Whoever reads parameters in between, not through `model` or `state_dict()`, calls `flush()` before.

    Args:
        optimizer: the user's, of any kind. One that is not element-wise is stepped as a whole, in `step()`.
        model: the same on all ranks; rank 0's parameters and buffers are sent to the others.
        policy: how gradients are cut and ordered; `auto` measures what simulation finds fastest beside DDP's best
            bucket, and keeps the fastest.
        config: partition and credit; by default ByteScheduler's, small tensors fused.
        tuner: name of what tunes partition and credit while training goes on, `bayesian` say; None leaves them.
        space: partitions and credits from which it may choose; by default all that the policy has. Training begins
            with `config` or with what is next to the default in it.
        budget: of the tuner, in windows of ten steps; None is 30 for one that searches once, as `bayesian` does, and
            as long as training lasts for one that lives on, as `twin` does.
        seed: of the tuner.
        keep: where the config that a tuner or `auto` found is kept, and looked for next time; None keeps nothing.
        record: a folder for every window that is measured, whatever chooses: `autobyte collect --add` learns from it.
        engine: `allreduce`, or `ps` for parameter servers on the ranks' hosts.
        servers: for `ps`, ranks outside the group that call `ab.serve` instead of training; by default the servers
            stand beside the workers.
        order: `planned`, all ranks start blocks in a sequence made beforehand; or `leader`, as rank 0 picks them.
        drift: relative change of layer times or rates after which a new plan is made; infinite keeps the first.
        wire_dtype: `bf16` or `fp16` (or torch's names for them) compress gradients on the wire, as DDP's hooks do.
        cross_step: whether updates may wait for the next forward pass.
        accumulation: backward passes per step; `no_sync()` does the same by hand.
        process_group: the ranks; by default all.
        timeout: after which a wait fails, with a message that names rank, step and tensor.
        enabled: False leaves everything to the optimizer; so do AUTOBYTE_DISABLE=1 and a single rank.
        verify_steps: so many first steps are compared with a plain all-reduce.

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
        policy: str = BYTESCHEDULER,
        config: Config | None = None,
        tuner: str | None = None,
        space: Space | None = None,
        budget: int | None = None,
        seed: int = 0,
        keep: Path | str | None = "autobyte.toml",
        record: Path | str | None = None,
        engine: str = "allreduce",
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
    ) -> None:
        Joinable.__init__(self)
        if isinstance(optimizer, DistributedOptimizer):
            raise InputError("the optimizer is wrapped already: wrap it once")
        check(
            optimizer, model, policy=policy, config=config, tuner=tuner, budget=budget, drift=drift, timeout=timeout
        )
        check_space(space, tuner=tuner, policy=policy, config=config)
        self._optimizer = optimizer
        self._model = model
        self._group = process_group
        self._synchronized = self._joining = False
        self._online: Online | None = None
        self._last_report: Report | None = None  # of a training that is over
        self._handles: list[RemovableHandle] = []
        self.training: Training | None = None
        if is_off(process_group, enabled=enabled):
            return
        self._drift = drift
        for other in _alive:
            if other.training is not None and other.training.has_any_of(optimizer):
                raise InputError("parameters of this optimizer are wrapped already: close() that wrapper first")
        size = dist.get_world_size(process_group)
        begin = DEFAULT if policy == AUTO else begin_with(policy, workers=size, servers=engine == "ps", space=space)
        self.training = Training(
            optimizer,
            model,
            config=config or begin,
            engine=engine,
            wire_dtype=HALVES.get(wire_dtype, wire_dtype),
            accumulation=accumulation,
            group=process_group,
            timeout=timeout,
            order=order,
            servers=servers,
            before=self._on_backward,
            average=getattr(model, "autobyte_average", True),
        )
        self._default = self.training.config
        self._record = record
        self._search = None
        try:
            self.training.control.agree("policy= or tuner=", f"policy {policy}; tuner {tuner}")
            if tuner is not None or policy == AUTO:
                self._search = Search(self.training, tuner=tuner, space=space, budget=budget, seed=seed, keep=keep)
                self._search.resume()
        except BaseException:
            self.training.close()  # else its hooks would stay with the model
            self.training = None
            raise
        _alive.add(self)
        self._verification = Verification(self.training, verify_steps)
        self._updates = Updates(optimizer, self.training.exchange)
        self._cross = cross_step and self._may_cross()
        self._calls: dict[nn.Module, None] = {model: None}
        self._has_called: set[bool] = set()  # the model itself (True), and parts of it
        compiled = any(is_compiled(module) for module in model.modules())  # a hook would have it compiled again
        if not compiled:
            see_hooks()  # somebody may have compiled it, and hand in what is inside
        self._watch = [] if compiled else [m.register_forward_pre_hook(Hook(self._called)) for m in model.modules()]
        self.training.exchange.on_begin = self._tell_joined
        for module in model.modules():  # whose state is read or written: nothing may be due
            self._handles += [
                module.register_state_dict_pre_hook(Hook(lambda *_: self.flush())),  # type: ignore[no-untyped-call]
                module.register_load_state_dict_pre_hook(Hook(lambda *_: self.flush())),  # type: ignore[no-untyped-call]
            ]
        self._handles += [  # whoever kept the optimizer itself may read and write its state, too
            optimizer.register_state_dict_pre_hook(Hook(lambda *_: self.flush())),
            optimizer.register_load_state_dict_pre_hook(Hook(lambda *_: self.flush())),
        ]

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The user's own groups: schedulers change them in place."""
        if sys._getframe(1).f_code is GradScaler._unscale_grads_.__code__:
            self.synchronize()  # else averages that arrive later would have the scale still in them
        return self._optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The user's own state."""
        return self._optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The user's own defaults."""
        return self._optimizer.defaults

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters, at once or when their layers are called.

        Args:
            closure: evaluates the model again and returns the loss; its gradients are averaged each time.
        """
        if self.training is None:
            self._tell_joined()
            return self._optimizer.step(closure)
        exchange = self.training.exchange
        self.training.check_groups(self._optimizer)
        self._updates.settle()  # of a step before without a forward and backward pass since
        if closure is not None:
            exchange.announced()  # nobody switches between two evaluations
            return self._optimizer.step(self._averaged(closure, exchange))
        crossing = self._updates.ready and can_cross_steps(self._optimizer)
        if crossing and not self._synchronized and not self._verification.active:
            exchange.close()
            self._updates.plan()
        else:
            self.synchronize()
            self._optimizer.step()
        exchange.taken = True
        self._synchronized = False
        if self._online is not None and not (self._joining and exchange.joined):
            self._online.after_step()
        return None

    def synchronize(self) -> None:
        """Wait for all averages: to clip gradients, to unscale them, or to look at them before `step()`."""
        self._synchronize()

    def _synchronize(self, *, given_up: bool = False, joined: bool = False) -> None:
        if self.training is None or self._synchronized:
            return
        exchange = self.training.exchange
        self._updates.settle()
        exchange.close(given_up=given_up, joined=joined)
        exchange.wait()
        self._verification.check()
        self._synchronized = True
        if self._watch and self._has_called and exchange.learned:
            self._find_layers()

    def flush(self) -> None:
        """Take every update that is due: afterwards parameters are what `step()` made of them. Not collective."""
        if self.training is not None:
            self._updates.settle()

    def broadcast_buffers(self) -> None:
        """Send rank 0's buffers, such as batch norm's statistics, to all ranks. Collective."""
        if self.training is not None:
            self.flush()
            broadcast_state(self._model, self._group, buffers_only=True)

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes within the block accumulate, and send nothing."""
        return nullcontext() if self.training is None else self.training.exchange.no_sync()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients; those in transit once they are used."""
        if self.training is None:
            self._optimizer.zero_grad(set_to_none)
            return
        clear = drop if set_to_none else zero
        if self.training.exchange.open:  # a backward pass whose step is given up
            self._synchronize(given_up=True)
        self.training.exchange.forget()
        in_transit = self._updates.clear_later(clear)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter not in in_transit:
                    clear(parameter)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, when all updates are taken, and the config and plan in force."""
        self.flush()
        state = self._optimizer.state_dict()
        if self.training is not None:
            state["autobyte"] = self.training.to_json()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what `state_dict` gave, here or without AutoByte; a config of another job is left aside."""
        self.flush()
        self._optimizer.load_state_dict(state_dict)
        if self.training is None or "autobyte" not in state_dict:
            return
        if self.training.resume(state_dict["autobyte"]) and self._online is not None:
            self._online.restart()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Not once the optimizer is wrapped: the gradients that travel are agreed upon by then.

        Raises:
            InputError: always, unless AutoByte is off.
        """
        if self.training is not None:
            raise InputError("add parameter groups before DistributedOptimizer is made")
        self._optimizer.add_param_group(param_group)

    def reconfigure(self, config: Config) -> None:
        """Use a config from the next step on. Collective: all ranks call it between the same two steps.

        Raises:
            InputError: the config's policy, or a knob of it, is unknown.
            CommunicationError: ranks differ in the config.
        """
        if self.training is None:
            return
        self.training.control.agree("a config", str(config))
        if self._online is not None:
            self._online.use(config)
        else:
            self.training.replan(self.training.job, config, None)

    def report(self) -> Report | None:
        """What was tried, won and spent; None where AutoByte is off."""
        if self.training is None:
            return self._last_report
        adviser = self._online.adviser if self._online is not None else None
        tuner = self._search.tuner if self._search is not None else None
        return report_on(self.training, adviser, tuner=tuner, default=self._default)

    def close(self) -> None:
        """Take the last updates, and let go of hooks, threads and sockets."""
        if self.training is None:
            return
        try:
            self.flush()
        finally:
            self._last_report = self.report()
            for handle in (*self._watch, *self._handles):
                handle.remove()
            self._updates.remove()
            try:
                self._part()
            finally:
                self.training = None

    def _part(self) -> None:
        """Let go of the tuner, of threads and sockets."""
        assert self.training is not None
        try:
            if self._online is not None and self._online.adviser is not None:
                self._online.adviser.part()
        finally:
            self.training.close()

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """What a rank does whose inputs have ended, within torch's `Join([optimizer])`.

        Args:
            kwargs: `divide_by_initial_world_size`, which must be true: averages are over all ranks.
        """
        if not kwargs.get("divide_by_initial_world_size", True):
            raise InputError("divide_by_initial_world_size=False is not supported: averages are over all ranks")
        control = None if self.training is None else self.training.control
        return Company(self._model, self._optimizer, control, step=self._accompany, flush=self.flush)

    @property
    def join_device(self) -> torch.device:
        """Where `Join` communicates."""
        return next(self._model.parameters()).device

    @property
    def join_process_group(self) -> Any:
        """With whom."""
        return self._group or dist.group.WORLD

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self._optimizer!r})"

    def __getattr__(self, name: str) -> Any:
        """What torch keeps on every optimizer, from the user's own."""
        return getattr(self.__dict__["_optimizer"], name)

    def _may_cross(self) -> bool:
        """Whether layers can be updated one by one; says so if not."""
        why = None
        if not can_cross_steps(self._optimizer):
            why = f"{type(self._optimizer).__name__} is not known to be element-wise, or has step hooks"
        elif any(is_compiled(module) for module in self._model.modules()):
            why = "the model is compiled"
        if why:
            log.info("updates happen in step(), not layer by layer: %s", why)
        return why is None

    def _called(self, module: nn.Module, _arguments: object) -> None:
        self._calls.setdefault(module)
        self._has_called.add(module is self._model)

    def _find_layers(self) -> None:
        """After the first step: which modules are called, in which order, and whose parameters they need."""
        assert self.training is not None
        for hook in self._watch:
            hook.remove()
        self._watch = []
        if self._cross and True not in self._has_called:
            log.info("updates happen in step(), not layer by layer: parts of the model are called, but not the model")
            self._cross = False  # nobody could say when it reads the parameters of its own
        layers = find_layers(self._model, self._calls, self.training.exchange.parameters)
        if self._cross:
            self._updates.install(layers, self.training.exchange.parameters, self._model)
        if self.training.control.same("; ".join(layer.name for layer in layers)):
            adviser = None
            if self.training.rank == 0:
                adviser = Adviser(self.training, layers, self._search, drift=self._drift, recording=self._recording())
            self._online = Online(self.training, layers, self._measure(layers), adviser)
        else:
            log.warning("ranks call their layers in different orders: nothing is planned or tuned")

    def _recording(self) -> Recording | None:
        if self._record is None or self.training is None:
            return None
        chosen = self._search.tuner if self._search is not None else "none"
        return Recording(self._record, fingerprint(self.training, policy=self._default.policy), tuner=chosen)

    def _measure(self, layers: list[CalledLayer]) -> LayerTimes:
        """Set the hooks that time layers, beside those that are there anyway."""
        assert self.training is not None
        times = self._updates.times = LayerTimes(len(layers), self.join_device)
        places = {name: index for index, layer in enumerate(layers) for name, _ in layer.parameters}
        self.training.exchange.on_gradient = lambda name: times.gradient(places[name])
        if not self._cross:
            for index, layer in enumerate(layers):
                self._handles.append(layer.module.register_forward_pre_hook(Hook(partial(_mark, times, index))))
        self._handles.append(self._model.register_forward_pre_hook(Hook(lambda *_: times.begin()), prepend=True))
        self._handles.append(self._model.register_forward_hook(Hook(lambda *_: times.forward_over())))
        return times

    def _on_backward(self) -> None:
        """The first gradient of a backward pass: what is due is overdue, and earlier averages are history."""
        self._updates.settle()
        self._synchronized = False

    def _tell_joined(self) -> None:
        """A step begins: ranks whose inputs have ended hear of it."""
        self._joining = Join.notify_join_context(self) is not None

    def _accompany(self) -> None:
        """The communication of a step, on a rank without inputs."""
        if self.training is None:
            return
        exchange = self.training.exchange
        exchange.on_begin = lambda: None
        self.flush()
        self.zero_grad()
        self._synchronized = False  # its own last step may have been given up after its averages were there
        self._synchronize(joined=True)
        self._synchronized = False
        exchange.taken = True
        self.zero_grad()
        exchange.on_begin = self._tell_joined  # no window goes on meanwhile: the others may leave out an update

    def _averaged(self, closure: Callable[[], Any], exchange: Exchange) -> Callable[[], Any]:
        def evaluate() -> Any:
            loss = closure()
            self._synchronized = False
            self.synchronize()
            exchange.taken = True
            return loss if self._joining else self._mean(loss)

        return evaluate

    def _mean(self, loss: Any) -> Any:
        """A loss, averaged over all ranks: what an optimizer decides by it, all ranks must decide."""
        if self.training is None or not isinstance(loss, torch.Tensor | float):
            return loss
        rows = self.training.control.gather(torch.tensor([float(loss)], dtype=torch.float64, device="cpu"))
        mean = float(rows.mean())
        return mean if isinstance(loss, float) else torch.full_like(loss.detach(), mean)


def _mark(times: LayerTimes, layer: int, *_: object) -> None:
    times.called(layer, times.now())


@atexit.register
def _part_at_exit() -> None:
    """A script that ends without `close()`: other ranks may still need what this one sends."""
    for optimizer in list(_alive):
        if optimizer.training is not None:
            with contextlib.suppress(Exception):
                optimizer._part()


def report() -> list[Report]:
    """What was tried, won and spent for every wrapped model of this process; rank 0 knows it all."""
    return [made for optimizer in _alive if (made := optimizer.report()) is not None]
