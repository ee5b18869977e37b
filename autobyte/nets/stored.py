"""Networks as files: arrays and a JSON header in one .npz, nothing pickled; and those that ship with the package."""

import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autobyte.errors import AutoByteError, FileError
from autobyte.features.schema import VERSION
from autobyte.nets.metanet import VARIANTS, Array, MetaNet, Scale

SHIPPED = Path(__file__).parent / "weights"
GROUPS = ("layer", "bandwidth", "static", "candidate")


@dataclass(frozen=True, eq=False)
class Replay:
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


def save(net: MetaNet, replay: Replay, path: Path, *, about: Mapping[str, Any]) -> None:
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
        fresh = path.with_suffix(".new.npz")
        np.savez_compressed(fresh, **arrays)
        fresh.replace(path)
        path.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")
    except OSError as error:
        raise FileError(f"cannot write weights {path}: {error.strerror}") from None


def load(path: Path) -> tuple[MetaNet, Replay]:
    """Read a network.

    Raises:
        FileError: no such file, no weights, or weights of another schema.
        MissingExtra: Keras is not installed.
    """
    arrays, header = _read(path)
    if header["schema"] != VERSION:
        raise FileError(
            f"weights {path} are for features of schema {header['schema']}; this version has {VERSION}: fit them anew"
        )
    variant = VARIANTS.get(header["variant"])
    if variant is None or json.loads(json.dumps(asdict(variant.choice))) != header["choice"]:
        raise FileError(f"weights {path} are for other columns than '{header['variant']}' takes in: fit them anew")
    try:
        scale = Scale(
            {name: arrays[f"mean_{name}"] for name in GROUPS},
            {name: arrays[f"deviation_{name}"] for name in GROUPS},
            (float(header["target"][0]), float(header["target"][1])),
        )
        net = MetaNet(variant.name, scale)
        net.weights = [arrays[name] for name in sorted(arrays) if name.startswith("weight_")]
        names = ("state", "candidate", "target", "weight")
        return net, Replay(**{name: arrays[f"replay_{name}"].astype(np.float32) for name in names})
    except (KeyError, AutoByteError) as error:
        if isinstance(error, AutoByteError) and not isinstance(error, ValueError):
            raise
        raise FileError(f"weights {path} are damaged: {error}") from None


def shipped(variant: str) -> tuple[MetaNet, Replay]:
    """The network that comes with the package."""
    return load(SHIPPED / f"{variant}.npz")


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
