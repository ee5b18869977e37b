"""One training pass of a model on fixed inputs: forward, loss, backward; what goes wrong in it is one line."""

import dataclasses
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from autobyte.errors import InputError

Loss = Callable[[Any], Tensor]


class Step:
    """A pass that can be done again and again.

    >>> step = Step(nn.Linear(4, 2), torch.ones(3, 4))
    >>> step.backward(step.forward())

    Args:
        model: on its device, in the mode to measure.
        inputs: a tuple of positional arguments, a mapping of keyword arguments, or the only argument.
            Tensors in it are copied to `device`.
        loss: makes one number of what the model returns; None is `mean_loss`.
        device: where the model is.
    """

    def __init__(
        self, model: nn.Module, inputs: Any, *, loss: Loss | None = None, device: torch.device | str = "cpu"
    ) -> None:
        self.model = model
        self._loss = loss or mean_loss
        placed = _placed(inputs, torch.device(device))
        self._keywords = dict(placed) if isinstance(placed, Mapping) else {}
        self._arguments = () if isinstance(placed, Mapping) else placed if isinstance(placed, tuple) else (placed,)

    @property
    def inputs(self) -> list[Tensor]:
        """All tensors in the inputs."""
        return list(tensors_in((self._arguments, self._keywords)))

    def clear_gradients(self) -> None:
        """Set every `.grad` to None."""
        self.model.zero_grad(set_to_none=True)

    def forward(self) -> Tensor:
        """Call the model and the loss.

        Raises:
            InputError: either fails (with the module it happened in), or the loss is not one number to derive.
        """
        try:
            outputs = self.model(*self._arguments, **self._keywords)
        except Exception as error:
            place = _innermost_module(self.model, error)
            raise InputError(f"forward failed in layer '{place}': {_one_line(error)}") from error
        with explained("the loss"):
            loss = self._loss(outputs)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise InputError(f"the loss must be a tensor of one number, got {shape}")
        if not loss.requires_grad:
            raise InputError("the loss does not depend on any trainable parameter")
        return loss

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradients of the loss.

        Raises:
            InputError: it fails.
        """
        with explained("backward"):
            torch.autograd.backward(loss)


def mean_loss(outputs: Any) -> Tensor:
    """Add up the means of all floating outputs that can be derived, however they are nested.

    The mean and not the sum: its gradient is a dense tensor like a real loss's, not one number expanded.

    Raises:
        InputError: there are none.
    """
    means = [t.mean() for t in tensors_in(outputs) if t.is_floating_point() and t.requires_grad]
    if not means:
        raise InputError(
            f"the model returned {type(outputs).__name__} without a floating tensor that depends on a trainable "
            "parameter; give a loss"
        )
    return sum(means[1:], start=means[0].to(torch.promote_types(means[0].dtype, torch.float32)))


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn what goes wrong in foreign code within the block into one line that says what failed."""
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{what} failed: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def _innermost_module(model: nn.Module, error: Exception) -> str:
    names = {module: name for name, module in model.named_modules() if name}
    place = type(model).__name__
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module):
            place = names.get(module, place)
    return place


def _placed(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to(device, copy=True).requires_grad_(value.requires_grad)
    if isinstance(value, Mapping):
        return {key: _placed(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_placed(item, device) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_placed(item, device) for item in value)
    return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in what a model takes or returns, however they are nested."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from tensors_in([getattr(value, field.name) for field in dataclasses.fields(value)])
