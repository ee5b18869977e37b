"""Hooks of ours on a user's module: they act on it, and neither on copies of it nor on what is read from a file."""

import copy
import io

import torch
from torch import nn

from autobyte.torch.model.hooks import Hook


def hooked() -> tuple[nn.Module, list[str]]:
    calls: list[str] = []
    module = nn.Linear(2, 2)
    module.register_forward_pre_hook(Hook(lambda *_: calls.append("forward")))
    module.register_state_dict_pre_hook(Hook(lambda *_: calls.append("state")))  # type: ignore[no-untyped-call]
    return module, calls


def test_a_hook_acts_on_its_module() -> None:
    module, calls = hooked()
    module(torch.ones(1, 2))
    module.state_dict()
    assert calls == ["forward", "state"]


def test_a_copy_has_hooks_that_do_nothing() -> None:
    module, calls = hooked()
    copied = copy.deepcopy(module)
    copied(torch.ones(1, 2))
    copied.state_dict()
    assert calls == []


def test_a_module_with_hooks_can_be_saved_whole() -> None:
    module, calls = hooked()
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(torch.ones(1, 2)), module(torch.ones(1, 2)))
    assert calls == ["forward"]
