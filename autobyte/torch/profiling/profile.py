"""Measure a model layer by layer: some passes to warm up, then the median of repeats.

What a layer is and which parameters it has stands in `layers.py`, which time counts to which layer in `timing.py`.
"""

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from autobyte.errors import InputError
from autobyte.job import Floats, Layer, Model, Tensor
from autobyte.models.profile import Profile
from autobyte.torch.model.layers import CalledLayer, discover
from autobyte.torch.model.step import Loss, Step, explained
from autobyte.torch.profiling.timing import CudaClock, HostClock, TimedPass

Progress = Callable[[int, int], None]


def profile_model(
    model: nn.Module,
    inputs: Any,
    *,
    loss: Loss | None = None,
    device: str = "cpu",
    warmup: int = 3,
    repeats: int = 10,
    name: str | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Measure forward and backward time of every layer of a model in training mode.

    >>> profile = profile_model(torchvision.models.vgg16(), torch.randn(32, 3, 224, 224))
    >>> profile.save("vgg16.json")

    A layer's time is the median over the repeats; these are scaled so that they add up to the median of the whole
    forward pass (with the loss) and of the whole backward pass. The optimizer is not measured.

    Afterwards the model is on `device`, without gradients; parameters, modes and torch's random state are
    unchanged, buffers (the statistics of batch norm) have moved on.

    Args:
        model: any module.
        inputs: a tuple of positional arguments, a mapping of keyword arguments, or the only argument. The batch
            size is the first dimension of the first tensor in it.
        loss: makes one number of what the model returns; by default the sum of the means of its floating outputs.
        device: `cpu`, `cuda` or `cuda:1`. On a GPU, times come from events in its stream.
        warmup: passes that do not count, at least one: the first one finds the layers.
        repeats: passes that count.
        name: what the profile is called; by default the model's class.
        progress: called after every pass with the passes done and the passes to do.

    Raises:
        InputError: the model fails, has no trainable parameter or a sparse gradient, or the device is not there.
    """
    place = _device(device)
    for what, count in (("warmup", warmup), ("repeats", repeats)):
        if count < 1:
            raise InputError(f"{what} must be at least 1, got {count}")
    tell = progress or (lambda done, total: None)
    with _prepared(model, place):
        step = Step(model, inputs, loss=loss, device=place)
        if not step.inputs:
            raise InputError(f"the inputs of a model must hold a tensor, got {type(inputs).__name__}")
        layers = discover(step)
        tell(1, warmup + repeats)
        passes = []
        for done in range(2, warmup + repeats + 1):
            passes.append(TimedPass(layers, CudaClock() if place.type == "cuda" else HostClock()))
            passes[-1].run(step)
            tell(done, warmup + repeats)
        samples = np.array([timed.seconds() for timed in passes[-repeats:]])
    size = step.inputs[0].shape[0] if step.inputs[0].dim() else 1
    measured = Model(name or type(model).__name__, _layers(layers, _medians(samples)), size)
    provenance = _provenance(place, warmup, repeats) | {"inputs": _shapes(step), "spread": _spread(samples)}
    return Profile.of(measured, provenance=provenance)


@contextmanager
def _prepared(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Set up for training on the device; put back modes and random state, drop gradients."""
    cuda = device.type == "cuda"
    modes = {module: module.training for module in model.modules()}
    with (
        torch.random.fork_rng(devices=[device] if cuda else []),
        torch.cuda.device(device) if cuda else nullcontext(),
        torch.enable_grad(),
    ):
        try:
            with explained(f"moving the model to {device}"):
                model.to(device)
            model.train()
            yield
        finally:
            model.zero_grad(set_to_none=True)
            for module, training in modes.items():
                module.training = training


def _device(text: str) -> torch.device:
    try:
        device = torch.device(text)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"unknown device '{text}'; write cpu, cuda or cuda:1")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise InputError(f"device '{text}' is not there: torch sees {count} CUDA devices; say --device cpu")
    return device


def _medians(samples: Floats) -> Floats:
    """Median of every layer, scaled to the median of the whole: [repeats, 2, layers] -> [2, layers]."""
    middle: Floats = np.median(samples, axis=0)
    whole = np.median(samples.sum(axis=2), axis=0)
    parts = middle.sum(axis=1)
    scale: Floats = np.divide(whole, parts, out=np.ones(2), where=parts > 0)
    return middle * scale[:, None]


def _spread(samples: Floats) -> float:
    """Distance between the quartiles of the whole pass, over its median."""
    low, middle, high = np.percentile(samples.sum(axis=(1, 2)), [25, 50, 75])
    return round(float((high - low) / middle), 4)


def _layers(layers: Sequence[CalledLayer], seconds: Floats) -> tuple[Layer, ...]:
    return tuple(
        Layer(
            layer.name,
            tuple(Tensor(name, p.numel(), _name(p.dtype), index) for name, p in layer.parameters),
            float(seconds[0, index]),
            float(seconds[1, index]),
        )
        for index, layer in enumerate(layers)
    )


def _provenance(device: torch.device, warmup: int, repeats: int) -> dict[str, str | float | int]:
    return {
        "how": "measured",
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "warmup": warmup,
        "repeats": repeats,
    }


def _shapes(step: Step) -> str:
    return ";".join(f"{_name(t.dtype)}:{','.join(map(str, t.shape))}" for t in step.inputs)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
