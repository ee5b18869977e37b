"""Errors that the gradients of a step may be refused with, and their ways out."""

import gc

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from autobyte.errors import InputError


def too_many_passes(name: str, passes: int, accumulation: int) -> InputError:
    """A gradient is complete more often in a step than was said."""
    return InputError(
        f"parameter '{name}' got {passes} backward passes in a step of {accumulation}: say accumulation=, "
        "put all but the last into no_sync(), or call this optimizer's synchronize() before the next, which then "
        "adds to averages, or its zero_grad() in place of the model's"
    )


def after_clipping() -> InputError:
    """A gradient comes after the step was closed to be clipped."""
    return InputError("a backward pass follows on clip_grad_…(): call step() before it, or zero_grad()")


def in_a_graph() -> InputError:
    """A backward pass is recorded by CUDA, and not run."""
    return InputError(
        "gradients cannot travel from a CUDA graph, whose replays call no hooks: call backward() and step() "
        "outside of torch.cuda.graph()"
    )


def of_another_kind(name: str, device: torch.device, dtype: torch.dtype, gradient: Tensor) -> InputError:
    """A gradient is not on the device, or not of the dtype, that its parameter had when it was wrapped."""
    if gradient.device != device:
        return InputError(f"parameter '{name}' has moved to {gradient.device}: move the model before wrapping it")
    return InputError(
        f"parameter '{name}' was {dtype} when the optimizer was wrapped, and its gradient is {gradient.dtype}: "
        "convert the model before wrapping it, and leave grad_dtype as it is"
    )


def thawed(name: str) -> InputError:
    """A parameter that does not travel has a gradient."""
    return InputError(
        f"'{name}' was frozen when the optimizer was wrapped, and has a gradient now, which does not "
        "travel: close() this wrapper, and wrap the optimizer again after thawing parameters"
    )


def changed(name: str, parameter: nn.Parameter) -> InputError:
    """A gradient was changed while it travelled."""
    return InputError(
        f"the gradient of '{name}' was changed between backward() and step(), while it travelled: "
        + _advice(parameter)
    )


def read_early(name: str, left: str, *, in_buffer: bool) -> InputError:
    """A gradient is read that is not averaged before the step is closed."""
    why = f"'{left}' has had no backward pass in this step"
    if in_buffer:
        why = f"the gradient of '{left}' lies in a buffer of your own, which travels in step()"
    return InputError(
        f"the gradient of '{name}' was read between backward() and step(), and is no average, because {why}: call "
        "this optimizer's synchronize() before, on all ranks, or its clip_grad_norm_() in place of torch's"
    )


def _advice(parameter: nn.Parameter) -> str:
    for each in gc.get_objects():
        if type(each) is DistributedDataParallel and any(parameter is other for other in each.parameters()):
            return "the model is in DistributedDataParallel, too, which averages gradients itself: use one of the two"
    return (
        "call this optimizer's clip_grad_norm_() or clip_grad_value_() in place of torch's, and synchronize() before "
        "unscaling or replacing gradients"
    )
