"""Gradients between a backward pass and `step()`: whoever reads or replaces one waits for the averages first.

DDP's averages are in `.grad` when `backward()` returns. Where nobody has asked for anything else, a loop finds them
there as well while blocks travel. From the end of the pass until the step is closed, the class of every parameter is
a subclass that sees whatever touches `.grad`, as `pending.py` sees it later; anything else goes on as it is.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from autobyte.internals import after_backward, backward_pass
from autobyte.torch.model.pending import GRADIENT, REPLACES, Pending, as_they_are


class Travelling(Protocol):
    """Gradients, by blocks or by PyTorch's reducer, which has averages in place when a pass is over."""

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Whose gradients travel."""

    @property
    def reduction(self) -> object | None:
        """PyTorch's reducer; None while blocks travel."""

    @property
    def complete(self) -> bool:
        """Whether this rank has all gradients of the step that is open."""


class Awaiting:
    """The class that a parameter has, beside its own, while its gradient travels."""

    wait: ClassVar[Callable[[], None]]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Wait for averages where `.grad` is touched, then do what was asked."""
        if func == GRADIENT or func in REPLACES:
            cls.wait()
        with as_they_are():
            return func(*args, **(kwargs or {}))


class Awaited:
    """Sets these classes after a backward pass, and takes them back before anybody else looks at gradients.

    Args:
        gradients: that travel.
        synchronize: waits for all averages.
        changed: is called if they are changed then, before the step that uses them.
    """

    def __init__(self, gradients: Travelling, synchronize: Callable[[], None], changed: Callable[[], None]) -> None:
        self._travelling, self._synchronize, self._changed = gradients, synchronize, changed
        methods = Pending.methods(self._let_go) | {"wait": staticmethod(self._wait)}
        subclasses: dict[type, type] = {}
        self._places: list[tuple[nn.Parameter, type, type]] = []
        for parameter in gradients.parameters.values():
            kind = type(parameter)
            if kind not in subclasses:
                subclasses[kind] = type(kind.__name__, (Awaiting, kind), methods)
            self._places.append((parameter, kind, subclasses[kind]))
        self._on = False
        self._seen: list[tuple[Tensor | None, int]] = []  # averages that were waited for, and their versions

    def begin(self) -> None:
        """A step begins: set the classes when the backward pass that calls this is over, if one does."""
        self._seen = []
        if self._travelling.reduction is None and backward_pass() >= 0:
            after_backward(self.set)

    def set(self) -> None:
        """Gradients travel, and are not in use."""
        for parameter, kind, awaiting in self._places:
            if type(parameter) is kind:
                parameter.__class__ = awaiting
        self._on = True

    def restore(self) -> None:
        """Gradients are in use from now on; if averages were waited for, see whether they are what they were."""
        if self._on:
            self._on = False
            for parameter, kind, awaiting in self._places:
                if type(parameter) is awaiting:
                    parameter.__class__ = kind
        elif self._seen:
            before, self._seen = self._seen, []
            now = self._gradients()
            if any(one is not other or v != w for (one, v), (other, w) in zip(before, now, strict=True)):
                self._changed()

    def _wait(self) -> None:
        another = backward_pass() >= 0  # pass of the step
        if not self._on or not (another or self._travelling.complete):
            return  # if a gradient is missing, there are no averages yet, nor are there with the reducer
        self.restore()
        if another:
            after_backward(self.set)
            return
        self._synchronize()
        self._seen = self._gradients()

    def _let_go(self) -> None:
        """A parameter is copied: let it have its own class."""
        self._wait()
        self.restore()

    def _gradients(self) -> list[tuple[Tensor | None, int]]:
        gradients = [parameter.grad for parameter, _, _ in self._places]
        return [(gradient, 0 if gradient is None else gradient._version) for gradient in gradients]
