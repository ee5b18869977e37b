"""What the thread that trains does, moment after moment: noted in hooks while a trace is on, made into spans later.

Hooks note events and nothing else. An event ends one thing and begins another, so spans never overlap, and what
belongs to none of them is idle time.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from torch import nn
from torch.utils.hooks import RemovableHandle

from autobyte.internals import hook_first
from autobyte.torch.model.hooks import Hook
from autobyte.torch.model.marks import Mark, Marks

NONE = -1  # no layer


class EventKind(IntEnum):
    """What has happened."""

    STEP = 0  # a step begins, and the one before is over
    MODEL = 1  # the model is called
    LAYER = 2  # a layer begins to compute
    RETURNED = 3  # the model has returned
    GRADIENT = 4  # a gradient is complete
    WAIT = 5  # a wait for averages is over
    TAKE = 6  # an update begins, perhaps with a wait
    TAKEN = 7  # it is over


#: An event, the layer or the step that it is of, and its mark; of a wait, a list of marks.
Noted = tuple[EventKind, int, Any]


class Activity(NamedTuple):
    """What the thread did for some time.

    Args:
        phase: `forward`, `backward`, `update`, `wait` or `step`.
        layer: place in the names of layers, or -1.
        step: number of the step in which it was.
        start_s, stop_s: by the clock of the marks (s).
    """

    phase: str
    layer: int
    step: int
    start_s: float
    stop_s: float


class TrainingTimeline:
    """Notes what the thread that trains does, from `begin` on until `end`.

    A layer is a module that owns parameters. Its forward time runs from its call, when its parameters are updated, to
    the next layer's; its backward time from the moment when the gradients of the layer after it were complete to the
    moment when its own are. The loss counts to the last layer's backward time, as in `LayerTimes`.

    Args:
        model: the user's.
        marks: of its computing.
    """

    def __init__(self, model: nn.Module, marks: Marks) -> None:
        self._model = model
        self._now = marks.now
        self.events: list[Noted] = []
        self.layers: list[str] = []
        self.handles: list[RemovableHandle] = []

    def begin(self) -> None:
        """Hook into the model."""
        model = self._model
        self.handles.append(model.register_forward_pre_hook(Hook(self._noting(EventKind.MODEL)), prepend=True))
        places: dict[nn.Parameter, int] = {}
        for name, module in model.named_modules():
            owned = list(module.parameters(recurse=False))
            if not owned:
                continue
            note = self._noting(EventKind.LAYER, len(self.layers))
            places |= {parameter: len(self.layers) for parameter in owned if parameter not in places}
            self.handles.append(module.register_forward_pre_hook(Hook(note)))
            self.layers.append(name or type(module).__name__)
        self.handles.append(model.register_forward_hook(Hook(self._noting(EventKind.RETURNED))))
        trained = ((parameter, index) for parameter, index in places.items() if parameter.requires_grad)
        self.handles += [
            hook_first(parameter, self._noting(EventKind.GRADIENT, index)) for parameter, index in trained
        ]

    def end(self) -> None:
        """Take the hooks away."""
        for handle in self.handles:
            handle.remove()

    def step(self, number: int) -> None:
        """A step begins, and the one before is over."""
        self.events.append((EventKind.STEP, number, self._now()))

    def wait(self, marks: list[Mark]) -> None:
        """A wait is over: when computing came to it, and when what it waited for was there."""
        self.events.append((EventKind.WAIT, NONE, marks))

    def take(self) -> None:
        """An update begins; it may wait for averages."""
        self.events.append((EventKind.TAKE, NONE, self._now()))

    def taken(self) -> None:
        """It is over."""
        self.events.append((EventKind.TAKEN, NONE, self._now()))

    def _noting(self, kind: EventKind, index: int = NONE) -> Callable[..., None]:
        append, now = self.events.append, self._now

        def note(*_: object) -> None:
            append((kind, index, now()))

        return note


def marks_in(events: Sequence[Noted]) -> list[Mark]:
    """All marks of events, in their order."""
    flat: list[Mark] = []
    for kind, _, mark in events:
        if kind is EventKind.WAIT:
            flat += mark
        else:
            flat.append(mark)
    return flat


def activities(events: Sequence[Noted], times: Sequence[float]) -> list[Activity]:
    """Make spans of events.

    Args:
        events: of a timeline.
        times: of their marks, as `marks_in` has them (s).
    """
    spans, told = _Spans(), iter(times)
    for kind, index, mark in events:
        spans.read(kind, index, [next(told) for _ in (mark if kind is EventKind.WAIT else (mark,))])
    return spans.found


class _Spans:
    """Reads events in their order, and says what the thread did between them."""

    def __init__(self) -> None:
        self.found: list[Activity] = []
        self._last_s = self._began_s = 0.0  # the last event, and the step
        self._step: int | None = None
        self._now = "", NONE  # phase and layer
        self._outside: list[tuple[str, int]] = []  # what an update interrupts
        self._backward = False  # the model has returned
        self._pending: list[tuple[float, float]] = []  # backward, if a gradient follows
        self._unnamed: list[int] = []  # places of spans whose layer is not known yet

    def read(self, kind: EventKind, index: int, at_s: Sequence[float]) -> None:
        """The next event."""
        now_s = max(at_s[0], self._last_s)
        if kind is EventKind.LAYER:
            if not self._backward:  # else it computes again, for the backward pass
                self._enter(index, now_s)
        elif kind is EventKind.GRADIENT:
            self._complete(index, now_s)
        else:
            self._close(now_s)
            if kind is EventKind.WAIT:
                self._last_s = max(now_s, *at_s[1:])
                self._add("wait", NONE, now_s, self._last_s)
            elif kind is EventKind.TAKE:
                self._outside.append(self._now)
                self._now = "update", NONE
            elif kind is EventKind.TAKEN:
                phase, _ = self._outside.pop() if self._outside else ("", NONE)
                self._now = phase, NONE  # of the layer that is called now
            else:
                self._turn(kind, index, now_s)

    def _turn(self, kind: EventKind, index: int, now_s: float) -> None:
        """A pass or a step begins or ends."""
        self._pending.clear()
        self._backward = kind is EventKind.RETURNED
        self._now = ("forward", NONE) if kind is EventKind.MODEL else ("", NONE)
        if kind is not EventKind.MODEL:
            self._unnamed.clear()
        if kind is EventKind.STEP:
            self._outside.clear()
            if self._step is not None:
                self.found.append(Activity("step", NONE, self._step, self._began_s, now_s))
            self._step, self._began_s = index, now_s

    def _enter(self, layer: int, now_s: float) -> None:
        """A layer is called: waits and updates just before it were for it, and the model's own code was, too."""
        if self._now != ("forward", NONE):
            self._close(now_s)
        self._now = "forward", layer
        for place in self._unnamed:
            self.found[place] = self.found[place]._replace(layer=layer)
        self._unnamed.clear()

    def _complete(self, layer: int, now_s: float) -> None:
        """A gradient is complete: what has gone on since the one before was its layer's backward pass."""
        for start_s, stop_s in (*self._pending, (self._last_s, now_s)):
            self._add("backward", layer, start_s, stop_s)
        self._pending.clear()
        self._last_s, self._now, self._backward = now_s, ("", NONE), True

    def _close(self, now_s: float) -> None:
        """What went on ends here."""
        phase, layer = self._now
        if phase:
            self._add(phase, layer, self._last_s, now_s)
        else:
            self._pending.append((self._last_s, now_s))
        self._last_s = now_s

    def _add(self, phase: str, layer: int, start_s: float, stop_s: float) -> None:
        if self._step is None or stop_s <= start_s:
            return
        before = self.found[-1] if self.found else None
        if before is not None and (before.phase, before.layer, before.stop_s) == (phase, layer, start_s):
            self.found[-1] = before._replace(stop_s=stop_s)
            return
        if layer == NONE:
            self._unnamed.append(len(self.found))
        self.found.append(Activity(phase, layer, self._step, start_s, stop_s))
