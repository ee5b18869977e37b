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
from autobyte.exchange.control import CommunicationError
from autobyte.exchange.tuning.advice import Adviser
from autobyte.exchange.tuning.callback import Callback
from autobyte.exchange.tuning.online import Online
from autobyte.exchange.tuning.recording import Recording
from autobyte.exchange.tuning.report import Report, report_on
from autobyte.exchange.tuning.search import Search, fingerprint
from autobyte.internals import see_hooks
from autobyte.scheduler.policies import check_sizes
from autobyte.torch.clips import Clips
from autobyte.torch.exchange.join import share_everything
from autobyte.torch.exchange.resume import Resumption
from autobyte.torch.exchange.tallies import Heard
from autobyte.torch.exchange.training import Training, broadcast_state
from autobyte.torch.exchange.verify import Verification
from autobyte.torch.handover import Handover
from autobyte.torch.listening import Listeners
from autobyte.torch.model.compiled import CompiledParts
from autobyte.torch.model.elementwise import can_cross_steps, is_elementwise
from autobyte.torch.model.former import Former
from autobyte.torch.model.held import drop, zero
from autobyte.torch.model.hooks import Hook, around_state
from autobyte.torch.model.layers import CalledLayer, find_layers
from autobyte.torch.model.timeline import TrainingTimeline
from autobyte.torch.model.times import LayerTimes
from autobyte.torch.model.updates import Updates
from autobyte.trace import Trace

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
        drift, record, cross_step, verify_steps, undo: as `DistributedOptimizer` has them.
        callback: is told of every window on rank 0.
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
        callback: Callback | None = None,
        undo: bool = False,
    ) -> None:
        self._undo = undo
        self._optimizer = optimizer
        self._model, self._compiled = model, CompiledParts(model)
        self._listeners = listeners
        self._online: Online | None = None
        self._handover: Handover | None = None  # once layers are known
        self.last_report: Report | None = None  # made by `close`
        self.last_state: dict[str, Any] | None = None  # made by `recover`: what a checkpoint keeps of the training
        self._handles: list[RemovableHandle] = []
        self._watch: list[RemovableHandle] = []
        self._marks: list[RemovableHandle] = []  # hooks on the forward pass that take no update
        self._drift = drift
        self.training = connect()
        self._record = record
        self._callback = callback
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
        self._evaluating = False  # the last step had a closure
        self._looked = False  # this rank has read averages that wait to be clipped; others may not have
        self._cleared = False  # gradients, since the model was called last
        self._updates = Updates(optimizer, self.training.exchange, self._on_undone, undo=self._undo)
        self._clips = Clips(
            self.training,
            settle=self._updates.settle,
            synchronize=self.synchronize,
            may_wait=lambda: self._may_wait,
            replanned=self._restart,
        )
        self._resumption = Resumption(self.training.exchange.parameters.values(), optimizer)
        parts = self._updates, self._verification, self._resumption
        listeners.start(*parts, read=self._read_clipped, dropped=self._drop)
        self.training.exchange.completed.bears_changes = self._search is not None and not self._search.asked
        self._hooked = not self._is_compiled()  # hooks would make torch compile it again
        self._cross = cross_step and self._may_cross()
        self._calls: dict[nn.Module, None] = {model: None}
        self._has_called: set[bool] = set()  # True: the model itself was called; False: a part of it
        self._times: LayerTimes | None = None  # once layers are known
        if self._hooked:
            see_hooks()  # the user may have compiled the model, and passed the module inside
            self._watch = [m.register_forward_pre_hook(Hook(self._called)) for m in model.modules()]
            self._watch.append(model.register_forward_pre_hook(Hook(self._unhook_compiled), prepend=True))
        else:
            self._warn_untuned()
        self._handles += around_state(model, optimizer, before=self.flush, loaded=self._resumption.load)

    @property
    def steps(self) -> int:
        """Steps that parameters and optimizer state have taken, when all updates that are due are taken."""
        return self._steps

    def step(self, closure: Callable[[], Any] | None) -> Any:
        """Update the parameters."""
        exchange, progress = self.training.exchange, self.training.progress
        self.training.check_groups(self._optimizer)
        self._updates.settle()  # still due if no forward or backward pass came since the step before
        self._looked = False
        self._evaluating = closure is not None
        if closure is not None:
            loss = self._step_with(closure)
            if not self._is_joined:
                self._take_up(exchange.heard())  # what was announced is dropped
            return loss
        if self._may_wait and not progress.averaged:
            if self._clips.pending:  # which has closed the step
                exchange.check_untouched()
            else:
                exchange.close()
            self._updates.plan(self._clips.take())
        else:
            self.synchronize()
            if self._undo:
                self._updates.keep()
            self._step_at_once()
        self._steps += 1
        progress.take()
        progress.end()
        self._after_step()
        return None

    def _step_at_once(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all layers, from averages that are in place or that the closure waits for."""
        if (timeline := self._updates.timeline) is not None:
            timeline.take()
        loss = self._optimizer.step() if closure is None else self._optimizer.step(closure)
        if timeline is not None:
            timeline.taken()
        return loss

    @property
    def _may_wait(self) -> bool:
        """Whether the updates of this step may wait for the next forward pass."""
        exchange = self.training.exchange
        if not (self._cross and self._updates.ready) or exchange.at_once or exchange.reduction is not None:
            return False
        return not self._verification.active and can_cross_steps(self._optimizer)

    def clip_grad_norm_(self, limit: float, kind: float, *, error_if_nonfinite: bool) -> torch.Tensor:
        """Clip by the norm of all averages, which need not be in place for that."""
        return self._clips.by_norm(limit, kind, error_if_nonfinite=error_if_nonfinite)

    def clip_grad_value_(self, limit: float) -> None:
        """Clip every element, when it is used."""
        self._clips.by_value(limit)

    def groups_to_unscale(self) -> list[dict[str, Any]]:
        """What a gradient scaler is to unscale: all gradients, averaged, or what stands for them."""
        return self._clips.to_unscale() or self._optimizer.param_groups

    def _read_clipped(self) -> None:
        """Clip averages, which somebody reads on this rank alone."""
        self.synchronize()
        self._looked = True

    def _give_up(self) -> None:
        """The user gives up the step of a backward pass. To other ranks, who may take it, it is a step."""
        self._drop()
        if not self._evaluating:
            self._after_step()

    def _drop(self) -> None:
        """Give a step up, and do nothing else: a backward pass may have begun the next."""
        self._looked = False
        self.synchronize(given_up=True)

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
            if self._search is not None:
                self._search.take_up(plan)
            self._restart()

    def _restart(self) -> None:
        """Another plan is used from now on."""
        if self._online is not None:
            self._online.restart()

    @torch.no_grad()
    def _step_with(self, closure: Callable[[], Any]) -> Any:
        """Step with a closure. One that changes parameters between evaluations, as LBFGS does, can be undone."""
        former = Former(self._optimizer)
        if not is_elementwise(self._optimizer):
            former.keep(parameter for group in self._optimizer.param_groups for parameter in group["params"])
        try:
            loss = self._step_at_once(torch.enable_grad()(self._averaged(closure)))
        except CommunicationError:
            former.bring_back()
            raise
        if self._undo:
            self._updates.keep(copy=False)
        self._steps += 1
        return loss

    def synchronize(self, *, given_up: bool = False, joined: bool = False) -> None:
        """Wait for all averages."""
        if self.training.progress.averaged:
            return
        exchange = self.training.exchange
        if not self._clips.pending:
            self._updates.settle()
            exchange.close(given_up=given_up, joined=joined)
            if joined and exchange.tallies.clipped_by_all() and exchange.halved:
                exchange.norm(None)
        self._complete()

    def _complete(self) -> None:
        """Wait for the averages of the closed step, and clip them."""
        exchange = self.training.exchange
        exchange.check_untouched()
        exchange.wait()
        self._verification.check()
        self.training.progress.average()
        if self._clips.pending:
            self._clips.take().apply(exchange.parameters.values())
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
        if self.training.exchange.begun or self._clips.pending or self._looked:
            self._give_up()
        self.training.exchange.forget()
        if self.training.exchange.reduction is not None:  # nothing travels, and no update is due
            self._optimizer.zero_grad(set_to_none)
            return
        self._updates.clear(drop if set_to_none else zero)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, when all updates are taken, and the config and plan in force."""
        self.flush()
        self.training.exchange.tallies.check_last()
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
            if self.training.exchange.begun:
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
        raise InputError("add parameter groups before DistributedOptimizer is made: close() it, add, and wrap again")

    def reconfigure(self, config: Config) -> None:
        """Use a config from the next step on. Collective."""
        check_sizes(config, "the config")
        self.training.control.agree("a config", f"{config}; engine {config.engine or self.training.engine}")
        if self._online is not None:
            self._online.use(config)
        else:
            self.training.replan(self.training.job, config, None)
        if self._search is not None:
            self._search.stay(self.training.config)

    def report(self) -> Report:
        """What was tried, won and spent."""
        adviser = self._online.adviser if self._online is not None else None
        tuner = self._search.tuner if self._search is not None else None
        return report_on(self.training, adviser, tuner=tuner, default=self._default, untuned=self._untuned)

    def record(self, timeline: TrainingTimeline | None, trace: Trace | None) -> None:
        """Tell a timeline of waits and updates, and a trace of blocks, from now on; None tells nobody.

        The time since the last step counts to no window.
        """
        exchange = self.training.exchange
        self._updates.timeline = timeline
        exchange.waits.record = None if timeline is None else timeline.wait
        self.training.session.runner.record(trace)
        self._marks += [] if timeline is None else timeline.handles
        if self._online is not None:
            self._online.skip()

    def close(self) -> None:
        """Take the last updates, and let go of hooks, threads and sockets."""
        try:
            self.flush()
            self.training.exchange.tallies.check_last()
        finally:
            self.last_report = replace(self.report(), over=True)
            for handle in (*self._watch, *self._marks, *self._handles):
                handle.remove()
            if self._handover is not None:
                self._handover.remove()
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
        if exchange.ahead and exchange.failed and not exchange.whole and not self._updates.undo():
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
        return self.training.to_json() | (self._search.to_json() if self._search else {}) | {"steps": self._steps}

    def _on_undone(self, steps: int) -> None:
        self._steps -= steps
        self._told_steps = self._steps
        what = "some averages never arrived, so the last step() is undone on every layer"
        if steps > 1:
            what = f"some averages never arrived, so the last {steps} steps are undone on every layer"
        log.warning("rank %d: %s: parameters and optimizer state have taken %d steps", self._rank, what, self._steps)

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
        """Whether a part of the model that may have hooks now is compiled."""
        handed_over = self._handover is not None and self._handover.active
        return self._compiled.are_whole() if handed_over else self._compiled.exist()

    def _unhook_compiled(self, *call: object) -> None:
        """Take hooks away once the user has compiled a part: `fullgraph=True` refuses them. Looks once a step."""
        again, self._cleared = bool(call) and self._cleared, not call  # a call of the model behind zero_grad()
        if again or not self._hooked or not self._is_compiled():
            return
        self._hooked = self._cross = False
        self._updates.settle()
        self._updates.remove()
        for hook in (*self._watch, *self._marks):
            hook.remove()
        self._watch, self._marks = [], []
        if self._handover is not None:
            self._handover.remove()
        log.info(
            "updates happen in step(), not layer by layer: the model was compiled after the optimizer was wrapped"
        )
        if self._times is None:
            self._warn_untuned()
        else:
            self._times.begin()  # of a pass that is never seen: what was measured before counts on

    def _warn_untuned(self) -> None:
        self._untuned = f"{COMPILED}: pass in the model itself, and call what torch.compile(model) returns"
        if self.training.rank == 0 and (self._callback is not None or (self._search and self._search.asked)):
            log.warning("the model is compiled: nothing is planned or tuned, and on_window= and log_to= hear nothing")

    def _called(self, module: nn.Module, _arguments: object) -> None:
        self._calls.setdefault(module)
        self._has_called.add(module is self._model)

    def _find_layers(self) -> None:
        """After the first step: which modules are called, in which order, and whose parameters they need."""
        while self._watch:
            self._watch.pop().remove()
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
                adviser = Adviser(
                    self.training, layers, self._search, drift=self._drift, recording=self._recording(),
                    reducible=self.training.reducible,
                )  # fmt: skip
            self._times = times
            self._handover = Handover(
                self._model,
                self.training,
                self._updates,
                measure=partial(self._measure, layers, times),
                hooked=lambda: self._hooked and True in self._has_called,
                later=lambda: self._verification.active,
            )
            self._online = Online(
                self.training, layers, times, adviser, callback=self._callback, hand_over=self._handover.hand_over
            )
            self._listeners.tune(self._online)
        else:
            self._marks.append(self._model.register_forward_pre_hook(Hook(self._unhook_compiled), prepend=True))
            self._untuned = "ranks call their layers in different orders: nothing is planned or tuned"
            log.warning("%s", self._untuned)

    def _recording(self) -> Recording | None:
        if self._record is None:
            return None
        chosen = self._search.tuner if self._search is not None else "none"
        return Recording(self._record, fingerprint(self.training, policy=self._default.policy), tuner=chosen)

    def _measure(self, layers: list[CalledLayer], times: LayerTimes) -> list[RemovableHandle]:
        """Set the hooks that time layers, beside those that are there anyway."""
        places = {name: index for index, layer in enumerate(layers) for name, _ in layer.parameters}
        self._listeners.measure(times, [places[name] for name in self.training.exchange.parameters])
        marks = [self._model.register_forward_pre_hook(Hook(self._unhook_compiled), prepend=True)]
        if not self._cross:
            for index, layer in enumerate(layers):
                marks.append(layer.module.register_forward_pre_hook(Hook(partial(_mark, times, index))))
        marks.append(self._model.register_forward_pre_hook(Hook(lambda *_: times.begin()), prepend=True))
        marks.append(self._model.register_forward_hook(Hook(lambda *_: times.forward_over())))
        return marks

    def accompany(self) -> None:
        """Take part in a step of the other ranks, as a rank whose inputs have ended."""
        progress = self.training.progress
        self.flush()
        self.zero_grad()
        progress.outdate()  # the averages of this rank's own last step may still be there, unused
        self.synchronize(joined=True)
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
            if progress.joining:
                return loss
            self.training.exchange.tallies.check(wait=True)  # a rank that raised waits for no mean
            return self.training.control.mean(loss)

        return evaluate


def _mark(times: LayerTimes, layer: int, *_: object) -> None:
    times.enter(layer)
