"""Policies as files: arrays in an .npz, nothing pickled, with a JSON file beside it; and states of half a training."""

import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from autobyte.congestion.policy import Policy
from autobyte.drafts import draft_of
from autobyte.errors import FileError, InputError

SHIPPED = Path(__file__).parent / "weights"


def save_policy(policy: Policy, path: Path, *, about: Mapping[str, Any]) -> None:
    """Write a policy, and a JSON file of the same name that says what it was made from and how good it is.

    Raises:
        FileError: they cannot be written.
    """
    _write(path, policy.arrays)
    with draft_of(path.with_suffix(".json"), what="scores") as draft:
        draft.write_text(json.dumps({**about, "digest": digest(policy)}, indent=1, allow_nan=False) + "\n")


def load_policy(path: Path) -> Policy:
    """Read a policy.

    Raises:
        FileError: no such file, or none of a policy.
    """
    try:
        return Policy(_read(path))
    except InputError as error:
        raise FileError(f"weights {path} are damaged: {error}") from None


def shipped(name: str = "mocc") -> Policy:
    """The policy that comes with the package."""
    return load_policy(SHIPPED / f"{name}.npz")


def digest(policy: Policy) -> str:
    """Sixteen hexadecimal digits that change with any weight."""
    total = hashlib.sha256()
    for name in sorted(policy.arrays):
        total.update(name.encode() + policy.arrays[name].tobytes())
    return total.hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Half:
    """A training that is under way: iterations done, the model, and what Adam remembers."""

    iteration: int
    arrays: Mapping[str, Any]

    @classmethod
    def of(cls, model: nn.Module, optimizer: torch.optim.Optimizer, iteration: int) -> "Half":
        """Take a copy."""
        arrays = {f"model.{name}": values.numpy().copy() for name, values in model.state_dict().items()}
        for index, state in optimizer.state_dict()["state"].items():
            arrays |= {f"adam.{index}.{name}": values.numpy().copy() for name, values in state.items()}
        return cls(iteration, arrays)

    def put(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Put it into a model and its optimizer."""
        named = {name: torch.from_numpy(np.array(values)) for name, values in self.arrays.items()}
        model.load_state_dict({name.removeprefix("model."): v for name, v in named.items() if name.startswith("model.")})
        states: dict[int, dict[str, Any]] = {}
        for name, values in named.items():
            if name.startswith("adam."):
                _, index, key = name.split(".")
                states.setdefault(int(index), {})[key] = values
        optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def save_half(path: Path, half: Half, *, recipe: str) -> None:
    """Write a state to go on from."""
    header = json.dumps({"iteration": half.iteration, "recipe": recipe}).encode()
    _write(path, {"header": np.frombuffer(header, dtype=np.uint8), **half.arrays})


def load_half(path: Path, *, recipe: str) -> Half:
    """Read a state to go on from.

    Raises:
        FileError: it is damaged, or of another recipe.
    """
    arrays = _read(path)
    try:
        header = json.loads(arrays.pop("header").tobytes())
    except (KeyError, ValueError) as error:
        raise FileError(f"{path} is no training to go on with: {error}; remove it to start again") from None
    if header["recipe"] != recipe:
        raise FileError(f"{path} is of another training ({header['recipe']}); remove it to start this one")
    return Half(int(header["iteration"]), arrays)


def discard_half(path: Path) -> None:
    """Remove a state that nobody needs any more."""
    with suppress(FileNotFoundError):
        path.unlink()


def _write(path: Path, arrays: Mapping[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot write weights {path}: {error.strerror}") from None
    with draft_of(path, what="weights") as draft, draft.open("wb") as file:
        np.savez_compressed(file, **dict(arrays))


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise FileError(f"no weights at {path}: make them with `autobyte congestion train`") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise FileError(f"{path} holds no weights of this project, or damaged ones: {error}") from None
