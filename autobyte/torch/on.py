"""What the wrapper does while AutoByte is on: gradients travel, and layers are updated when they are called."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.internals import has_compiled_part, see_hooks
from autobyte.scheduler.policies import check_sizes
from autobyte.torch.exchange.control import CommunicationError
from autobyte.torch.exchange.exchange import Heard
from autobyte.torch.exchange.join import share_everything
from autobyte.torch.exchange.resume import Resumption
from autobyte.torch.exchange.training import Training, broadcast_state
from autobyte.torch.exchange.verify import Verification
from autobyte.torch.listening import Listeners
from autobyte.torch.model.clipping import Clipping, check_finite
from autobyte.torch.model.former import Former
from autobyte.torch.model.hooks import Hook
from autobyte.torch.model.layers import CalledLayer, find_layers
from autobyte.torch.model.times import LayerTimes
from autobyte.torch.model.updates import ELEMENTWISE, Updates, can_cross_steps, drop, zero
from autobyte.torch.tuning.advice import Adviser
from autobyte.torch.tuning.callback import Callback, WindowReport
from autobyte.torch.tuning.online import Online
from autobyte.torch.tuning.recording import Recording
from autobyte.torch.tuning.report import Report, report_on
from autobyte.torch.tuning.search import Search, fingerprint

log = logging.getLogger("autobyte")

COMPILED = "the model is compiled, so its layers have no hooks, and nothing is measured or tuned"


class On:
    """What `DistributedOptimizer` does while its gradients are averaged. It has the methods of `Off`.

    Args:
        optimizer, model: the user's.
        connect: makes the training, which tells `listeners` of its steps.
        chooser: the policy and tuner that choose the config, as a text that must be the same on all ranks.
        config_file: makes the training use the config in a file; None leaves it.
        search: makes what searches for a config; None if nothing does.
        listeners: is told of the training's steps, and tells the parts that are made here.
        drift, record, cross_step, verify_steps, on_window: as `DistributedOptimizer` has them.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        *,
        connect: Callable[..., Training],
        chooser: str,
        config_file: Callable[[Training], None] | None,
        search: Callable[[Training], Search] | None,
        listeners: Listeners,
        drift: float,
        record: Path | str | None,
        cross_step: bool,
        verify_steps: int,
        on_window: Callable[[WindowReport], object] | None = None,
    ) -> None:
        self._optimizer = optimizer
        self._model = model
        self._listeners = listeners
        self._online: Online | None = None
        self.last_report: Report | None = None  # made by `close`
        self.last_state: dict[str, Any] | None = None  # made by `recover`: what a checkpoint keeps of the training
        self._handles: list[RemovableHandle] = []
        self._watch: list[RemovableHandle] = []
        self._marks: list[RemovableHandle] = []  # hooks on the forward pass that take no update
        self._drift = drift
        self.training = connect()
        self._record = record
        self._callback = None if on_window is None else Callback(on_window)
        self._search = None
        try:
            self.training.control.agree("policy= or tuner=", chooser)
            if config_file is not None:
                config_file(self.training)
            self._default = self.training.config
            if search is not None:
                self._search = search(self.training)
                self._search.resume()
            self._begin(listeners, cross_step=cross_step, verify_steps=verify_steps)
        except BaseException:
            for handle in (*self._watch, *self._marks, *self._handles):
                handle.remove()
            self.training.close()  # else its hooks would stay with the model
            raise

    def _begin(self, listeners: Listeners, *, cross_step: bool, verify_steps: int) -> None:
        """Make the parts that hear of steps, and hook into the model."""
        model, optimizer = self._model, self._optimizer
        self._verification = Verification(self.training, verify_steps)
        self._steps = 0
        self._told_steps = -1  # that a message has said
        self._untuned = ""  # why nothing is planned or tuned
        self._clipping: Clipping | None = None  # of the step whose averages are not in place, until it is taken
        self._evaluating = False  # the last step had a closure
        self._updates = Updates(optimizer, self.training.exchange, self._on_undone)
        self._resumption = Resumption(self.training.exchange.parameters.values(), optimizer)
        listeners.start(self._updates, self._verification, self._resumption)
        self._hooked = not self._is_compiled()  # hooks would make torch compile it again
        self._cross = cross_step and self._may_cross()
        self._calls: dict[nn.Module, None] = {model: None}
        self._has_called: set[bool] = set()  # True: the model itself was called; False: a part of it
        self._times: LayerTimes | None = None  # once layers are known
        if self._hooked:
            see_hooks()  # the user may have compiled the model, and passed the module inside
        else:
            self._warn_untuned()
        if self._hooked:
            self._watch = [m.register_forward_pre_hook(Hook(self._called)) for m in model.modules()]
            self._marks.append(model.register_forward_pre_hook(Hook(self._unhook_compiled), prepend=True))
        for module in model.modules():  # before a module's state is read or written, updates must be taken
            self._handles += [
                module.register_state_dict_pre_hook(Hook(lambda *_: self.flush())),  # type: ignore[no-untyped-call]
                module.register_load_state_dict_pre_hook(Hook(lambda *_: self.flush())),  # type: ignore[no-untyped-call]
                module.register_load_state_dict_post_hook(Hook(lambda *_: self._resumption.load())),  # type: ignore[no-untyped-call]
            ]
        self._handles += [  # the user may read or write the state of the wrapped optimizer itself, too
            optimizer.register_state_dict_pre_hook(Hook(lambda *_: self.flush())),
            optimizer.register_load_state_dict_pre_hook(Hook(lambda *_: self.flush())),
            optimizer.register_load_state_dict_post_hook(Hook(lambda *_: self._resumption.load())),
        ]

    @property
    def steps(self) -> int:
        """Steps that parameters and optimizer state have taken, when all updates that are due are taken."""
        return self._steps

    def step(self, closure: Callable[[], Any] | None) -> Any:
        """Update the parameters."""
        progress = self.training.progress
        self.training.check_groups(self._optimizer)
        self._updates.settle()  # still due if no forward or backward pass came since the step before
        self._evaluating = closure is not None
        if closure is not None:
            loss = self._step_with(closure)
            if not self._is_joined:
                self._take_up(self.training.exchange.heard())  # what was announced is dropped
            return loss
        if self._may_wait and not progress.averaged:
            self._end_backward()
            self._updates.plan(self._clipping or Clipping())
            self._clipping = None
        else:
            self.synchronize()
            self._optimizer.step()
        self._steps += 1
        progress.take()
        progress.end()
        self._after_step()
        return None

    @property
    def _may_wait(self) -> bool:
        """Whether the updates of this step may wait for the next forward pass."""
        crossing = self._cross and self._updates.ready and can_cross_steps(self._optimizer)
        return crossing and not (self.training.exchange.at_once or self._verification.active)

    def _end_backward(self) -> None:
        """No more gradients come in this step; clipping has said so already."""
        if self._clipping is not None:
            self.training.exchange.check_untouched()
        else:
            self.training.exchange.close()

    def clip_grad_norm_(self, limit: float, kind: float, *, error_if_nonfinite: bool) -> torch.Tensor:
        """Clip by the norm of all averages, which need not be in place for that."""
        exchange = self.training.exchange
        if self._clipping is not None:  # by value, or by norm before
            self.synchronize()
        if self.training.progress.averaged:
            return self._clip_averages(limit, kind, error_if_nonfinite)
        self._updates.settle()
        exchange.close(clips=True, ahead=True)
        exchange.clipped_by_all()
        total = exchange.norm(limit=limit, kind=kind) if exchange.halved else None
        if total is None:
            self._complete()
            if not self._is_joined and self.training.clip(kind) and self._online is not None:
                self._online.restart()
            return self._clip_averages(limit, kind, error_if_nonfinite)
        self._clipping = Clipping()
        check_finite(total, kind, error_if_nonfinite=error_if_nonfinite)
        self._clipping = Clipping.by_norm(total, limit)
        if not self._may_wait:
            self._complete()
        return torch.tensor(total, dtype=torch.float32)

    def _clip_averages(self, limit: float, kind: float, error_if_nonfinite: bool) -> torch.Tensor:
        parameters = self.training.exchange.parameters.values()
        return nn.utils.clip_grad_norm_(parameters, limit, kind, error_if_nonfinite)

    def clip_grad_value_(self, limit: float) -> None:
        """Clip every element, when it is used."""
        if self._clipping is not None or self.training.progress.averaged or not self._may_wait:
            self.synchronize()
            nn.utils.clip_grad_value_(self.training.exchange.parameters.values(), limit)
        else:
            self._updates.settle()
            self.training.exchange.close(ahead=True)
            self._clipping = Clipping(limit=limit)

    def _give_up(self) -> None:
        """The user gives up the step of a backward pass. To other ranks, who may take it, it is a step."""
        self._synchronize(given_up=True)
        if not self._evaluating:
            self._after_step()

    def _after_step(self) -> None:
        """Do what all ranks do after a step, each for itself or together."""
        if self._is_joined:
            return
        heard = self.training.exchange.heard()
        if self._online is not None:
            self._online.after_step(announced=heard.announced)
        self._take_up(heard)

    @property
    def _is_joined(self) -> bool:
        """Whether a rank had no inputs left in the last step: it takes part in nothing else that is collective."""
        return self.training.progress.joining and self.training.exchange.joined

    def _take_up(self, heard: Heard) -> None:
        """Compare ranks where some have loaded something, and use the plan that rank 0 has loaded. Collective then.

        Raises:
            CommunicationError: on every rank, if they train different models now.
        """
        if not heard.loaded:
            return
        self.flush()
        control = self.training.control
        plan = self._resumption.agree(heard.note, by_all=heard.loaded == control.size, control=control)
        self._steps = control.share(self._steps)
        if plan is not None:
            self.training.resume(plan)
            if self._online is not None:
                self._online.restart()

    @torch.no_grad()
    def _step_with(self, closure: Callable[[], Any]) -> Any:
        """Step with a closure. One that changes parameters between evaluations, as LBFGS does, can be undone."""
        former = Former(self._optimizer)
        if type(self._optimizer) not in ELEMENTWISE:
            former.keep(parameter for group in self._optimizer.param_groups for parameter in group["params"])
        try:
            loss = self._optimizer.step(torch.enable_grad()(self._averaged(closure)))
        except CommunicationError:
            former.bring_back()
            raise
        self._steps += 1
        return loss

    def synchronize(self) -> None:
        """Wait for all averages."""
        self._synchronize()

    def _synchronize(self, *, given_up: bool = False, joined: bool = False) -> None:
        if self.training.progress.averaged:
            return
        exchange = self.training.exchange
        if self._clipping is None:
            self._updates.settle()
            exchange.close(given_up=given_up, joined=joined)
            if joined and exchange.clipped_by_all() and exchange.halved:
                exchange.norm(limit=None, kind=None)
        self._complete()

    def _complete(self) -> None:
        """Wait for the averages of the closed step, and clip them."""
        exchange = self.training.exchange
        exchange.check_untouched()
        exchange.wait()
        self._verification.check()
        self.training.progress.average()
        clipping, self._clipping = self._clipping, None
        if clipping is not None:
            clipping.apply(exchange.parameters.values())
        if self._watch and self._has_called and exchange.learned and not self._is_joined:
            self._find_layers()

    def flush(self) -> None:
        """Take every update that is due."""
        self._updates.settle()

    def broadcast_buffers(self) -> None:
        """Send rank 0's buffers to all ranks. Collective."""
        self.flush()
        broadcast_state(self._model, self.training.control, buffers_only=True)

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes within the block accumulate, and send nothing."""
        return self.training.exchange.no_sync()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients; those that travel are cleared after their update."""
        self._unhook_compiled()
        clear = drop if set_to_none else zero
        if self.training.progress.open or self._clipping is not None:
            self._give_up()
        self.training.exchange.forget()
        in_transit = self._updates.clear_later(clear)
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter not in in_transit:
                    clear(parameter)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, when all updates are taken, and the config and plan in force."""
        self.flush()
        state = self._optimizer.state_dict()
        state["autobyte"] = self._to_json()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what `state_dict` gave. Its plan is used some steps later; that of another job is left aside.

        Raises:
            CommunicationError: training cannot go on, because averages can no longer be made.
        """
        try:
            self.flush()
            self.training.exchange.start_over()
            if self.training.progress.open:
                self._give_up()
                self.training.exchange.start_over()
        except CommunicationError as error:
            raise CommunicationError(
                f"training cannot go on here: call recover(), and load the checkpoint into a new wrapper ({error})"
            ) from error
        self._optimizer.load_state_dict(state_dict)
        if "autobyte" not in state_dict:
            return
        self._steps = state_dict["autobyte"].get("steps", self._steps)
        if self.training.fits(state_dict["autobyte"]):
            self._resumption.load(state_dict["autobyte"])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse it: the gradients that travel are agreed upon.

        Raises:
            InputError: always.
        """
        raise InputError("add parameter groups before DistributedOptimizer is made")

    def reconfigure(self, config: Config) -> None:
        """Use a config from the next step on. Collective."""
        check_sizes(config, "the config")
        self.training.control.agree("a config", str(config))
        if self._online is not None:
            self._online.use(config)
        else:
            self.training.replan(self.training.job, config, None)

    def report(self) -> Report:
        """What was tried, won and spent."""
        adviser = self._online.adviser if self._online is not None else None
        tuner = self._search.tuner if self._search is not None else None
        return report_on(self.training, adviser, tuner=tuner, default=self._default, untuned=self._untuned)

    def close(self) -> None:
        """Take the last updates, and let go of hooks, threads and sockets."""
        try:
            self.flush()
        finally:
            self.last_report = replace(self.report(), over=True)
            for handle in (*self._watch, *self._marks, *self._handles):
                handle.remove()
            self._updates.remove()
            self.part()

    def recover(self) -> int:
        """Let go of everything after a failure, and say how many steps parameters and optimizer state have taken.

        Raises:
            CommunicationError: they are lost: a GPU has updated them from averages that never arrived.
        """
        exchange = self.training.exchange
        try:
            self.close()
        except CommunicationError as error:
            log.info("recovered from: %s", error)
        if exchange.ahead and exchange.failed and not exchange.whole:
            raise CommunicationError(
                f"rank {self._rank}: parameters cannot be recovered, because the GPU went on when communication "
                "failed, and updated them from averages that never arrived: load a checkpoint"
            )
        self.last_state = self._to_json()
        if self._told_steps != self._steps:
            log.warning("rank %d: parameters and optimizer state have taken %d steps", self._rank, self._steps)
        return self._steps

    def part(self) -> None:
        """Let go of the tuner, of threads and sockets."""
        try:
            if self._online is not None and self._online.adviser is not None:
                self._online.adviser.part()
        finally:
            self.training.close()

    def _to_json(self) -> dict[str, Any]:
        return self.training.to_json() | {"steps": self._steps}

    def _on_undone(self) -> None:
        self._steps -= 1
        self._told_steps = self._steps
        log.warning(
            "rank %d: some averages never arrived, so the last step() is undone on every layer: parameters and "
            "optimizer state have taken %d steps",
            self._rank,
            self._steps,
        )

    @property
    def _rank(self) -> int:
        return self.training.control.global_rank

    def _may_cross(self) -> bool:
        """Whether layers can be updated one by one; says so if not."""
        why = None
        if not can_cross_steps(self._optimizer):
            why = f"{type(self._optimizer).__name__} is not known to be element-wise, or has step hooks"
        elif not self._hooked:
            why = "the model is compiled"
        if why:
            log.info("updates happen in step(), not layer by layer: %s", why)
        return why is None

    def _is_compiled(self) -> bool:
        return has_compiled_part(self._model)

    def _unhook_compiled(self, *_: object) -> None:
        """Take hooks away once the user has compiled a part: `fullgraph=True` refuses them."""
        if not self._hooked or not self._is_compiled():
            return
        self._hooked = self._cross = False
        self._updates.settle()
        self._updates.remove()
        for hook in (*self._watch, *self._marks):
            hook.remove()
        self._watch, self._marks = [], []
        log.info(
            "updates happen in step(), not layer by layer: the model was compiled after the optimizer was wrapped"
        )
        if self._times is None:
            self._warn_untuned()
        else:
            self._times.begin()  # of a pass that is never seen: what was measured before counts on

    def _warn_untuned(self) -> None:
        self._untuned = f"{COMPILED}: pass in the model itself, and call what torch.compile(model) returns"
        if self.training.rank == 0 and (self._search is not None or self._callback is not None):
            log.warning("the model is compiled: nothing is planned or tuned, and on_window= hears nothing")

    def _called(self, module: nn.Module, _arguments: object) -> None:
        self._calls.setdefault(module)
        self._has_called.add(module is self._model)

    def _find_layers(self) -> None:
        """After the first step: which modules are called, in which order, and whose parameters they need."""
        for hook in self._watch:
            hook.remove()
        self._watch = []
        if self._cross and True not in self._has_called:
            log.info("updates happen in step(), not layer by layer: parts of the model are called, but not the model")
            self._cross = False  # it is not known when the model reads parameters of its own
        layers = find_layers(self._model, self._calls, self.training.exchange.parameters)
        same = self.training.control.same("; ".join(layer.name for layer in layers))
        times = LayerTimes(len(layers), self.training.exchange.marks) if same else None
        if self._cross:
            self._updates.install(layers, self.training.exchange.parameters, self._model, times)
        if times is not None:
            adviser = None
            if self.training.rank == 0:
                adviser = Adviser(self.training, layers, self._search, drift=self._drift, recording=self._recording())
            self._times = times
            self._measure(layers, times)
            self._online = Online(self.training, layers, times, adviser, self._callback)
            self._listeners.tune(self._online)
        else:
            self._untuned = "ranks call their layers in different orders: nothing is planned or tuned"
            log.warning("%s", self._untuned)

    def _recording(self) -> Recording | None:
        if self._record is None:
            return None
        chosen = self._search.tuner if self._search is not None else "none"
        return Recording(self._record, fingerprint(self.training, policy=self._default.policy), tuner=chosen)

    def _measure(self, layers: list[CalledLayer], times: LayerTimes) -> None:
        """Set the hooks that time layers, beside those that are there anyway."""
        places = {name: index for index, layer in enumerate(layers) for name, _ in layer.parameters}
        self._listeners.measure(times, places)
        if not self._cross:
            for index, layer in enumerate(layers):
                self._marks.append(layer.module.register_forward_pre_hook(Hook(partial(_mark, times, index))))
        self._marks.append(self._model.register_forward_pre_hook(Hook(lambda *_: times.begin()), prepend=True))
        self._marks.append(self._model.register_forward_hook(Hook(lambda *_: times.forward_over())))

    def accompany(self) -> None:
        """Take part in a step of the other ranks, as a rank whose inputs have ended."""
        progress = self.training.progress
        self.flush()
        self.zero_grad()
        progress.outdate()  # the averages of this rank's own last step may still be there, unused
        self._synchronize(joined=True)
        progress.take()
        progress.end()  # and no window goes on, because the others may leave out an update
        self.zero_grad()

    def follow(self, source: int) -> None:
        """Take over parameters, buffers, optimizer state and count of steps of a rank. Collective."""
        self.flush()
        control = self.training.control
        share_everything(self._model, self._optimizer, control, source=source)
        self._steps = control.share(self._steps, source=source)

    def _averaged(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        progress = self.training.progress

        def evaluate() -> Any:
            progress.outdate()  # before the closure, which may wait for averages itself, to clip them
            loss = closure()
            self.synchronize()
            progress.take()
            return loss if progress.joining else self._mean(loss)

        return evaluate

    def _mean(self, loss: Any) -> Any:
        """Average a loss over all ranks: an optimizer that decides by it must decide the same on all ranks."""
        if not isinstance(loss, torch.Tensor | float):
            return loss
        rows = self.training.control.gather(torch.tensor([float(loss)], dtype=torch.float64, device="cpu"))
        mean = float(rows.mean())
        return mean if isinstance(loss, float) else torch.full_like(loss.detach(), mean)


def _mark(times: LayerTimes, layer: int, *_: object) -> None:
    times.enter(layer)
