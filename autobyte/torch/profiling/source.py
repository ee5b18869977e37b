"""What is to be profiled, as the command line names it: a function in a file, and the shapes of its inputs."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from autobyte.errors import InputError, unknown
from autobyte.torch.model.step import Loss, explained

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_INTEGERS = ("int32", "int64")


@dataclass(frozen=True)
class Made:
    """What a factory made: a model, and maybe its inputs and its loss."""

    model: nn.Module
    inputs: Any = None
    loss: Loss | None = None


def load_factory(spec: str) -> Made:
    """Call the function that `FILE.py:make_model` names.

    The function takes no arguments and returns a module, (module, inputs) or (module, inputs, loss): inputs as
    `profile_model` takes them, loss a function of what the module returns. The file may import its neighbours.

    Raises:
        InputError: no such file or function, an exception in either, or it returns something else.
    """
    file, _, function = spec.rpartition(":")
    if not file or not function:
        raise InputError(f"cannot read '{spec}'; write it like model.py:make_model")
    path = Path(file)
    if not path.is_file():
        raise InputError(f"no such file: {path}")
    with _importable(path.resolve().parent), explained(str(path)):
        module = _load(path)
    factory = _function(module, function, path)
    with _importable(path.resolve().parent), explained(spec):
        result = factory()
    return _made(result, spec)


def make_input(text: str, *, dtype: str = "float32") -> tuple[Tensor, ...]:
    """Make random inputs of given shapes; the same text makes the same inputs.

    `32,3,224,224` is one tensor of normal numbers, `int64:8,128<50257` one of whole numbers from 0 to 50256
    (tokens), and `;` stands between several. A dtype before `:` replaces `dtype`.

    >>> [tuple(t.shape) for t in make_input("8,16;int64:8<10")]
    [(8, 16), (8,)]

    Raises:
        InputError: the text cannot be read, a dtype is not known, or an integer input has no bound.
    """
    generator = torch.Generator().manual_seed(0)
    return tuple(_make_one(part.strip(), dtype, generator) for part in text.split(";"))


def _make_one(text: str, dtype: str, generator: torch.Generator) -> Tensor:
    match = re.fullmatch(r"(?:(\w+)\s*:)?\s*(\d+(?:\s*,\s*\d+)*)\s*(?:<\s*(\d+))?", text, re.ASCII)
    if match is None:
        raise InputError(f"cannot read input '{text}'; write it like 32,3,224,224 or int64:8,128<50257")
    name = match[1] or dtype
    if name not in _FLOATS + _INTEGERS:
        raise unknown("input dtype", name, _FLOATS + _INTEGERS)
    shape = tuple(int(size) for size in match[2].split(","))
    if not all(shape):
        raise InputError(f"input '{text}' has a dimension of size 0")
    if name in _FLOATS:
        if match[3]:
            raise InputError(f"input '{text}': only integers have a bound; write it like int64:8,128<50257")
        return torch.randn(shape, generator=generator).to(getattr(torch, name))
    bound = int(match[3] or 0)
    if bound < 1:
        raise InputError(f"input '{text}' needs a bound of at least 1; write it like {name}:8,128<50257")
    return torch.randint(bound, shape, generator=generator).to(getattr(torch, name))


def _load(path: Path) -> ModuleType:
    name = f"autobyte_profiled_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=SourceFileLoader(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up here
    spec.loader.exec_module(module)
    return module


def _function(module: ModuleType, name: str, path: Path) -> Any:
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise unknown(f"function in {path}", name, own)
    function = getattr(module, name)
    if not callable(function):
        raise InputError(f"'{name}' in {path} is {type(function).__name__}, not a function")
    return function


def _made(result: Any, spec: str) -> Made:
    product = Made(*result) if isinstance(result, tuple) and 1 <= len(result) <= 3 else Made(result)
    if not isinstance(product.model, nn.Module):
        got = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
        raise InputError(f"{spec} must return a module, (module, inputs) or (module, inputs, loss), got {got}")
    if product.loss is not None and not callable(product.loss):
        raise InputError(f"{spec} returned a loss that is {type(product.loss).__name__}, not a function")
    return product


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
