"""Gradients that go by PyTorch's own reducer, in DDP's buckets: no hook of Python's on any parameter."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.hooks import RemovableHandle

from autobyte.exchange.control import Control, first_line
from autobyte.exchange.rollcall import LONG_S
from autobyte.exchange.session import Session
from autobyte.internals import OwnReducer, after_backward, backward_pass
from autobyte.scheduler.engines.allreduce import AllReduce
from autobyte.scheduler.policies.ddp import FIRST_BUCKET_BYTES
from autobyte.torch.exchange import refusals
from autobyte.torch.exchange.completed import Completed
from autobyte.torch.model.step import tensors_in

Summed = torch.futures.Future[list[Tensor]]

GRACE_S = 1.0  # gloo's own message comes first, and says more


class Reduction:
    """Averages the gradients of a step with the reducer, as `DistributedDataParallel` does.

    The reducer is told to expect gradients when a backward pass comes through what the model has returned. Those of
    which a step has none are given zeros when it is closed, so that every bucket is complete. A bucket that does not
    arrive ends the wait of `backward()`, which no error can leave in words; closing the step says what has happened.

    A loop may change averages before the step, as it may with DDP. While blocks travel it may not, so nothing else
    should be tried then. If a gradient is missing, buckets wait for it and there are no averages yet: refused.

    Args:
        parameters: name and parameter of every gradient that travels.
        bucket_bytes: size of DDP's buckets.
        engine: sums the buckets.
        session: is told of failures.
        control: shares rank 0's buckets.
        begins: is called when a bucket is about to travel.
        completed: hears of a backward pass that leaves buckets without a gradient, and of gradients let go of.
        muted: whether backward passes accumulate and send nothing.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        bucket_bytes: int,
        engine: AllReduce,
        session: Session,
        control: Control,
        begins: Callable[[], None],
        completed: Completed,
        muted: Callable[[], bool],
    ) -> None:
        self._names = list(parameters)
        self._parameters = list(parameters.values())
        self._engine = engine
        self._session = session
        self._begins, self._completed = begins, completed
        self._muted = muted
        self._out: dict[Summed, tuple[list[Tensor], float]] = {}  # buckets under way, and since when (s)
        self._lock = threading.Lock()
        self._reducer = OwnReducer(
            parameters,
            first_bytes=min(FIRST_BUCKET_BYTES, bucket_bytes),
            bucket_bytes=bucket_bytes,
            rank=control.rank,
            size=control.size,
            add=self._add,
            share=partial(control.broadcast, what="DDP's buckets"),
        )
        self._elements = sum(parameter.numel() for parameter in self._parameters)
        self._left = self._elements  # elements of buckets that have not left in this step
        self._expecting = False
        self._rebuilt = False
        self._pass = -1  # that was expected last
        self._noted: list[tuple[nn.Parameter, Tensor | None, int]] = []  # gradients and versions behind the pass
        self.changed = False  # whether averages were changed between a pass and its step
        self._repeated = False  # all gradients of the step are averaged, and another pass may follow
        self._own = {id(parameter) for parameter in self._parameters}
        self._parts: RemovableHandle | None = None  # the hook on calls of modules, from averages to the end of a step
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._look, name="autobyte-reduction", daemon=True)
        self._thread.start()

    def watch(self, outputs: Iterable[Tensor]) -> None:
        """Expect gradients from the moment when a backward pass comes through one of these tensors."""
        for output in outputs:
            if output.grad_fn is not None:  # a parameter that is returned would keep the hook
                output.register_hook(self._enter)  # type: ignore[no-untyped-call]

    @property
    def begun(self) -> bool:
        """Whether a gradient of the step is complete; the step need not have a whole bucket."""
        return self._expecting and (self._left < self._elements or bool(self._reducer.missing()))

    def missing(self) -> list[str]:
        """Names of gradients that buckets wait for."""
        return [self._names[place] for place in self._reducer.missing()] if self._left else []

    def complete(self) -> dict[str, Tensor]:
        """No more gradients come in this step: wait until all are averaged and in `.grad`.

        Returns:
            averages of those that this rank does not have, by name; their `.grad` stays None.

        Raises:
            InputError: gradients were changed that wait for missing ones.
        """
        if not self._expecting:  # no pass has come through what the model returns: what is there travels now
            self._expect()
        missing = self._reducer.missing()
        for parameter, gradient, version in self._noted:
            if parameter.grad is not gradient or (gradient is not None and gradient._version != version):
                if missing and gradient is not None:
                    raise refusals.changed(self._names[self._parameters.index(parameter)], parameter)
                self.changed = True
        places: Sequence[int] = missing or range(len(self._parameters) if self._left else 0)
        had_none: list[int] = []
        while places:  # PyTorch names the first hundred that are missing
            had_none += [place for place in places if self._parameters[place].grad is None]
            _add_zeros([self._parameters[place] for place in places])
            places = self._reducer.missing()
        self.forget()
        if not had_none:
            return {}
        averages = {self._names[place]: self._parameters[place].grad for place in had_none}
        for place in had_none:
            self._parameters[place].grad = None
        return {name: average for name, average in averages.items() if average is not None}

    def rebuild(self) -> None:
        """Have buckets follow the order of gradients, once, after a step that all ranks have closed. Collective."""
        if not self._rebuilt:
            self._rebuilt = self._reducer.rebuild()

    def forget(self) -> None:
        """The gradients so far are being cleared, or are averaged."""
        self._expecting = self._repeated = False
        self._noted = []

    def end(self) -> None:
        """The step is over: modules may be called without being watched."""
        if self._parts is not None:
            self._parts.remove()
            self._parts = None

    def close(self) -> None:
        """Let go of hooks and thread."""
        self.end()
        self._reducer.remove()
        self._closing.set()
        self._thread.join(LONG_S)

    def _enter(self, _gradient: Tensor) -> None:
        """A backward pass comes through what the model has returned, and has not reached a parameter."""
        now = backward_pass()
        if self._muted() or (self._expecting and now == self._pass) or not self._reducer.adds():
            return
        self._pass = now
        after_backward(self._note)
        if self._expecting:
            noted = [(parameter, gradient) for parameter, gradient, _ in self._noted if gradient is not None]
            self._completed.give_up(noted)
        if self._expecting and self._left:
            return
        self._repeated = self._expecting  # all gradients of the step are averaged
        self._session.progress.outdate()
        self._expect()

    def _note(self) -> None:
        """Remember what gradients are behind a backward pass."""
        gradients = [parameter.grad for parameter in self._parameters]
        self._noted = [
            (parameter, gradient, 0 if gradient is None else gradient._version)
            for parameter, gradient in zip(self._parameters, gradients, strict=True)
        ]
        if self._left:
            self._completed.awaited.set()

    def _called(self, module: nn.Module, _arguments: object, outputs: object) -> None:
        """A module is called between averages and the end of their step, maybe a part of the model alone."""
        if torch.is_grad_enabled() and not self._own.isdisjoint(map(id, module._parameters.values())):
            self.watch(tensors_in(outputs))

    def _expect(self) -> None:
        self._expecting, self._left = True, self._elements
        self._reducer.expect()

    def _add(self, bucket: Tensor) -> Summed:
        """Sum a bucket, in the thread of the backward pass."""
        if self._repeated:
            raise refusals.too_many_passes(self._names[0], 2, 1)
        self._begins()
        self._left -= bucket.numel()
        if not self._left and self._parts is None:  # a pass of a part would add to averages, and nobody would know
            self._parts = register_module_forward_hook(self._called)
        summed: Summed = torch.futures.Future()
        with self._lock:
            self._out[summed] = [bucket], time.monotonic()
        if self._session.failed:
            self._settle(summed)
        else:
            self._engine.add(bucket, partial(self._over, summed))
        return summed

    def _over(self, summed: Summed, error: Exception | None) -> None:
        if error is not None:
            self._fail(first_line(error))
        self._settle(summed)

    def _settle(self, summed: Summed) -> None:
        with self._lock:
            tensors, _ = self._out.pop(summed, (None, 0.0))
        if tensors is not None:
            summed.set_result(tensors)

    def _fail(self, why: str) -> None:
        """Let nobody wait any longer: what is in `.grad` is no average, and closing the step says so."""
        self._session.fail_elsewhere(f"a bucket of DDP's has not arrived; {why}")
        with self._lock:
            left = list(self._out)
        for summed in left:
            self._settle(summed)

    def _look(self) -> None:
        """Hear of other ranks' failures while buckets are late: gloo alone may wait until its timeout."""
        listening, limit_s = False, self._session.timeout_s + GRACE_S
        while not self._closing.wait(LONG_S):
            with self._lock:
                since_s = min((since_s for _, since_s in self._out.values()), default=None)
            waited_s = 0.0 if since_s is None else time.monotonic() - since_s
            if waited_s > LONG_S:
                listening = True
                self._session.listen(self._fail, where=lambda: f"{self._session.here}: a bucket has not arrived")
            elif listening:
                listening = False
                self._session.ignore()
            if waited_s > limit_s:
                self._fail(f"not over within {self._session.timeout_s:g} s")


def _add_zeros(parameters: list[nn.Parameter]) -> None:
    """Let a backward pass complete the gradients of these parameters, and add nothing to them."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        torch.autograd.backward(parameters, [torch.zeros_like(parameter) for parameter in parameters])
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
