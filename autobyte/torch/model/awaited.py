"""Gradients that travel: whoever reads one between a backward pass and `step()` waits for its average.

DDP's averages are in `.grad` when `backward()` returns. Here they may still be on their way. From the end of the pass
until the step is closed, the class of every parameter is a subclass made here, which sees reads of `.grad`, as those
of `pending.py` see reads of a parameter whose update is due. A read waits for what was sent, and closes nothing: it
need not happen on every rank.
"""

import copy
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from torch import Tensor, nn

from autobyte.internals import is_zeroing
from autobyte.torch.model.pending import GRADIENT

_disabled = nn.Parameter.__torch_function__  # of a class without operations of its own


def _decides(kind: type) -> bool:
    """Whether a class has operations of its own."""
    own: Any = kind.own if issubclass(kind, Awaiting) else kind
    return own is not Tensor and own.__torch_function__ is not _disabled


class Awaiting:
    """The class that a parameter has, beside its own, while its gradient travels."""

    own: ClassVar[Any]  # the parameter's class
    arrive: ClassVar[Callable[[nn.Parameter], None]]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Wait for the average if `.grad` is read, then do what the parameter's own class does."""
        if func == GRADIENT and not is_zeroing():
            cls.arrive(args[0])
        if cls.own.__torch_function__ is _disabled and any(_decides(kind) for kind in types):
            return NotImplemented  # of another operand's class
        kinds = tuple(kind.own if issubclass(kind, Awaiting) else kind for kind in types)
        return cls.own.__torch_function__(func, kinds, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy has the parameter's own class."""
        return self._as_own(lambda: copy.deepcopy(self, memo))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """What is pickled has the parameter's own class."""
        return self._as_own(lambda: self.__reduce_ex__(protocol))

    def _as_own(self, then: Callable[[], Any]) -> Any:
        awaiting, self.__class__ = type(self), self.own
        try:
            return then()
        finally:
            self.__class__ = awaiting


class Awaited:
    """Sets these classes and takes them back.

    Args:
        parameters: whose gradients travel.
        arrive: waits for a parameter's average.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], arrive: Callable[[nn.Parameter], None]) -> None:
        made: dict[type, type] = {}
        self._places: list[tuple[nn.Parameter, type, type]] = []
        for parameter in parameters:
            kind = type(parameter)
            if kind not in made:
                what = {"own": kind, "arrive": staticmethod(arrive)}
                made[kind] = type(kind.__name__, (Awaiting, kind), what)
            self._places.append((parameter, kind, made[kind]))
        self._set = False

    def set(self) -> None:
        """Gradients travel."""
        for parameter, kind, awaiting in self._places:
            if type(parameter) is kind:
                parameter.__class__ = awaiting
        self._set = True

    def restore(self) -> None:
        """The step is closed: `.grad` is read by what closes it."""
        if self._set:
            self._set = False
            for parameter, kind, awaiting in self._places:
                if type(parameter) is awaiting:
                    parameter.__class__ = kind
