"""The gradients of a step: which are complete, which never came, and when they may be used."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.profiler import record_function
from torch.utils.hooks import RemovableHandle

from autobyte.errors import InputError
from autobyte.exchange.control import CommunicationError, Control, first_line
from autobyte.exchange.progress import Phase
from autobyte.exchange.session import Session
from autobyte.internals import backward_pass, is_profiled, is_shared
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.streams import Event
from autobyte.scheduler.plan import Plan
from autobyte.torch.exchange import refusals
from autobyte.torch.exchange.completed import Complete, Completed
from autobyte.torch.exchange.filling import Filling
from autobyte.torch.exchange.flags import StepFlags
from autobyte.torch.exchange.listener import Listener
from autobyte.torch.exchange.mirrors import Mirrors
from autobyte.torch.exchange.norms import norm_of_all
from autobyte.torch.exchange.reduction import Reduction
from autobyte.torch.exchange.tallies import Heard, Tallies
from autobyte.torch.exchange.waits import Waits
from autobyte.torch.exchange.ways import Way
from autobyte.torch.model.marks import marks_of

WAIT = "autobyte: wait for averages"  # in a profiler's trace

#: Steps whose counts are still out when a step is closed. Where averages wait on a device, the thread that trains
#: runs ahead of other ranks' threads, and must not wait for theirs.
OUT, OUT_ON_STREAMS = 1, 3

_OPEN = Phase.OPEN  # a look-up less at every gradient


class Exchange:
    """Hands gradients to the session as backward passes complete them.

    A step begins with the first gradient that is complete, and `close` closes it. A gradient that was accumulated
    under `no_sync` and got no further pass is sent as it is. A gradient that is None counts as zeros; it stays None
    if no rank had one.

    A gradient that is a view lies in a buffer of the user's. PyTorch counts changes for all views of a buffer
    together, and the user may scale it as a whole: such gradients are sent when the step is closed.

    While there is a reduction, gradients go by PyTorch's reducer and not by the session, and no parameter has a hook.

    Args:
        parameters: name and parameter of every gradient that travels.
        session: communicates; its plan is the first one.
        buffers: where the engine finds gradients.
        mirrors: of gradients that are not in host memory.
        control: counts missing gradients.
        listener: hears of the step's gradients.
        accumulation: backward passes per step.
        frozen: parameters that do not travel, because they needed no gradient.
    """

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        session: Session,
        buffers: Buffers,
        mirrors: Mirrors,
        control: Control,
        *,
        listener: Listener,
        accumulation: int,
        frozen: Mapping[str, nn.Parameter] | None = None,
    ) -> None:
        self.parameters = parameters
        self.plan = plan = session.plan
        self.progress = session.progress
        self._listener = listener
        self._session = session
        self._buffers = buffers
        self._mirrors = mirrors
        self._control = control
        self._accumulation = accumulation
        self.completed = Completed(parameters, frozen or {}, self.progress, self._await, listener.dropped)
        self._names, self._travelling = self.completed.names, self.completed.parameters
        self._kinds = [(parameter.device, parameter.dtype) for parameter in self._travelling]
        self.marks = marks_of(buffers.streams, self._kinds[0][0])
        self.waits = Waits(self.marks)
        self._on_gpu = any(device.type == "cuda" for device, _ in self._kinds)
        self._enter: Callable[[], Way] | None = None  # takes another way of gradients, when the next step begins
        self._look_at_copies()
        self._muted = False
        self._completing = threading.RLock()  # autograd has a thread for every device
        self._passes = [0] * len(parameters)
        self._indices = [0] * len(parameters)  # where the plan has each gradient, by place
        self._missing: dict[str, Tensor] = {}
        self._filling = Filling(plan.tiling)
        self._in_buffers: set[int] = set()  # places of gradients that are views, in the step that is open
        self.at_once = False  # the latest step had such gradients: nobody may wait with its updates
        self._ahead = False  # the step was closed ahead of `step()`, and nothing has followed
        self.norm_kind: float | None = None  # p of the norm by which gradients are clipped, from the next step on
        self.out = OUT if buffers.streams is None else OUT_ON_STREAMS  # steps until `heard` has what was said
        self.tallies = Tallies(control, session, out=self.out)
        self._number(plan)
        self.reduction: Reduction | None = None
        self._hooks = self._hook_all()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes within the block accumulate, and send nothing."""
        before, self._muted = self._muted, True
        try:
            yield
        finally:
            self._muted = before

    @property
    def muted(self) -> bool:
        """Whether backward passes accumulate, and send nothing."""
        return self._muted

    def hand_over(self, make: Callable[[Callable[[], None], Completed], Reduction]) -> None:
        """Let gradients go by PyTorch's reducer from the next step on; all ranks must between the same two steps.

        Autograd goes on to look for hooks on a parameter that has had one. Removing the hooks does not end this.

        Args:
            make: the reduction, of what it is to call when a bucket is about to travel, and what knows of passes.

        Raises:
            CommunicationError: what is under way does not arrive within the timeout.
        """
        self._session.rest()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._buffers.recut()
        self.reduction = make(self._begin_once, self.completed)

    def take_back(self) -> None:
        """Let gradients go by the session again; all ranks must between the same two steps."""
        if self.reduction is not None:
            self.reduction.close()
            self.reduction = None
            self._hooks = self._hook_all()

    def use(self, plan: Plan, enter: Callable[[], Way] | None = None) -> None:
        """Use another plan from the next step on; all ranks must do so between the same two steps.

        Args:
            plan: from then on.
            enter: called when nothing is under way: takes another way for gradients; None stays on the one in force.
        """
        self.plan, self._enter = plan, enter

    def close(
        self,
        *,
        given_up: bool = False,
        joined: bool = False,
        clips: tuple[float, float] | None = None,
        ahead: bool = False,
    ) -> None:
        """No more gradients come in this step: send those that are left, and zeros for those that never came.

        Args:
            given_up: no update will follow.
            joined: this rank has no inputs left, and takes part with zeros.
            clips: what this rank clips the gradients to, and p of their norm; None if it does not.
            ahead: of `step()`: until `check_untouched` is called, the user may still change gradients.

        Raises:
            InputError: a gradient was changed while it travelled.
            CommunicationError: some ranks took an earlier step, others did not.
        """
        progress = self.progress
        if not progress.open:
            self._begin(joined=joined)
        self.completed.awaited.restore()
        self._send()
        self.check_untouched(ahead=ahead)
        had: Sequence[int] = self._send_rest() if self.reduction is None else self._reduce_rest(self.reduction)
        self.tallies.check()
        left_out = given_up or not (progress.taken or joined)
        announces, note = self._listener.announces(), None if given_up else self._listener.loaded()
        flags = StepFlags(
            had, left_out=left_out, joined=joined, announces=announces, loaded=note is not None, clips=clips
        )
        self.tallies.add(flags, note)
        if self.reduction is None:
            self._mirrors.then(self._session.end)
        else:
            self._session.pass_by()
        self._in_buffers.clear()
        progress.close()
        self.forget()
        if ahead:
            self.completed.awaited.set()

    def _send_rest(self) -> list[bool]:
        """Send gradients that are left, and zeros for those that never came; which of all this rank had."""
        had = [True] * len(self._names)
        for place, parameter in enumerate(self._travelling):
            if (gradient := parameter.grad) is None:
                had[self._indices[place]] = False
                self._missing[self._names[place]] = zeros = torch.zeros_like(parameter)
                self._put([(place, zeros, 0)])
                self._buffers.mark([self._indices[place]])
            elif self._passes[place] < self._accumulation or place in self._in_buffers:
                self._travel([(place, gradient, gradient._version)])
        return had

    def _reduce_rest(self, reduction: Reduction) -> Sequence[int]:
        """Let the reducer have what is left; which gradients this rank had."""
        had = bytearray(b"\x01") * len(self._index)
        self._missing = reduction.complete()
        self._session.check()
        for name in self._missing:
            had[self._index[name]] = False
        reduction.rebuild()
        return had

    @property
    def begun(self) -> bool:
        """Whether a gradient of a step that is not closed has become complete."""
        return self.progress.open or (self.reduction is not None and self.reduction.begun)

    @property
    def halved(self) -> bool:
        """Whether the norm of the step's gradients is known before they are in place."""
        return self.reduction is None and self._session.plan.barrier

    def norm(self, kind: float | None) -> float | None:
        """The norm of all averages of the closed step, none of which need be in place. Collective.

        Where messages tell norms, nothing else is waited for: that ranks clip alike is looked at when a later step
        is closed, or at the end, because counts would come last, behind all-gathers.

        Args:
            kind: p of this rank's norm; None for a rank whose inputs have ended.

        Returns:
            the norm; None if the step began without knowing which.

        Raises:
            CommunicationError: shares do not come within the timeout, or some ranks clip, and others do not.
        """
        shares = self._buffers.shares
        if not shares.of_all:
            self.tallies.clipped_by_all()
        self._session.wait_reduced()
        if shares.over is not None and self._buffers.streams is not None:
            try:
                self._buffers.streams.wait(shares.over)
            except Exception as error:  # of streams in host memory: whatever the network did
                self._session.fail(self._session.located(first_line(error)))
                self._session.check()
        try:
            total = shares.norm() if shares.of_all else norm_of_all(shares, self._control)
        except CommunicationError as error:
            self._session.fail(error, names_silent=True)
            raise
        return total if kind in (None, shares.kind) else None

    @property
    def steps(self) -> int:
        """Steps that were closed."""
        return self.progress.steps

    @property
    def learned(self) -> bool:
        """Whether any rank had a gradient in the last step; the same on all ranks. Waits for all to close it."""
        counts = self.tallies.latest
        return counts is not None and counts.any_gradient

    @property
    def joined(self) -> bool:
        """Whether a rank had no inputs left in the last step; the same on all ranks. Waits for all to close it."""
        counts = self.tallies.latest
        return counts is not None and counts.joined > 0

    def heard(self) -> Heard:
        """What ranks have said in steps before the last, not yet looked at. All ranks get the same, but for notes.

        Nobody waits: `close` has had the counts of these steps.
        """
        if self.reduction is not None:
            self.reduction.end()
        return self.tallies.heard()

    def forget(self) -> None:
        """Count backward passes from zero: the gradients of those so far are being cleared, or on their way."""
        if self.reduction is None:
            self._passes[:] = [0] * len(self._names)  # hooks have this list
        else:
            self.reduction.forget()

    @property
    def whole(self) -> bool:
        """Whether every average of the closed step has arrived, and it is known which gradients no rank had."""
        return self._session.whole and not self._missing and self._buffers.whole

    def whole_later(self) -> Callable[[], bool]:
        """What tells whether every average of the closed step has arrived, when later ones were closed, too."""
        return self._buffers.whole_later() if self._session.whole else lambda: False

    @property
    def ahead(self) -> bool:
        """Whether updates are given to a device that waits for averages, while nobody knows yet if they will come."""
        return self._buffers.streams is not None and self._buffers.streams.ahead

    @property
    def ahead_of_ranks(self) -> bool:
        """Whether the thread that trains must wait for no other rank's, because a device does."""
        return self._buffers.streams is not None

    @property
    def failed(self) -> bool:
        """Whether averages that have not arrived never will."""
        return self._session.failed

    def start_over(self) -> None:
        """This rank loads a checkpoint: it does not matter any more who left out an update before.

        What was announced stays: who has announced something waits until all ranks have looked at it.

        Raises:
            CommunicationError: averages can no longer be made.
        """
        self._session.check()
        self.tallies.start_over()
        self.progress.forgive()

    def arrived(self, names: Iterable[str]) -> bool:
        """Whether gradients are averaged and in `.grad`; nobody waits."""
        return self._have_arrived([self._index[name] for name in names])

    def wait(self, names: Iterable[str] | None = None) -> None:
        """Wait until gradients of the closed step are averaged and in `.grad`; by default all."""
        if not self._missing and (self.reduction is not None or (self.whole and not self._mirrored)):
            return  # closing the step has waited, or there is nothing to wait for
        chosen = self.parameters if names is None else list(names)
        places = [self._index[name] for name in chosen]
        if not self._have_arrived(places):
            self._wait(places)
        if self._mirrored:
            self._mirrors.bring(chosen)
        for name in chosen if self._missing else ():
            zeros = self._missing.get(name)
            if zeros is None:
                continue
            counts = self.tallies.latest
            if counts is not None and counts.having(self._index[name]):
                self.parameters[name].grad = zeros.detach()  # another rank had one
            del self._missing[name]

    def _have_arrived(self, places: list[int]) -> bool:
        return self._session.arrived(places) and self._buffers.arrived(places)

    def _wait(self, places: list[int]) -> None:
        """Let this thread wait for averages, or the model's stream."""
        entered = self.waits.enter()
        with record_function(WAIT) if is_profiled() else nullcontext():
            self._session.wait(places)
            awaited = {event: None for place in places if (event := self._follow(place)) is not None}
        self.waits.leave(entered, list(awaited))

    def _follow(self, place: int) -> Event | None:
        """Let the model's stream wait for an average."""
        try:
            return self._buffers.follow(place)
        except Exception as error:  # of streams in host memory, where this waits: whatever the network did
            self._session.fail_tensor(place, error)
            self._session.check()
            raise

    @property
    def exposed_s(self) -> float:
        """For how long the model's computing has stood still for averages, in all steps as far as is known (s)."""
        return self.waits.total_s

    def left(self) -> None:
        """Wait until all gradients that were sent have left the GPU; nobody waits where there is none.

        Raises:
            CommunicationError: they do not within the timeout.
        """
        if not self._mirrors.settle(self._session.timeout_s):
            self._session.fail(self._session.located("gradients have not left the GPU"))
            self._session.check()

    def has_changed(self) -> bool:
        """Whether averages were changed between a pass and its step, since this was asked last."""
        changed = self.completed.has_changed()
        if self.reduction is not None:
            changed, self.reduction.changed = changed or self.reduction.changed, False
        return changed

    def remove(self) -> bool:
        """Take the hooks away.

        Returns:
            whether the session has heard all there is to hear: no step is open, and no copy from a GPU under way.
        """
        self.completed.awaited.restore()
        for hook in self._hooks:
            hook.remove()
        if self.reduction is not None:
            self.reduction.close()
        settled = self._mirrors.settle(self._session.timeout_s)
        self._mirrors.close()
        self.tallies.clear()
        return settled and not self.progress.open

    def _hook_all(self) -> list[RemovableHandle]:
        self.forget()
        hook = self._hook()
        return [
            parameter.register_post_accumulate_grad_hook(partial(hook, place))  # type: ignore[no-untyped-call]
            for place, parameter in enumerate(self._travelling)
        ]

    def _hook(self) -> Callable[[int, nn.Parameter], None]:
        """What counts backward passes of a gradient; after the last one of the step it is sent when a block is full.

        One function without calls, as far as that goes: it runs for every gradient, and little else does.
        """
        completing, listener, progress = self._completing, self._listener, self.progress
        accumulation, passes, names = self._accumulation, self._passes, self._names
        filling, indices, completed = self._filling, self._indices, self.completed

        def complete(place: int, parameter: nn.Parameter) -> None:
            with completing:
                if progress.phase is not _OPEN:  # else an earlier gradient has
                    listener.backward()
                    progress.outdate()
                if (mark := listener.complete) is not None:
                    mark(place)
                if self._muted:
                    return
                count = passes[place] = passes[place] + 1
                if count != accumulation:
                    if count > accumulation:
                        if not completed.give_up():
                            raise refusals.too_many_passes(names[place], count, accumulation)
                        complete(place, parameter)
                    return
                if progress.phase is not _OPEN:
                    self._begin()
                gradient = parameter.grad
                assert gradient is not None
                if gradient._is_view():
                    self._in_buffers.add(place)
                    self.at_once = True
                    return
                completed.gradients.append((place, gradient, gradient._version))
                if filling.fills(indices[place]) or self._one_by_one:
                    self._send()

        return complete

    def _begin_once(self) -> None:
        """A bucket of the reducer's is about to travel."""
        with self._completing:
            if self.progress.phase is not _OPEN:
                self.progress.outdate()
                self._begin()

    def _begin(self, *, joined: bool = False) -> None:
        if self._ahead:
            raise refusals.after_clipping()
        if self._on_gpu and torch.cuda.is_current_stream_capturing():
            raise refusals.in_a_graph()
        joining = joined or self._listener.begins()
        if self.reduction is None:
            self._begin_session()
        self._missing = {}
        self._in_buffers.clear()
        self.completed.begin()
        self.at_once = False
        self._buffers.shares.measure(self.norm_kind if self.halved else None)
        self.progress.begin(joining=joining)
        if self.reduction is None:
            self.completed.watch()

    def _await(self, parameter: nn.Parameter) -> None:
        """Somebody reads a gradient before the step is closed, or before it is clipped: wait for its average.

        Raises:
            InputError: it does not travel before the step is closed.
            CommunicationError: it does not come within the timeout.
        """
        if backward_pass() >= 0:  # in a hook, gradients are this rank's own, as with DDP
            return
        if self._ahead:
            self._listener.read()
            return
        place = self.completed.place[id(parameter)]
        if left := self.completed.missing() if self.reduction is None else self.reduction.missing():
            raise refusals.read_early(self._names[place], left[0], in_buffer=bool(self._in_buffers))
        if self.reduction is not None:
            return
        with self._completing:
            self._send()
        self._wait([self._indices[place]])
        if self._mirrored:
            self._mirrors.bring([self._names[place]])
        self.completed.note_read(place)

    def _begin_session(self) -> None:
        self.waits.read()
        self.left()
        before = self._session.plan
        self._session.begin(self.plan)
        if self.plan is not before:
            self._buffers.recut()
        if self._enter is not None:
            self._change(self._enter())
            self._enter = None
        if self.plan is not before:
            self._number(self.plan)
        self._filling.begin(self.plan.tiling)

    def _change(self, way: Way) -> None:
        """Let gradients travel in this way from now on."""
        if way.buffers is self._buffers:
            return
        self._mirrors.close()
        self._buffers.release()
        self._buffers, self._mirrors = way.buffers, way.mirrors()
        self._look_at_copies()

    def _look_at_copies(self) -> None:
        """Note which gradients are copied before they travel.

        Those of a GPU are sent one by one: copies leave as early as they can, and each may be of another stream.
        """
        self._mirrored = {place for place, name in enumerate(self._names) if name in self._mirrors}
        self._one_by_one = bool(self._mirrored) or self.ahead

    def _number(self, plan: Plan) -> None:
        """Note where a plan has the gradients."""
        self._index = {name: index for index, name in enumerate(plan.job.gradients.names)}
        self._indices[:] = [self._index[name] for name in self._names]

    def _send(self) -> None:
        """Let the gradients travel that are complete and do not travel yet."""
        self.completed.send(self._travel)
        self.completed.watch()

    def _travel(self, complete: Sequence[Complete]) -> list[Complete]:
        """Let gradients travel; return what does, which is `.grad` from now on."""
        buffers, indices, travelling = self._buffers, self._indices, list(complete)
        tensors = [indices[place] for place, _, _ in complete]
        buffers.forget(tensors)
        for number, each in enumerate(complete if buffers.averages else ()):
            place, gradient, _ = each
            averaged_here = place not in self._mirrored
            if averaged_here and is_shared(gradient) and self.completed.is_untouched(each):  # else refused later
                self._travelling[place].grad = own = gradient.clone()
                travelling[number] = place, own, own._version
        self._put(travelling)
        buffers.mark(tensors)
        if self._mirrored:
            self._mirrors.then(partial(self._session.ready, tensors))
        else:
            self._session.ready(tensors)
        return travelling

    def missing(self, name: str) -> Tensor | None:
        """The zeros that travel for a gradient which this rank does not have."""
        return self._missing.get(name)

    def check_untouched(self, *, ahead: bool = False) -> None:
        """Refuse gradients that were changed while they travel, and those of parameters that were frozen.

        Args:
            ahead: of `step()`: they will be looked at once more.

        Raises:
            InputError: there are some.
        """
        self._ahead = ahead
        self.completed.check(ahead=ahead, norm_known=ahead and self.halved)

    def _put(self, travelling: Iterable[Complete]) -> None:
        """Lay gradients where the engine finds them."""
        kinds, indices, put, leaves = self._kinds, self._indices, self._buffers.put, self._listener.leaves
        for place, gradient, _ in travelling:
            device, dtype = kinds[place]
            if gradient.dtype is not dtype or gradient.device != device:
                raise refusals.of_another_kind(self._names[place], device, dtype, gradient)
            if leaves is not None:
                leaves(self._names[place], gradient)
            try:
                copied = place in self._mirrored
                given = self._mirrors.leave(self._names[place], gradient) if copied else gradient
                put(indices[place], given, marked=False)
            except InputError as error:
                raise InputError(f"parameter '{self._names[place]}': {error}") from None
