"""An emulated model has a profile's times and parameters."""

import time
from contextlib import nullcontext

import pytest
import torch

import autobyte.torch as ab
from autobyte.job import Model
from autobyte.torch.profiling import emulate
from autobyte.torch.profiling.emulate import SLACK_S, Device

ROWS = [("front", [("weight", 6), ("bias", 2)], 0.02, 0.04), ("back", [("weight", 3)], 0.03, 0.05)]
MODEL = Model.build("small", ROWS, batch_size=1)


def test_it_has_the_parameters_and_takes_the_times_of_the_profile() -> None:
    emulated = ab.emulate(MODEL)
    assert [parameter.numel() for parameter in emulated.parameters() if parameter.requires_grad] == [6, 2, 3]
    began = time.perf_counter()
    signal = emulated(torch.zeros(1))
    forward_s = time.perf_counter() - began
    signal.backward()
    backward_s = time.perf_counter() - began - forward_s
    assert forward_s >= 0.05 - SLACK_S
    assert backward_s >= 0.09 - SLACK_S
    gradients = [parameter.grad for parameter in emulated.parameters() if parameter.requires_grad]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)
    assert emulated.describe() == "emulated: small, 11 parameters, compute of 0.140 s by sleeping"


def test_times_and_sizes_are_scaled() -> None:
    emulated = ab.emulate(MODEL, time_scale=0.5, size_scale=2.0)
    assert [layer.forward_s for layer in emulated.layers] == pytest.approx([0.01, 0.015])
    assert [parameter.numel() for parameter in emulated.layers.parameters()] == [12, 4, 6]


def test_gradients_are_complete_layer_by_layer_from_the_back() -> None:
    emulated, order = ab.emulate(MODEL.scaled(time=0.0)), []
    for index, layer in enumerate(emulated.layers):
        for parameter in layer.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, index=index: order.append(index))
    emulated(torch.zeros(1)).backward()
    assert order == sorted(order, reverse=True)
    assert len(order) == 3


class LateClock:
    """A clock on which every sleep takes half a millisecond longer than it should."""

    LATE_S = 0.0005

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds + self.LATE_S


def test_a_device_catches_up_on_small_delays_and_not_on_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, device = LateClock(), Device()
    monkeypatch.setattr(emulate, "time", clock)
    for _ in range(20):
        device.busy(0.002)  # every sleep is a little late, and none adds to the next
    assert clock.now_s - 100.0 == pytest.approx(0.04 + clock.LATE_S)
    clock.now_s += 10 * SLACK_S
    before = clock.now_s
    device.busy(0.01)
    assert clock.now_s - before == pytest.approx(0.01 + clock.LATE_S)


class TenMilliseconds:
    """Stands for a CUDA event, 10 ms before the next one."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        """It was recorded."""

    def synchronize(self) -> None:
        """It is over."""

    def elapsed_time(self, later: object) -> float:
        return 10.0


def test_a_gpu_spins_for_as_long_as_a_layer_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    spun: list[int] = []
    monkeypatch.setattr(emulate, "spin", spun.append)
    monkeypatch.setattr(torch.cuda, "Event", TenMilliseconds)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    gpu = emulate.SpinningGpu(torch.device("cuda:0"))
    gpu.busy(0.005)
    assert spun == [emulate.CYCLES, emulate.CYCLES, emulate.CYCLES // 2]
