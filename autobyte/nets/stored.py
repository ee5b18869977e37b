"""Networks as files: arrays and a JSON header in one .npz, nothing pickled; and those that ship with the package."""

import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autobyte.drafts import draft_of
from autobyte.errors import FileError, InputError
from autobyte.features.schema import VERSION
from autobyte.nets.forward import Forward
from autobyte.nets.metanet import VARIANTS, Array, MetaNet, Scale

SHIPPED = Path(__file__).parent / "weights"
GROUPS = ("layer", "bandwidth", "static", "candidate")


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """Offline samples that adaptation mixes in, so that what was known is not forgotten; as the head takes them.

    Args:
        state: encoded, shape [M, .].
        candidate: scaled, shape [M, K, .].
        target: shape [M, K].
        weight: 0 where there is no sample, shape [M, K].
    """

    state: Array
    candidate: Array
    target: Array
    weight: Array

    def __len__(self) -> int:
        return len(self.state)


def save(net: MetaNet, replay: Rehearsal, path: Path, *, about: Mapping[str, Any]) -> None:
    """Write a network, and a JSON file of the same name that says what it was made from and how good it is.

    Raises:
        FileError: they cannot be written.
    """
    choice, scale = asdict(net.variant.choice), net.scale
    header = {"schema": VERSION, "variant": net.variant.name, "choice": choice, "target": scale.target}
    arrays: dict[str, Any] = {"header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)}
    arrays |= {f"weight_{index:03d}": values for index, values in enumerate(net.weights)}
    arrays |= {f"mean_{name}": scale.mean[name] for name in GROUPS}
    arrays |= {f"deviation_{name}": scale.deviation[name] for name in GROUPS}
    arrays |= {f"replay_{name}": np.float16(values) for name, values in vars(replay).items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot write weights {path}: {error.strerror}") from None
    with draft_of(path, what="weights") as draft, draft.open("wb") as file:
        np.savez_compressed(file, **arrays)
    with draft_of(path.with_suffix(".json")) as draft:
        draft.write_text(json.dumps(about, indent=1) + "\n")


def load(path: Path) -> tuple[MetaNet, Rehearsal]:
    """Read a network, to fit it on.

    Raises:
        FileError: no such file, no weights, or weights of another schema.
        MissingExtra: Keras is not installed.
    """
    variant, scale, weights, replay = _opened(path)
    net = MetaNet(variant, scale)
    try:
        net.weights = weights
    except InputError as error:
        raise FileError(f"weights {path} are damaged: {error}") from None
    return net, replay


def forward(path: Path) -> tuple[Forward, Rehearsal]:
    """Read a network, to predict with; needs no Keras.

    Raises:
        FileError: no such file, no weights, or weights of another schema.
    """
    variant, scale, weights, replay = _opened(path)
    try:
        return Forward(variant, scale, weights), replay
    except InputError as error:
        raise FileError(f"weights {path} are damaged: {error}") from None


def network(variant: str, path: Path | str | None = None) -> tuple[Forward, Rehearsal]:
    """The network of a variant that comes with the package, or one's own.

    Raises:
        FileError: no such file, no weights, or weights of another variant or schema.
    """
    path = SHIPPED / f"{variant}.npz" if path is None else Path(path)
    net, replay = forward(path)
    if net.variant.name != variant:
        raise FileError(f"weights {path} are of the variant '{net.variant.name}', not of '{variant}'")
    return net, replay


def _opened(path: Path) -> tuple[str, Scale, list[Array], Rehearsal]:
    """Variant, scales, weights and replayed samples of a file that fits this version."""
    arrays, header = _read(path)
    try:
        schema, name, choice, target = (header[key] for key in ("schema", "variant", "choice", "target"))
        if schema != VERSION:
            raise FileError(
                f"weights {path} are for features of schema {schema}; this version has {VERSION}: fit them anew"
            )
        variant = VARIANTS.get(name)
        if variant is None or json.loads(json.dumps(asdict(variant.choice))) != choice:
            raise FileError(f"weights {path} are for other columns than '{name}' takes in: fit them anew")
        scale = Scale(
            {group: arrays[f"mean_{group}"] for group in GROUPS},
            {group: arrays[f"deviation_{group}"] for group in GROUPS},
            (float(target[0]), float(target[1])),
        )
        weights = [arrays[key] for key in sorted(arrays) if key.startswith("weight_")]
        parts = {
            key: arrays[f"replay_{key}"].astype(np.float32) for key in ("state", "candidate", "target", "weight")
        }
    except (KeyError, TypeError, IndexError) as error:
        raise FileError(f"weights {path} are damaged: {error}") from None
    return name, scale, weights, Rehearsal(**parts)


def about(path: Path) -> dict[str, Any]:
    """What stands beside the weights: provenance and scores; nothing where nothing does."""
    try:
        known: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
    except (OSError, ValueError):
        return {}
    return known


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return arrays, json.loads(arrays.pop("header").tobytes())
    except FileNotFoundError:
        raise FileError(f"no weights at {path}: make them with `autobyte fit`") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise FileError(f"{path} holds no weights of this project, or damaged ones: {error}") from None
