"""Fit the constants of autobyte/models/roofline.py to PipeDream's profiles, and print them with their error.

    python tools/fit_roofline.py FOLDER      # *.graph.txt of github.com/msr-fiddle/pipedream; about a minute

Minimised is, with every model counting the same, the sum of the layers' absolute errors plus the error of the total.
A model is also predicted from constants fitted without it and without its family. Grouped convolutions are left out.
"""
# ruff: noqa: T201

import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autobyte.models import ops
from autobyte.models.ops import FLOAT, Op
from autobyte.models.pipedream import Graph, Node, read_graph
from autobyte.models.roofline import Rate, Rates, backward_s, forward_s

FAMILIES = {
    "alexnet": ["alexnet"],
    "vgg16": ["vgg16"],
    "resnet50": ["resnet18", "resnet50", "resnet101"],
    "densenet121": ["densenet121"],
}
FITTED = [name for family in FAMILIES.values() for name in family] + ["squeezenet1_0"]

# Where the search starts; the first two are the measurement's own, and no part of the roofline.
START = {
    "profiler_s": 250e-6,  # added to the forward time of every module: hooks, and waiting for the GPU
    "copy_bytes_per_s": 10e9,  # the input's way to the GPU, in the forward time of the first module
    "memory overhead": 20e-6,
    "compute overhead": 100e-6,
    "memory bytes": 750e9,
    "window bytes forward": 100e9,  # of convolutions wider than one pixel
    "window bytes backward": 100e9,
    **{f"{kind} flops {way}": 10e12 for kind in ("conv1x1", "conv", "matmul") for way in ("forward", "backward")},
    **{f"winograd flops {way}": 25e12 for way in ("forward", "backward")},
}


@dataclass
class Measured:
    """A model's modules, with what each of them runs, and its times, shape [modules]."""

    runs: list[list[Op]]
    kinds: np.ndarray
    copied: np.ndarray
    forward_s: np.ndarray
    backward_s: np.ndarray


def rates(values: dict[str, float], way: str) -> Rates:
    """Make the roofline of one direction."""
    memory, start, window = values["memory bytes"], values["compute overhead"], values[f"window bytes {way}"]
    products = 2 if way == "backward" else 1  # the gradients of weights and of inputs
    rates = {"memory": Rate(math.inf, memory, values["memory overhead"])}
    for kind in ("conv1x1", "winograd", "conv", "matmul"):
        nbytes = window if kind in ("winograd", "conv") else memory
        rates[kind] = Rate(values[f"{kind} flops {way}"], nbytes, start * products)
    return rates


def operations(graph: Graph, node: Node) -> list[Op]:
    """Say what a module runs, from how it prints and from the sizes of what goes in and out."""
    out = int(node.activation_bytes / FLOAT)
    parents = [graph.nodes[number] for number in graph.parents.get(node.number, ())]
    into = int(parents[0].activation_bytes / FLOAT) if parents else 0
    names = {"BatchNorm2d": "batchnorm", "ReLU": "relu", "Add": "add", "Concat": "concat"}
    if node.kind in names:
        return [ops.elementwise(names[node.kind], out)]
    numbers = [int(number) for number in re.findall(r"\d+", node.text.removeprefix("Conv2d"))]
    if node.kind == "Conv2d":
        channels, wide, kernel, _, stride = numbers[:5]
        pixels = {"pixels_in": into // channels, "pixels_out": out // wide}
        return [ops.conv(channels, wide, kernel, stride=stride, first=parents[0].loads, **pixels)]
    if node.kind == "Linear":
        return [ops.matmul(out // numbers[1], numbers[0], numbers[1])]
    return {"MaxPool2d": [ops.maxpool(into, out)], "AvgPool2d": [ops.avgpool(into, out)]}.get(node.kind, [])


def measured(path: Path) -> Measured:
    """Read a profile. Functions without a module (Add, Concat) have time 0 there: the next module's has theirs."""
    graph = read_graph(path)
    free = {number for number, node in graph.nodes.items() if not node.forward_s + node.backward_s}
    modules = [node for node in graph.order() if not node.loads and node.number not in free]
    parents = [[graph.nodes[number] for number in graph.parents[node.number]] for node in modules]
    runs = [
        [op for each in [*(p for p in before if p.number in free), node] for op in operations(graph, each)]
        for node, before in zip(modules, parents, strict=True)
    ]
    copied = [sum(p.activation_bytes for p in before if p.loads) for before in parents]
    times = np.array([(node.forward_s, node.backward_s) for node in modules])
    kinds = np.array([run[-1].kind for run in runs])
    return Measured(runs, kinds, np.array(copied), times[:, 0], times[:, 1])


def predict(values: dict[str, float], model: Measured) -> tuple[np.ndarray, np.ndarray]:
    """Predict the measured forward and backward times, with what measuring adds."""
    ahead, back = rates(values, "forward"), rates(values, "backward")
    forward = np.array([sum(forward_s(op, rates=ahead) for op in run) for run in model.runs])
    backward = np.array([sum(backward_s(op, rates=back) for op in run) for run in model.runs])
    return forward + values["profiler_s"] + model.copied / values["copy_bytes_per_s"], backward


def loss(values: dict[str, float], models: list[Measured]) -> float:
    """Sum what the docstring of this file says is minimised."""
    total = 0.0
    for model in models:
        forward, backward = predict(values, model)
        errors = np.stack([forward - model.forward_s, backward - model.backward_s])
        bias = sum(abs(errors[:, model.kinds == kind].sum(axis=1)).sum() for kind in set(model.kinds))
        total += (abs(errors).sum() + bias) / (model.forward_s.sum() + model.backward_s.sum())
    return total


def fit(models: list[Measured]) -> dict[str, float]:
    """Take the best of several searches; one can end at a kink."""
    return min((search(models, seed) for seed in range(5)), key=lambda values: loss(values, models))


def search(models: list[Measured], seed: int) -> dict[str, float]:
    """Go downhill with random steps whose size adapts (a (1+1) evolution strategy), on the logarithms."""
    rng = np.random.default_rng(seed)
    best, step = dict(START), 0.3
    least = loss(best, models)
    while step > 1e-3:
        factors = np.exp(step * rng.standard_normal(len(best)) * (rng.random(len(best)) < 0.3))
        tried = {name: value * factor for (name, value), factor in zip(best.items(), factors, strict=True)}
        now = loss(tried, models)
        step *= 1.5 if now < least else 0.98
        if now < least:
            best, least = tried, now
    return best


def report(label: str, values: dict[str, float], model: Measured) -> None:
    """Print how far off the totals and the median layer are, once what measuring adds is off both sides."""
    added = values["profiler_s"] + model.copied / values["copy_bytes_per_s"]
    forward, backward = predict(values, model)
    pairs = [(forward - added, model.forward_s - added), (backward, model.backward_s)]
    pairs.append((pairs[0][0] + backward, pairs[0][1] + model.backward_s))
    totals = "".join(f"{predicted.sum() / true.sum() - 1:+9.1%}" for predicted, true in pairs)
    layer = np.median(abs(pairs[2][0] / pairs[2][1] - 1))
    print(
        f"{label:24}{added.sum() * 1e3:9.1f}{pairs[0][1].sum() * 1e3:9.1f}{model.backward_s.sum() * 1e3:9.1f}", end=""
    )
    print(f"{totals}{layer:9.1%}")


def main(folder: Path) -> None:
    """Fit, print, and predict what was left out."""
    models = {name: measured(folder / f"{name}.graph.txt") for name in FITTED}
    values = fit(list(models.values()))
    for name, value in values.items():
        print(f"{name:28}{value:10.3g}")
    print("\nms, and errors            added  forward backward  forward backward    total    layer")
    for name, model in models.items():
        report(name, values, model)
    for name, family in FAMILIES.items():
        rest = [model for other, model in models.items() if other not in family]
        report(f"{name}, left out", fit(rest), models[name])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
