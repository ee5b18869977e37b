"""Whether every layer gets the time that passes in it: exactly in virtual time, nearly where layers really sleep."""

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from autobyte.torch.profiling.profile import profile_model
from autobyte.torch.profiling.timing import CudaClock

Sleep = Callable[[float], None]
MS = 1e-3


class Pausing(torch.autograd.Function):
    """Lets time pass in both directions."""

    @staticmethod
    def forward(ctx: object, x: Tensor, sleep: Sleep, forward_ms: float, backward_ms: float) -> Tensor:
        ctx.pause = lambda: sleep(backward_ms * MS)
        sleep(forward_ms * MS)
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.pause()
        return gradient, None, None, None


class Virtual:
    """A world whose time passes only in `Pausing`."""

    now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> "VirtualClock":
        return VirtualClock(self)


class VirtualClock:
    """The clock of one pass in that world."""

    def __init__(self, world: Virtual) -> None:
        self._world = world
        self._times: list[float] = []

    def mark(self) -> int:
        self._times.append(self._world.now)
        return len(self._times) - 1

    def seconds(self) -> np.ndarray:
        return np.array(self._times) - self._times[0]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Virtual:
    world = Virtual()
    monkeypatch.setattr("autobyte.torch.profiling.profile.HostClock", world.clock)
    return world


class Pause(nn.Module):
    """A module without parameters whose times are known."""

    def __init__(self, sleep: Sleep, forward_ms: float, backward_ms: float) -> None:
        super().__init__()
        self.times = sleep, forward_ms, backward_ms

    def forward(self, x: Tensor) -> Tensor:
        return Pausing.apply(x, *self.times)


class Layer(Pause):
    """A layer of one parameter whose times are known: its gradient comes after its pause."""

    def __init__(self, sleep: Sleep, forward_ms: float, backward_ms: float) -> None:
        super().__init__(sleep, forward_ms, backward_ms)
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * self.gain)


class Path(nn.Module):
    """Calls its parts in a given order."""

    def __init__(self, order: str, **parts: nn.Module) -> None:
        super().__init__()
        self.order = order
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        for name in self.order:
            x = getattr(self, name)(x)
        return x


def milliseconds(model: nn.Module, *, repeats: int = 1) -> dict[str, tuple[float, float]]:
    profile = profile_model(model, torch.ones(1), warmup=1, repeats=repeats)
    return {layer.name: (round(layer.forward_s / MS, 6), round(layer.backward_s / MS, 6)) for layer in profile.layers}


def test_every_layer_gets_its_own_time(world: Virtual) -> None:
    model = Path("abc", a=Layer(world.sleep, 1, 3), b=Layer(world.sleep, 4, 2), c=Layer(world.sleep, 2, 5))
    assert milliseconds(model) == {"a": (1, 3), "b": (4, 2), "c": (2, 5)}


def test_a_module_without_parameters_counts_to_the_layer_before(world: Virtual) -> None:
    a, b, p, q = (
        make(world.sleep, f, b) for make, f, b in ((Layer, 1, 2), (Layer, 3, 4), (Pause, 10, 20), (Pause, 5, 6))
    )
    assert milliseconds(Path("paqbq", a=a, b=b, p=p, q=q)) == {"a": (1 + 10 + 5, 2 + 6), "b": (3 + 5, 4 + 6)}


def test_time_after_the_last_gradient_counts_to_the_first_layer(world: Virtual) -> None:
    profile = profile_model(
        Path("pab", p=Pause(world.sleep, 10, 20), a=Layer(world.sleep, 1, 2), b=Layer(world.sleep, 3, 4)),
        torch.ones(1, requires_grad=True),
    )
    assert profile.layers[0].backward_s == pytest.approx(22 * MS)


def test_a_second_call_counts_to_the_layer_before_it(world: Virtual) -> None:
    """Backward, the gradient of `a` is complete when its first call's is there, after that of `b`."""
    model = Path("aba", a=Layer(world.sleep, 1, 2), b=Layer(world.sleep, 3, 4))
    assert milliseconds(model) == {"a": (1, 2), "b": (3 + 1, 4 + 2)}


class Tied(Path):
    """Its last layer uses the parameter of the first."""

    def __init__(self, sleep: Sleep) -> None:
        super().__init__("abc", a=Layer(sleep, 1, 2), b=Layer(sleep, 3, 4), c=Layer(sleep, 5, 6))
        self.c.gain = self.a.gain


def test_a_tied_gradient_is_complete_at_its_first_use(world: Virtual) -> None:
    assert milliseconds(Tied(world.sleep)) == {"a": (1, 2), "b": (3, 4 + 6), "c": (5, 0)}


class Block(nn.Module):
    """Owns a parameter that is used after the layer in it."""

    def __init__(self, sleep: Sleep) -> None:
        super().__init__()
        self.before, self.inner, self.after = Pause(sleep, 1, 0), Layer(sleep, 2, 4), Pause(sleep, 0, 3)
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner(self.before(x)) * self.gain)


def test_a_gradient_is_never_dated_before_it_was_seen(world: Virtual) -> None:
    """The block's own gradient comes before that of the layer in it, whose forward comes later."""
    model = Path("abc", a=Layer(world.sleep, 1, 2), b=Block(world.sleep), c=Layer(world.sleep, 2, 1))
    assert milliseconds(model) == {"a": (1, 2), "b": (1, 0), "b.inner": (2, 3 + 4), "c": (2, 1)}


def test_a_frozen_layer_keeps_its_forward_time(world: Virtual) -> None:
    model = Path("abc", a=Layer(world.sleep, 3, 9), b=Layer(world.sleep, 1, 2), c=Layer(world.sleep, 4, 5))
    model.a.requires_grad_(False)
    assert milliseconds(model) == {"a": (3, 0), "b": (1, 2), "c": (4, 5)}


class Moody(Path):
    """Skips its second layer in every other pass, the second pass to begin with."""

    passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        self.order = "abc" if self.passes % 2 else "ac"
        return super().forward(x)


def test_a_layer_that_is_skipped_takes_no_time_from_its_neighbours(world: Virtual) -> None:
    model = Moody("", a=Layer(world.sleep, 1, 2), b=Layer(world.sleep, 3, 3), c=Layer(world.sleep, 2, 3))
    assert milliseconds(model) == {"a": (1, 2), "b": (0, 0), "c": (2, 3)}


def test_medians_of_the_layers_add_up_to_the_median_of_the_whole(world: Virtual) -> None:
    """Forward 2 + 1, 1 + 2, 1 + 1 ms: both layers have the median 1, the whole has 3."""
    slow = iter([0, 0, 1, 0, 0, 1, 0, 0])  # two layers in four passes; the first pass only finds the layers
    model = Path("ab", a=Layer(world.sleep, 1, 1), b=Layer(world.sleep, 1, 1))
    for part in (model.a, model.b):
        part.register_forward_hook(lambda *_: world.sleep(next(slow) * MS))
    assert milliseconds(model, repeats=3) == {"a": (1.5, 1), "b": (1.5, 1)}


def test_layers_that_sleep_are_measured_in_real_time() -> None:
    model = Path("abc", a=Layer(time.sleep, 20, 80), b=Layer(time.sleep, 80, 20), c=Layer(time.sleep, 50, 50))
    measured = milliseconds(model, repeats=5)
    for name, expected in {"a": (20, 80), "b": (80, 20), "c": (50, 50)}.items():
        assert measured[name] == pytest.approx(expected, abs=15)


class Timed(nn.Sequential):
    """Knows when its forward passes began."""

    begun_s = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.begun_s = time.perf_counter()
        return super().forward(x)


def test_layers_add_up_to_the_whole_pass() -> None:
    """Against the same passes timed from outside, from the call of the model to the report that the pass is over."""
    convolutions = [nn.Conv2d(3 if i == 0 else 32, 32, 3, padding=1) for i in range(4)]
    model = Timed(*(nn.Sequential(convolution, nn.ReLU(inplace=True)) for convolution in convolutions))
    seen: list[float] = []
    measured = profile_model(
        model,
        torch.randn(16, 3, 48, 48),
        warmup=3,
        repeats=15,
        progress=lambda done, total: seen.append(time.perf_counter() - model.begun_s),
    ).model()
    assert measured.compute_s == pytest.approx(np.median(seen[3:]), rel=0.25)
    assert measured.forward_s.min() > 0
    assert measured.backward_s.min() > 0


def test_cuda_events_are_read_in_seconds_from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        made = 0

        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            Event.made += 1
            self.at_ms = 250.0 * Event.made

        def record(self) -> None: ...

        def synchronize(self) -> None: ...

        def elapsed_time(self, later: "Event") -> float:
            return later.at_ms - self.at_ms

    monkeypatch.setattr(torch.cuda, "Event", Event)
    clock = CudaClock()
    assert [clock.mark() for _ in range(3)] == [0, 1, 2]
    assert clock.seconds().tolist() == [0.0, 0.25, 0.5]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_layers_add_up_on_a_gpu() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(inplace=True)) for _ in range(6)))
    rows = torch.randn(4096, 4096)
    measured = profile_model(model, rows, device="cuda").model()
    rows = rows.cuda()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(10):
        model(rows).mean().backward()
        model.zero_grad()
    end.record()
    end.synchronize()
    assert measured.compute_s == pytest.approx(start.elapsed_time(end) / 1e4, rel=0.3)
    assert measured.forward_s[1:].max() < 2 * measured.forward_s[1:].min()
