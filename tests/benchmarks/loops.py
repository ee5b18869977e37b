"""Loops of Accelerate, Trainer and Lightning on slow links, with AutoByte and with DDP: `make loops`, 5 minutes.

It needs root, an idle machine, and the extras accelerate, trainer, lightning and testbed. Each loop is the script in
`examples/` with gradients clipped to 1.0 and one backward pass a step. In place of its model stands GPT-2's profile:
layers that sleep for its times, scaled to 0.3 s a step, with sizes for which communication takes 1.1 times as long.
Compute is emulated; communication, clipping and AdamW are real.

One launch per loop: the same ranks train with DDP and with AutoByte in turn, and rank 0 times the steps. The first
steps do not count, because AutoByte measures and plans in them. It is given a policy: by default so short a training
keeps DDP's buckets.

    python tests/benchmarks/loops.py [--loops accelerate,trainer,lightning] [--rate 1Gbit] [--hosts 4] [--repeats 2]
"""

import argparse
import gc
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autobyte.bench.bench import PAYLOAD
from autobyte.models import load
from autobyte.testbed import Testbed
from autobyte.testbed.load import MOST_CORES, OtherLoad
from autobyte.torch.profiling.emulate import Device
from autobyte.units import parse_rate

#: Loops, and what AutoByte's line in each of them calls
LOOPS = {"accelerate": "prepare", "trainer": "attach", "lightning": "AutoByteStrategy"}
WAYS = ("ddp", "autobyte")
LEAST = 1.1  # what each loop is to gain
COMPUTE_S, RATIO = 0.3, 1.1  # of a step, and communication over it
STEPS, SKIPPED = 26, 16  # of each run, and of those the first, which do not count
GRADIENT = 1e-3  # of every element: the norm is above 1, so all gradients are clipped
LIMIT_S = 200.0  # of a launch


class Pause(torch.autograd.Function):
    """Takes a layer's time, forward and backward, and makes gradients."""

    @staticmethod
    def forward(ctx: Any, layer: "Sleeping", signal: Tensor, *parameters: Tensor) -> Tensor:
        ctx.layer, ctx.parameters = layer, parameters
        layer.device.busy(layer.forward_s)
        return signal.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.layer.device.busy(ctx.layer.backward_s)
        return None, gradient, *(torch.full_like(parameter, GRADIENT) for parameter in ctx.parameters)


class Sleeping(nn.Module):
    """A layer that sleeps."""

    def __init__(self, sizes: list[int], forward_s: float, backward_s: float, device: Device) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(size) for size in sizes)
        self.forward_s, self.backward_s, self.device = forward_s, backward_s, device

    def forward(self, signal: Tensor) -> Tensor:
        return Pause.apply(self, signal, *self.weights)


class Output(dict[str, Tensor]):
    """What transformers' models return."""

    @property
    def loss(self) -> Tensor:
        return self["loss"]


class Gpt2(nn.Module):
    """GPT-2's profile, as the examples call their model; it notes when its forward passes begin."""

    def __init__(self, size: float, began: list[float]) -> None:
        super().__init__()
        profile, device = load("gpt2"), Device()
        profile = profile.scaled(size=size, time=COMPUTE_S / profile.compute_s)
        self.layers = nn.ModuleList(
            Sleeping([tensor.numel for tensor in layer.tensors], layer.forward_s, layer.backward_s, device)
            for layer in profile.layers
        )
        self._began = began

    def forward(self, input_ids: Tensor, labels: Tensor) -> Output:
        self._began.append(time.perf_counter())
        signal = torch.zeros(1, requires_grad=True)
        for layer in self.layers:
            signal = layer(signal)
        return Output(loss=signal.sum())


def train(loop: str, ways: list[str], size: float) -> None:
    """Be one rank: train in each way in turn; rank 0 prints the times of steps."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    os.environ["TORCHELASTIC_RUN_ID"] = "loops"  # Lightning then believes the ranks that it is told
    example: Any = importlib.import_module(f"train_{loop}")
    setattr(example, LOOPS[loop], partial(getattr(example, LOOPS[loop]), policy="bytescheduler"))
    for number, way in enumerate(ways):
        began: list[float] = []
        example.make_model = lambda began=began: Gpt2(size, began)
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + number)
        sys.argv = [loop, f"--{way}", f"--steps={STEPS}", "--accumulation=1"]
        example.main()
        forget(loop)
        times = [after - before for before, after in pairwise(began[:STEPS])]
        print(json.dumps({"way": way, "step_s": times[SKIPPED:]}), flush=True)


def forget(loop: str) -> None:
    """Let the next training of this process begin as the first did."""
    if loop != "lightning":
        from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: PLC0415

        AcceleratorState._reset_state(reset_partial_state=True)
        PartialState._reset_state()
        GradientState._reset_state()
    gc.collect()
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def measure(testbed: Testbed, loop: str, ways: list[str], size: float) -> dict[str, list[list[float]]]:
    """Launch a loop; times of steps (s), way by way and run by run."""
    command = [sys.executable, __file__, "--rank-of", loop, "--ways", ",".join(ways), "--size", repr(size)]
    with testbed.start(command) as launch:
        lines = launch.wait(timeout_s=LIMIT_S)[0].output.splitlines()
    runs: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for line in lines:
        if line.startswith('{"way"'):
            run = json.loads(line)
            runs[run["way"]].append(run["step_s"])
    return runs


def main(say: Callable[[str], object] = print) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", default=",".join(LOOPS))
    parser.add_argument("--rate", default="1Gbit")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    parser.add_argument("--ways", default="", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        train(options.rank_of, options.ways.split(","), options.size)
        return 0
    rate, traffic = parse_rate(options.rate, what="rate"), 2 * (options.hosts - 1) / options.hosts
    size = RATIO * COMPUTE_S * PAYLOAD * rate / traffic / (4 * load("gpt2").parameters)
    nbytes = 4 * size * load("gpt2").parameters
    say(f"{options.hosts} hosts at {options.rate}, GPT-2's profile with {nbytes / 1e6:.0f} MB of gradients")
    least = float("inf")
    with Testbed(options.hosts, rate=rate) as testbed, OtherLoad() as others:
        for loop in options.loops.split(","):
            runs = measure(testbed, loop, list(WAYS) * options.repeats, size)
            ddp_s, ours_s = (statistics.median(chain(*runs[way])) for way in WAYS)
            each = ", ".join(
                f"{way} " + " and ".join(f"{statistics.median(run):.3f}" for run in runs[way]) for way in WAYS
            )
            say(f"{loop}: {ddp_s / ours_s:.3f}x DDP; medians of runs (s): {each}")
            least = min(least, ddp_s / ours_s)
    if others.cores > MOST_CORES:
        say(f"others kept {others.cores:.1f} cores busy meanwhile: times are not to be trusted")
    return 0 if least >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
