"""A training that is under way, as a file: a training that was killed goes on from it."""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from autobyte.congestion.stored import read_arrays, write_arrays
from autobyte.errors import FileError


@dataclass(frozen=True, eq=False)
class HalfTraining:
    """A training that is under way.

    Args:
        iteration: how many are done.
        arrays: the model, and what Adam remembers.
        reward: mean of the last iteration.
        cpu_s: CPU time so far, from the first start on.
        seconds: time so far, without what passed while nothing ran.
    """

    iteration: int
    arrays: Mapping[str, Any]
    reward: float = math.nan
    cpu_s: float = 0.0
    seconds: float = 0.0

    @classmethod
    def of(
        cls,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        iteration: int,
        *,
        reward: float = math.nan,
        cpu_s: float = 0.0,
        seconds: float = 0.0,
    ) -> "HalfTraining":
        """Take a copy."""
        arrays = {f"model.{name}": values.numpy().copy() for name, values in model.state_dict().items()}
        for index, state in optimizer.state_dict()["state"].items():
            arrays |= {f"adam.{index}.{name}": values.numpy().copy() for name, values in state.items()}
        return cls(iteration, arrays, reward, cpu_s, seconds)

    def put(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Put it into a model and its optimizer."""
        named = {name: torch.from_numpy(np.array(values)) for name, values in self.arrays.items()}
        model.load_state_dict(
            {name.removeprefix("model."): v for name, v in named.items() if name.startswith("model.")}
        )
        states: dict[int, dict[str, Any]] = {}
        for name, values in named.items():
            if name.startswith("adam."):
                _, index, key = name.split(".")
                states.setdefault(int(index), {})[key] = values
        optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def save_half(path: Path, half: HalfTraining, *, recipe: str) -> None:
    """Write a state to go on from."""
    numbers = {"iteration": half.iteration, "reward": half.reward, "cpu_s": half.cpu_s, "seconds": half.seconds}
    header = json.dumps(numbers | {"recipe": recipe}).encode()
    write_arrays(path, {"header": np.frombuffer(header, dtype=np.uint8), **half.arrays})


def load_half(path: Path, *, recipe: str) -> HalfTraining:
    """Read a state to go on from.

    Raises:
        FileError: it is damaged, or of another recipe.
    """
    arrays = read_arrays(path)
    try:
        header = json.loads(arrays.pop("header").tobytes())
    except (KeyError, ValueError) as error:
        raise FileError(f"{path} is no training to go on with: {error}; remove it to start again") from None
    if header["recipe"] != recipe:
        raise FileError(f"{path} is of another training ({header['recipe']}); remove it to start this one")
    try:
        return HalfTraining(header["iteration"], arrays, header["reward"], header["cpu_s"], header["seconds"])
    except KeyError as error:
        raise FileError(f"{path} is of an older version: it has no {error}; remove it to start again") from None


def discard_half(path: Path) -> None:
    """Remove a state that nobody needs any more."""
    with suppress(FileNotFoundError):
        path.unlink()
