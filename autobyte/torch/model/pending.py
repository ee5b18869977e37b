"""A parameter whose update is due: any operation that reads or writes it takes the update first.

`step()` returns before updates are taken. While an update is due, the parameter's class is replaced by a subclass
made here. PyTorch then passes every operation on the parameter to `__torch_function__`, which takes the update,
restores the class, and goes on; so it does where `.grad` is read, which is no average before. One way is not seen: a
transform of `torch.func` that is given a bare parameter, not a model (`vmap` is seen). The forward pre-hook restores
the class, too, so a forward pass pays nothing. PyTorch itself replaces classes like this for parameters whose shape
is not known yet (`torch.nn.parameter`, `UninitializedTensorMixin`).
"""

import copy
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autobyte.internals import is_zeroing


def _getters(*names: str) -> set[Any]:
    return {getattr(Tensor, name).__get__ for name in names}


#: Operations that look at a parameter without reading its values: no update is taken for them.
LOOKS: frozenset[Any] = frozenset(
    _getters("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "grad_fn", "itemsize")
    | _getters("is_cpu", "is_cuda", "is_meta", "is_mps", "is_sparse", "is_nested", "is_quantized", "is_xla", "is_xpu")
    | _getters("_version", "nbytes", "output_nr", "retains_grad")
    | {vars(torch._C.TensorBase)["grad"].__set__, vars(torch._C.TensorBase)["grad"].__delete__}
    | {Tensor.size, Tensor.numel, Tensor.nelement, Tensor.stride, Tensor.storage_offset}
    | {Tensor.element_size, Tensor.is_contiguous, Tensor.is_floating_point, Tensor.is_complex, Tensor.__len__}
    | {Tensor.register_hook, Tensor.register_post_accumulate_grad_hook}
)


#: Reads a gradient, which is no average before the update.
GRADIENT: Any = vars(torch._C.TensorBase)["grad"].__get__


#: Within the block parameters are read as they are, and no update is taken.
as_they_are = torch._C.DisableTorchFunctionSubclass


class Pending:
    """The class that a parameter has, beside its own, while its update is due."""

    take: ClassVar[Callable[[], None]]  # takes the update of the layer that has the parameter

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Take the updates of all parameters that an operation reads or writes, then do it."""
        if func in LOOKS or (func == GRADIENT and is_zeroing()):
            with as_they_are():
                return func(*args, **(kwargs or {}))
        for kind in types:
            if issubclass(kind, Pending):
                kind.take()
        return func(*args, **(kwargs or {}))

    @staticmethod
    def methods(take: Callable[[], None]) -> dict[str, Any]:
        """What a subclass needs. Methods hold `take`: another thread may restore the class once they are found."""

        def deepcopy(self: Any, memo: dict[int, Any]) -> Any:
            take()
            return copy.deepcopy(self, memo)

        def reduce_ex(self: Any, protocol: Any) -> Any:
            take()
            return self.__reduce_ex__(protocol)

        return {"take": staticmethod(take), "__deepcopy__": deepcopy, "__reduce_ex__": reduce_ex}


class PendingClasses:
    """The classes of one layer's parameters while its update is due.

    Args:
        parameters: of the layer.
        take: takes the layer's update, and calls `restore` on the way.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], take: Callable[[], None]) -> None:
        subclasses: dict[type, type] = {}
        self._places: list[tuple[nn.Parameter, type, type]] = []
        for parameter in parameters:
            kind = type(parameter)
            if kind not in subclasses:
                subclasses[kind] = type(kind.__name__, (Pending, kind), Pending.methods(take))
            self._places.append((parameter, kind, subclasses[kind]))

    def set(self) -> None:
        """The update is due."""
        for parameter, _, pending in self._places:
            parameter.__class__ = pending

    def restore(self) -> None:
        """The update is taken now."""
        for parameter, kind, _ in self._places:
            parameter.__class__ = kind


class PendingState:
    """The class that the user's optimizer has, beside its own, while updates are due.

    Whoever reads or replaces `state`, by `state_dict()`, `load_state_dict()` or a copy, too, takes the updates first.
    """

    def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
        """An optimizer that is made anew is of the class itself: a user may reset it with `type(optimizer)(…)`."""
        return cls.__mro__[2](*arguments, **keywords)

    @staticmethod
    def methods(take: Callable[[], None]) -> dict[str, Any]:
        """What a subclass needs; `take` takes all updates, and restores the class. See `Pending.methods`."""

        def read(self: Any) -> Any:
            take()
            return self.state

        def write(self: Any, state: Any) -> None:
            take()
            self.state = state

        def setstate(self: Any, state: dict[str, Any]) -> None:
            take()
            self.__setstate__(state)

        def reduce_ex(self: Any, protocol: Any) -> Any:
            take()
            return self.__reduce_ex__(protocol)

        return {"state": property(read, write), "__setstate__": setstate, "__reduce_ex__": reduce_ex}


class PendingOptimizer:
    """The class of an optimizer while updates are due.

    Args:
        optimizer: the user's, which keeps `state` as PyTorch's do.
        take: takes all updates, and calls `restore` on the way.
    """

    def __init__(self, optimizer: Optimizer, take: Callable[[], None]) -> None:
        self._optimizer, self._kind = optimizer, type(optimizer)
        self._take = take

    @cached_property
    def _pending(self) -> type:
        return type(self._kind.__name__, (PendingState, self._kind), PendingState.methods(self._take))

    def set(self) -> None:
        """Updates are due."""
        self._optimizer.__class__ = self._pending

    def restore(self) -> None:
        """No update is due."""
        if issubclass(type(self._optimizer), PendingState):
            self._optimizer.__class__ = self._kind


def kind_of(optimizer: Optimizer) -> type:
    """An optimizer's own class, though updates are due."""
    kind = type(optimizer)
    return kind.__mro__[2] if issubclass(kind, PendingState) else kind


def state_of(optimizer: Optimizer) -> Any:
    """An optimizer's state as it is, and no update is taken."""
    return vars(optimizer)["state"] if isinstance(optimizer, PendingState) else optimizer.state
