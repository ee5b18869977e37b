"""Real models to measure: their inputs, a user's own, and what is said where one cannot be made."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from autobyte.bench.networks import SMALL, SPECS, check, make, table_batch
from autobyte.errors import AutoByteError
from autobyte.models import names

CPU = torch.device("cpu")
OWN = """
from collections import namedtuple

import torch
from torch import nn

Pair = namedtuple("Pair", "left right")

class Sum(nn.Linear):
    def forward(self, pair):
        return super().forward(pair.left + pair.right)

def named():
    return Sum(4, 2), (Pair(torch.ones(3, 4), torch.zeros(3, 4)),), lambda out: out.square().mean()

def with_inputs():
    model = nn.Linear(4, 2)
    return model, {"input": torch.arange(12.0).reshape(3, 4)}, lambda out: out.square().mean()

def without():
    return nn.Linear(4, 2)

def numbers():
    return nn.Linear(4, 2), (torch.tensor(1.0),)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "own.py"


@pytest.mark.parametrize("name", SMALL)
def test_a_small_model_trains_on_as_many_samples_as_are_asked_for(name: str) -> None:
    network = make(name, CPU, batch=3)
    passes = network.of(5, seed=1).passes(network.model)
    assert passes.inputs[0].shape[0] == 5
    passes.backward(passes.forward())
    assert all(parameter.grad is not None for parameter in network.model.parameters())
    others = [network.of(3, seed=seed).passes(network.model).inputs[0] for seed in (0, 0, 1)]
    assert torch.equal(others[0], others[1])
    assert not torch.equal(others[0], others[2])


def test_a_model_of_ones_own_gets_its_samples_again_until_there_are_enough(own: Path) -> None:
    network = make(f"{own}:with_inputs", CPU)
    assert network.batch == 3
    (again,) = network.of(5).passes(network.model).inputs
    assert again[:, 0].tolist() == [0, 4, 8, 0, 4]
    (later,) = network.of(2, seed=2).passes(network.model).inputs
    assert later[:, 0].tolist() == [8, 0]
    shaped = make(f"{own}:without", CPU, batch=2, inputs="7,4")
    assert shaped.passes(shaped.model).inputs[0].shape == (2, 4)


def test_samples_in_a_named_tuple_stay_in_one(own: Path) -> None:
    network = make(f"{own}:named", CPU, batch=5)
    passes = network.passes(network.model)
    passes.backward(passes.forward())
    assert [each.shape for each in passes.inputs] == [(5, 4), (5, 4)]


def test_models_of_the_table_have_a_name_each() -> None:
    assert set(SPECS) == set(names())
    assert table_batch("transformers:gpt2") == 4
    assert table_batch("torchvision:vgg16") == 32


def test_another_packages_model_has_random_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    package, models = ModuleType("torchvision"), ModuleType("torchvision.models")
    models.resnet50 = lambda weights: asked.append(weights) or nn.Conv2d(3, 1000, 224)
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    check("torchvision:resnet50")
    network = make("torchvision:resnet50", CPU, batch=2)
    assert asked == [None]
    assert network.passes(network.model).inputs[0].shape == (2, 3, 224, 224)


def test_what_cannot_be_made_is_one_line(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(AutoByteError, match=r"'gpt2' needs transformers: pip install 'autobyte\[gpu\]'"):
        check("transformers:gpt2")
    with pytest.raises(AutoByteError, match=r"did you mean 'torchvision:resnet50'\?"):
        check("torchvision:resnet5")
    with pytest.raises(AutoByteError, match=r"no such file: missing\.py"):
        check("missing.py:make_model")
    with pytest.raises(AutoByteError, match="say --input 32,3,224,224, or return"):
        make(f"{own}:without", CPU)
    with pytest.raises(AutoByteError, match="hold no tensor with a batch dimension"):
        make(f"{own}:numbers", CPU)
