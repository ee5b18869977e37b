"""Real modules of the models that AutoByte knows by name, with inputs and a loss; and two small ones."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from autobyte.models import load, names, network

VISION = ("resnet50", "vgg16", "alexnet", "densenet121")
SMALL = ("small-cnn", "small-transformer")


@dataclass(frozen=True)
class Network:
    """A model on its device, and what it is trained on.

    Args:
        name: of the model.
        device: of all tensors.
        model: with random weights.
        inputs: as keyword arguments or a tuple, of one batch.
        loss: one number of what the model returns.
    """

    name: str
    device: torch.device
    model: nn.Module
    inputs: Any
    loss: Callable[[Any], Tensor]

    def forward(self, model: nn.Module) -> Tensor:
        """The loss of a copy of the model, or of what wraps one."""
        given = model(**self.inputs) if isinstance(self.inputs, dict) else model(*self.inputs)
        return self.loss(given)

    def batch(self, size: int, *, seed: int = 0) -> "Network":
        """The same model with other inputs."""
        return Network(self.name, self.device, self.model, *_data(self.name, size, seed, self.device))


def make(name: str, device: torch.device, *, batch: int | None = None) -> Network:
    """Make a model, `batch` samples of random input (by default as many as AutoByte's table has), and a loss."""
    torch.manual_seed(0)
    with device:
        model = _model(name)
    model.train()
    return Network(name, device, model, *_data(name, batch or table_batch(name), 0, device))


def table_batch(name: str) -> int:
    """Samples per step in AutoByte's table of models."""
    return network(name).batch_size if name in names() else 8


def differences(name: str, model: nn.Module) -> list[str]:
    """Parameters that the model and AutoByte's table of layers do not have in common, with their elements."""
    if name not in names():
        return []
    ours = {(tensor.name, tensor.numel) for tensor in load(name).tensors}
    theirs = {(full, parameter.numel()) for full, parameter in model.named_parameters()}
    return [f"{full} with {numel} elements" for full, numel in sorted(ours ^ theirs)]


def _model(name: str) -> nn.Module:
    if name == "small-cnn":
        return _small_cnn()
    if name == "small-transformer":
        return _SmallTransformer()
    if name in VISION:
        model: nn.Module = getattr(import_module("torchvision.models"), name)(weights=None)
        return model
    transformers = import_module("transformers")
    if name == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))
    large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    return transformers.BertModel(transformers.BertConfig(**(large if name == "bert-large" else {})))


def _data(name: str, batch: int, seed: int, device: torch.device) -> tuple[Any, Callable[[Any], Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    if name == "small-transformer":
        tokens = torch.randint(SYMBOLS, (batch, 32), generator=generator).to(device)
        return (tokens,), lambda out: nn.functional.cross_entropy(out.flatten(0, 1), tokens.flatten())
    if name in VISION or name == "small-cnn":
        side, classes = (32, 10) if name == "small-cnn" else (network(name).sample[-1], 1000)
        images = torch.randn(batch, 3, side, side, generator=generator).to(device)
        labels = torch.randint(classes, (batch,), generator=generator).to(device)
        return (images,), lambda out: nn.functional.cross_entropy(out, labels)
    vocabulary = 50257 if name == "gpt2" else 30522
    tokens = torch.randint(vocabulary, (batch, network(name).sample[0]), generator=generator).to(device)
    if name == "gpt2":
        return {"input_ids": tokens, "labels": tokens}, lambda out: out.loss
    return {"input_ids": tokens}, lambda out: out.last_hidden_state.mean() + out.pooler_output.mean()


SYMBOLS, WIDTH = 100, 64


def _small_cnn() -> nn.Module:
    channels = (3, 16, 32, 64)
    parts: list[nn.Module] = []
    for before, after in pairwise(channels):
        parts += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
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
        return self.out(x)
