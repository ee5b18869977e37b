"""A model that takes a profile's time and has a profile's parameters, and computes nothing.

So real DDP, Horovod or AutoByte can be wrapped around the same thing on a machine without GPUs: what is left to
measure is communication. What is emulated is said in `describe()`.
"""

import time
from typing import Any

import torch
from torch import Tensor, nn

from autobyte.internals import spin
from autobyte.job import Layer, Model

CYCLES = 20_000_000  # of a GPU, some 10 ms: what tells how long one takes
SLACK_S = 2e-3  # how far a host runs ahead of its device: delays up to this are caught up


class Device:
    """Something that is busy for a time, like a GPU that the host has given work to."""

    def __init__(self) -> None:
        self._free_s = 0.0

    def busy(self, seconds: float) -> None:
        """Return when work of so many seconds is done, begun where the last one ended, or now."""
        now = time.perf_counter()
        begin = self._free_s if now - self._free_s < SLACK_S else now
        self._free_s = begin + seconds
        if self._free_s > now:
            time.sleep(self._free_s - now)


class SpinningGpu:
    """A GPU that is kept busy for a time by a kernel that computes nothing; those of several ranks run side by side.

    Args:
        device: the GPU. The host waits for it once, to learn how long a cycle takes.
    """

    def __init__(self, device: torch.device) -> None:
        with torch.cuda.device(device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            spin(CYCLES)  # the first one is loaded, and the clock goes up
            begin.record()
            spin(CYCLES)
            end.record()
            end.synchronize()
        self._cycles_per_s = CYCLES / (begin.elapsed_time(end) / 1e3)

    def busy(self, seconds: float) -> None:
        """Queue work of so many seconds on the current stream."""
        spin(round(seconds * self._cycles_per_s))


class _Pause(torch.autograd.Function):
    """Takes a layer's time, forward and backward, and hands out its gradients."""

    @staticmethod
    def forward(ctx: Any, layer: "EmulatedLayer", signal: Tensor, *parameters: Tensor) -> Tensor:
        ctx.layer = layer
        layer.device.busy(layer.forward_s)
        return signal.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        layer: EmulatedLayer = ctx.layer
        layer.device.busy(layer.backward_s)
        # a fresh view of memory that is there already: autograd takes it over without a copy
        return None, gradient, *(kept.view(kept.shape) for kept in layer.gradients)


class EmulatedLayer(nn.Module):
    """One layer of a profile."""

    def __init__(self, layer: Layer, device: Device | SpinningGpu, place: torch.device) -> None:
        super().__init__()
        self.device = device
        self.forward_s = layer.forward_s
        self.backward_s = layer.backward_s
        self.gradients = []
        for index, tensor in enumerate(layer.tensors):
            dtype = getattr(torch, tensor.dtype)
            self.register_parameter(f"p{index}", nn.Parameter(torch.zeros(tensor.numel, dtype=dtype, device=place)))
            self.gradients.append(torch.zeros(tensor.numel, dtype=dtype, device=place))

    def forward(self, signal: Tensor) -> Tensor:
        """Pass the signal on when the time is over."""
        return _Pause.apply(self, signal, *self.parameters())  # type: ignore[no-any-return,no-untyped-call]


class EmulatedModel(nn.Module):
    """A profile as a module: `model(torch.zeros(1))` is a forward pass, `.backward()` on it a backward pass."""

    def __init__(self, model: Model, place: torch.device) -> None:
        super().__init__()
        self.model = model
        on_gpu = place.type == "cuda"
        #: On the CPU `DistributedOptimizer` leaves the division out: averages would be taken on the GPU.
        self.autobyte_average = on_gpu
        device = SpinningGpu(place) if on_gpu else Device()
        self.layers = nn.ModuleList(EmulatedLayer(layer, device, place) for layer in model.layers)
        self.signal = nn.Parameter(torch.zeros(1, device=place), requires_grad=False)

    def forward(self, signal: Tensor) -> Tensor:
        """Take the forward pass's time."""
        signal = signal.requires_grad_()
        for layer in self.layers:
            signal = layer(signal)
        return signal

    def describe(self) -> str:
        """What is emulated, in one line."""
        model = self.model
        return (
            f"emulated: {model.name}, {model.parameters:,} parameters, compute of {model.compute_s:.3f} s by "
            f"{'a kernel that does nothing' if self.autobyte_average else 'sleeping'}"
        )


def emulate(
    model: Model, *, time_scale: float = 1.0, size_scale: float = 1.0, device: str | torch.device = "cpu"
) -> EmulatedModel:
    """Make a module that sleeps for a profile's times and has parameters of its sizes.

    Time dilation: times × k on a link ÷ k stand for the link as it is.

    >>> emulated = ab.emulate(load("vgg16"), size_scale=0.1)

    Args:
        model: layers, tensors and times.
        time_scale: times are multiplied by this.
        size_scale: numbers of elements are multiplied by this.
        device: where parameters and gradients are; a GPU is kept busy instead of the host.
    """
    return EmulatedModel(model.scaled(time=time_scale, size=size_scale), torch.device(device))
