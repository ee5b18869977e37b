"""Policies as files: arrays in an .npz, nothing pickled, with a JSON file of provenance and scores beside it."""

import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from autobyte.congestion.objectives import Objective
from autobyte.congestion.policy import RatePolicy
from autobyte.drafts import draft_of
from autobyte.errors import FileError, InputError

SHIPPED = Path(__file__).parent / "weights"


def save_policy(policy: RatePolicy, path: Path, *, about: Mapping[str, Any]) -> None:
    """Write a policy, and a JSON file of the same name that says what it was made from and how good it is.

    Raises:
        FileError: they cannot be written.
    """
    write_arrays(path, policy.arrays)
    with draft_of(path.with_suffix(".json"), what="scores") as draft:
        draft.write_text(json.dumps({**about, "digest": digest(policy)}, indent=1, allow_nan=False) + "\n")


def load_policy(path: Path) -> RatePolicy:
    """Read a policy.

    Raises:
        FileError: no such file, or none of a policy.
    """
    try:
        return RatePolicy(read_arrays(path))
    except InputError as error:
        raise FileError(f"weights {path} are damaged: {error}") from None


def adapted_to(path: Path) -> tuple[Objective, ...]:
    """The objectives that weights were adapted to before, in order, from the JSON file beside them; none without one.

    Raises:
        FileError: that file is damaged.
    """
    about = path.with_suffix(".json")
    if not about.exists():
        return ()
    try:
        return tuple(Objective(*weights) for weights in json.loads(about.read_text()).get("adapted_to", []))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise FileError(
            f"cannot tell from {about} what its weights were adapted to: {error}; make it again"
        ) from None


def shipped(name: str = "mocc") -> RatePolicy:
    """The policy that comes with the package."""
    return load_policy(SHIPPED / f"{name}.npz")


def digest(policy: RatePolicy) -> str:
    """Sixteen hexadecimal digits that change with any weight."""
    total = hashlib.sha256()
    for name in sorted(policy.arrays):
        total.update(name.encode() + policy.arrays[name].tobytes())
    return total.hexdigest()[:16]


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays, all or nothing.

    Raises:
        FileError: they cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot write weights {path}: {error.strerror}") from None
    with draft_of(path, what="weights") as draft, draft.open("wb") as file:
        np.savez_compressed(file, **dict(arrays))


def read_arrays(path: Path) -> dict[str, Any]:
    """Read arrays; nothing is unpickled.

    Raises:
        FileError: no such file, or another kind of file.
    """
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise FileError(f"no weights at {path}: make them with `autobyte congestion train`") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise FileError(f"{path} holds no weights of this project, or damaged ones: {error}") from None
