"""A loop that trains an emulated PyTorch model with an optimizer that averages, and times its steps."""

import time
from itertools import pairwise
from typing import Any

import torch

from autobyte.bench.front_rank import Spec, begin, chosen, told
from autobyte.torch.profiling.emulate import EmulatedModel


def train_by_autobyte(spec: Spec) -> None:
    """Meet the other ranks, and train as a spec says; rank 0 prints the times of steps. Collective."""
    begin()
    import autobyte.torch as ab  # noqa: PLC0415 - it loads Numba, of which other ways need nothing

    model = model_of(spec)
    optimizer = ab.DistributedOptimizer(sgd(model), model, **chosen(spec))
    told(times(spec, model, optimizer), optimizer.report())
    optimizer.close()


def model_of(spec: Spec) -> EmulatedModel:
    """The model of a spec, whose averages are divided, as the frameworks' own ways do."""
    from autobyte.models import find  # noqa: PLC0415

    model = EmulatedModel(find(spec["model"]).scaled(**spec["scales"]), torch.device("cpu"))
    model.autobyte_average = True
    return model


def sgd(model: EmulatedModel) -> torch.optim.Optimizer:
    """An optimizer of what is trained."""
    return torch.optim.SGD([each for _, each in trained(model)], lr=1e-3)


def trained(model: EmulatedModel) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters that have gradients, by name."""
    return [(name, each) for name, each in model.named_parameters() if each.requires_grad]


def times(spec: Spec, model: EmulatedModel, optimizer: Any) -> list[float]:
    """How long steps take, from beginning to beginning (s)."""
    began = []
    for _ in range(spec["warmup"] + spec["steps"] + 1):
        began.append(time.perf_counter())
        optimizer.zero_grad()
        model(torch.zeros(1)).backward()
        optimizer.step()
    return [after - before for before, after in pairwise(began)][spec["warmup"] :]
