"""Real models to measure, with random weights: torchvision's, transformers', a user's own, and two small ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autobyte.errors import InputError, require, unknown
from autobyte.models import network
from autobyte.torch.model.step import Loss, Step
from autobyte.torch.profiling.source import load_factory, make_input

#: By the names that AutoByte's own table of models has.
SPECS = {
    "resnet50": "torchvision:resnet50",
    "vgg16": "torchvision:vgg16",
    "alexnet": "torchvision:alexnet",
    "densenet121": "torchvision:densenet121",
    "bert-base": "transformers:bert",
    "bert-large": "transformers:bert-large",
    "gpt2": "transformers:gpt2",
}
SMALL = ("small:cnn", "small:transformer")
BATCH = 8  # of what the table does not name
VOCABULARY = {"gpt2": 50257, "bert-base": 30522, "bert-large": 30522}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}

_TABLE = {spec: name for name, spec in SPECS.items()}

Data = tuple[Any, Loss | None]  # inputs, and what makes one number of what the model returns


@dataclass(frozen=True)
class Network:
    """A model on its device, and what it is trained on.

    Args:
        name: as `make` was given it.
        device: of all tensors.
        model: with random weights, in training mode.
        batch: samples in the inputs.
        inputs: a tuple of positional arguments, a mapping of keyword arguments, or the only argument.
        loss: makes one number of what the model returns; None is the mean of it.
        data: makes inputs and loss of another batch size and seed.
    """

    name: str
    device: torch.device
    model: nn.Module
    batch: int
    inputs: Any
    loss: Loss | None
    data: Callable[[int, int], Data]

    def passes(self, model: nn.Module) -> Step:
        """Forward and backward of a copy of the model, or of what wraps one, on these inputs."""
        return Step(model, self.inputs, loss=self.loss, device=self.device)

    def of(self, batch: int, *, seed: int = 0) -> "Network":
        """The same model with other inputs."""
        return Network(self.name, self.device, self.model, batch, *self.data(batch, seed), self.data)


def make(name: str, device: torch.device, *, batch: int | None = None, inputs: str = "") -> Network:
    """Make a model, random inputs and a loss.

    >>> make("torchvision:resnet50", torch.device("cuda:0"), batch=64)

    Args:
        name: `torchvision:resnet50`, `transformers:gpt2`, `small:cnn`, or `FILE.py:make_model`; the function returns
            a module, (module, inputs) or (module, inputs, loss).
        device: where all of it is.
        batch: samples; by default as many as in AutoByte's table of models, or as the function returns.
        inputs: shapes, as `make_input` reads them, for a function that returns no inputs.

    Raises:
        InputError: there is no such model, or it has no inputs.
        MissingExtra: the package that has it is not installed.
    """
    torch.manual_seed(0)
    made = _own(name, inputs) if name not in (*_TABLE, *SMALL) else None
    with device:
        model = made[0] if made is not None else _model(name)
    model.to(device).train()
    data = made[1] if made is not None else lambda size, seed: _data(name, size, seed, device)
    size = batch or (made[2] if made is not None else table_batch(name))
    return Network(name, device, model, size, *data(size, 0), data)


def check(name: str) -> None:
    """Say at once that a model cannot be made, before hosts and ranks are.

    Raises:
        InputError: there is no such model.
        MissingExtra: the package that has it is not installed.
    """
    source, _, of = name.rpartition(":")
    if source.endswith(".py") and not Path(source).is_file():
        raise InputError(f"no such file: {source}")
    if name in SMALL or source.endswith(".py"):
        return
    if name not in _TABLE:
        raise unknown("model", name, [*_TABLE, *SMALL, "FILE.py:make_model"])
    require(source, extra="gpu", what=f"the model '{of}'")


def table_batch(name: str) -> int:
    """Samples per step in AutoByte's table of models."""
    return network(_TABLE[name]).batch_size if name in _TABLE else BATCH


def _own(spec: str, inputs: str) -> tuple[nn.Module, Callable[[int, int], Data], int]:
    """A user's model, its data, and the batch size of the inputs that were given."""
    made = load_factory(spec)
    given = make_input(inputs) if inputs else made.inputs
    if given is None:
        raise InputError(f"what goes into {spec}? say --input 32,3,224,224, or return (model, inputs)")
    sizes = [t.shape[0] for t in Step(nn.Identity(), given).inputs if t.dim()]
    if not sizes:
        raise InputError(f"the inputs of {spec} hold no tensor with a batch dimension")
    return made.model, lambda size, seed: (_resized(given, sizes[0], size, seed), made.loss), sizes[0]


def _resized(value: Any, before: int, size: int, seed: int) -> Any:
    """Inputs with another first dimension: their samples again, begun elsewhere."""
    if isinstance(value, Tensor):
        if not value.dim() or value.shape[0] != before:
            return value
        return value[(torch.arange(size) + seed) % before]
    if isinstance(value, Mapping):
        return {key: _resized(item, before, size, seed) for key, item in value.items()}
    if isinstance(value, list | tuple):
        made = [_resized(item, before, size, seed) for item in value]
        return (
            type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
        )  # a named tuple takes them apart
    return value


def _model(name: str) -> nn.Module:
    if name in SMALL:
        return _small_cnn() if name == "small:cnn" else _SmallTransformer()
    source, _, of = name.partition(":")
    library = require("torchvision.models" if source == "torchvision" else source, extra="gpu", what=f"'{name}'")
    if source == "torchvision":
        model: nn.Module = getattr(library, of)(weights=None)
        return model
    if of == "gpt2":
        model = library.GPT2LMHeadModel(library.GPT2Config(use_cache=False))
    else:
        model = library.BertModel(library.BertConfig(**(LARGE if of == "bert-large" else {})))
    return model


def _data(name: str, batch: int, seed: int, device: torch.device) -> Data:
    generator = torch.Generator().manual_seed(seed)
    if name == "small:transformer":
        tokens = torch.randint(SYMBOLS, (batch, 32), generator=generator).to(device)
        return (tokens,), lambda out: nn.functional.cross_entropy(out.flatten(0, 1), tokens.flatten())
    if name == "small:cnn" or name.startswith("torchvision:"):
        side, classes = (32, 10) if name == "small:cnn" else (network(_TABLE[name]).sample[-1], 1000)
        images = torch.randn(batch, 3, side, side, generator=generator).to(device)
        labels = torch.randint(classes, (batch,), generator=generator).to(device)
        return (images,), lambda out: nn.functional.cross_entropy(out, labels)
    known = _TABLE[name]
    tokens = torch.randint(VOCABULARY[known], (batch, network(known).sample[0]), generator=generator).to(device)
    if known == "gpt2":
        return {"input_ids": tokens, "labels": tokens}, lambda out: out.loss
    return {"input_ids": tokens}, lambda out: out.last_hidden_state.mean() + out.pooler_output.mean()


SYMBOLS, WIDTH = 100, 64


def _small_cnn() -> nn.Module:
    """Three convolutions, without a bias: before batch norm its gradient would be rounding errors, and no more."""
    channels = (3, 16, 32, 64)
    parts: list[nn.Module] = []
    for before, after in pairwise(channels):
        parts += [nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(64 * 16, 10))


class _SmallTransformer(nn.Module):
    """Two layers on sequences of 32 symbols, without dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.out = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of symbols, shape [batch, length, symbols]."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.out(x)
        return out
