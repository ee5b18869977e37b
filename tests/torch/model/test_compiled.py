"""What users compile of a model is seen, before and after it was looked at first."""

import pytest
import torch
from torch import nn

from autobyte.torch.model.compiled import CompiledParts


@pytest.mark.parametrize("how", ["wrapped", "in place", "forward"])
def test_a_part_that_is_compiled_is_seen(how: str) -> None:
    inner = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    model = nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"inner": inner}), nn.Linear(2, 2))
    parts = CompiledParts(model)
    assert not parts.exist()
    if how == "wrapped":
        inner[0] = torch.compile(inner[0], backend="eager")  # type: ignore[assignment]
    elif how == "in place":
        inner[1].compile(backend="eager")
    else:
        inner[0].forward = torch.compile(inner[0].forward, backend="eager")
    assert parts.exist()
    assert CompiledParts(model).exist(), "by who looks for the first time"
    assert not parts.are_whole()


@pytest.mark.parametrize("how", ["wrapped", "in place", "forward"])
def test_a_model_that_is_compiled_as_a_whole_is_seen(how: str) -> None:
    model: nn.Module = nn.Sequential(nn.Linear(2, 2))
    if how == "wrapped":
        model = torch.compile(model, backend="eager")  # type: ignore[assignment]
    elif how == "in place":
        model.compile(backend="eager")
    else:
        model.forward = torch.compile(model.forward, backend="eager")
    parts = CompiledParts(model)
    assert parts.exist()
    assert parts.are_whole()


def test_modules_that_are_added_later_are_looked_at() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    parts = CompiledParts(model)
    added = nn.Linear(2, 2)
    model.append(nn.Sequential(added))
    assert not parts.exist()
    added.compile(backend="eager")
    assert parts.exist()


def test_modules_that_are_shared_or_missing_are_no_compiled_part() -> None:
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.Sequential(shared, shared))
    model.register_module("absent", None)
    model.append(nn.Sequential(shared))
    parts = CompiledParts(model)
    assert not parts.exist()
    shared.compile(backend="eager")
    assert parts.exist()


def test_a_forward_of_the_users_own_is_no_compiled_part() -> None:
    layer = nn.Linear(2, 2)
    layer.forward = layer.forward  # type: ignore[method-assign]
    assert not CompiledParts(nn.Sequential(layer)).exist()
