"""Which layer every parameter belongs to, and in which order layers are first called.

A layer is a module that is *called* in the forward pass and directly owns parameters; layers stand in the order of
their first call, and a module that is called twice is one layer.

- A parameter whose owner is never called (`MultiheadAttention.out_proj`, a weight read by a function, a
  `ParameterList`) belongs to the nearest module above its owner that is called: there training waits for it.
- A parameter with several owners (tied weights) is one tensor, of the owner that is called first.
- A frozen parameter does not travel. Its owner stays a layer, without tensors: time passes in it.
- An unused parameter (no gradient after a backward pass) travels all the same, as zeros, and training learns only
  at the end of the backward pass that none will come. The first layer is the one whose gradients are complete at that
  moment, so unused parameters are listed there: neither their sending is dated too early, nor their need too late.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from autobyte.errors import InputError
from autobyte.internals import is_compiled
from autobyte.torch.model.step import Step


@dataclass(frozen=True)
class CalledLayer:
    """A layer: its module, and the parameters with their names whose gradients travel with it."""

    name: str
    module: nn.Module
    parameters: list[tuple[str, nn.Parameter]] = field(default_factory=list)


@contextmanager
def watch_calls(model: nn.Module) -> Iterator[dict[nn.Module, None]]:
    """Collect the modules that are called within the block, in the order of their first call: the model comes first.

    Raises:
        InputError: a module is compiled.
    """
    calls: dict[nn.Module, None] = {model: None}

    def called(module: nn.Module, _arguments: object) -> None:
        calls.setdefault(module)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if is_compiled(module):
                which = name or type(model).__name__
                raise InputError(f"module '{which}' is compiled: no hooks; profile it uncompiled")
            hooks.callback(module.register_forward_pre_hook(called).remove)
        yield calls


def discover(step: Step) -> list[CalledLayer]:
    """Do a pass, and find the layers that were called in it.

    Raises:
        InputError: the pass fails, no parameter is trainable, or a gradient is sparse.
    """
    step.clear_gradients()
    with watch_calls(step.model) as calls:
        loss = step.forward()
    step.backward(loss)
    return find_layers(step.model, calls)


def find_layers(model: nn.Module, calls: Iterable[nn.Module], travelling: Container[str] = ()) -> list[CalledLayer]:
    """Find the layers of a model that has just done a forward and a backward pass.

    Args:
        model: its parameters have the gradients of that pass.
        calls: the modules that were called, in the order of first call; the model is one of them.
        travelling: names of parameters whose gradients travel even if they are frozen by now.

    Raises:
        InputError: no parameter is trainable, or a gradient is sparse.
    """
    rank = {module: index for index, module in enumerate(calls)}
    owners = _owners(model, rank)
    held: dict[nn.Module, list[tuple[str, nn.Parameter]]]
    held = {module: [] for module in rank if any(True for _ in module.parameters(recurse=False))}
    unused = []
    for name, parameter in _trainable(model, travelling):
        if parameter.grad is None:
            unused.append((name, parameter))
        else:
            held.setdefault(min(owners[parameter], key=rank.__getitem__), []).append((name, parameter))
    names = {module: name or type(model).__name__ for name, module in model.named_modules()}
    layers = [CalledLayer(names[module], module, held[module]) for module in sorted(held, key=rank.__getitem__)]
    layers[0].parameters.extend(unused)
    return layers


def _trainable(model: nn.Module, travelling: Container[str]) -> list[tuple[str, nn.Parameter]]:
    """Every trainable parameter once, under its first name."""
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad or name in travelling]
    if not trainable:
        raise InputError(f"model '{type(model).__name__}' has no trainable parameter: no gradient to send")
    if all(parameter.grad is None for _, parameter in trainable):
        raise InputError("the loss does not depend on any trainable parameter")
    for name, parameter in trainable:
        if parameter.grad is not None and parameter.grad.layout is not torch.strided:
            raise InputError(f"parameter '{name}' has a sparse gradient, which cannot be cut; say sparse=False")
    return trainable


def _owners(model: nn.Module, rank: dict[nn.Module, int]) -> dict[nn.Parameter, list[nn.Module]]:
    """For every parameter the called modules that own it; if there are none, the nearest called ones above them."""
    modules: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
    paths: dict[nn.Parameter, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        paths[parameter].append(name.rpartition(".")[0])

    def nearest(path: str) -> nn.Module:
        while modules[path] not in rank:
            path = path.rpartition(".")[0]
        return modules[path]

    called = {p: [modules[path] for path in at if modules[path] in rank] for p, at in paths.items()}
    return {p: called[p] or [nearest(path) for path in at] for p, at in paths.items()}
