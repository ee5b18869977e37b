"""A data set on disk: a folder of parts, each written whole; a killed collection makes those that are missing."""

import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from autobyte.drafts import draft_of
from autobyte.errors import FileError, InputError, unknown
from autobyte.features.schema import VERSION
from autobyte.job import Model
from autobyte.nets import dataset
from autobyte.nets.dataset import Groups, Simulate, Steady

PER_PART = {"train": 10, "judged": 4, "judged-unseen": 4}  # environments in a part: seconds of work
PROTOCOLS = ("wider", "published")


@dataclass(frozen=True)
class Order:
    """What is to be collected.

    Args:
        environments: to learn from, every second one with a model of its own; 60 windows of 10 iterations each.
        judged: jobs with the truth of the whole grid, so many of trained-on and so many of held-out models.
        seed: of all that is drawn.
        models, unseen: digests of the models that are drawn from.
        protocol: of the environments: the paper's as `published`, or `wider`.

    Raises:
        InputError: a number that cannot be, or an unknown protocol.
    """

    environments: int
    judged: int
    seed: int
    models: str
    unseen: str
    protocol: str = PROTOCOLS[0]

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise unknown("protocol", self.protocol, PROTOCOLS)
        for name, low in (("environments", 2), ("judged", 1), ("seed", 0)):
            if getattr(self, name) < low:
                raise InputError(f"{name} must be at least {low}, got {getattr(self, name)}")

    @property
    def parts(self) -> "list[Part]":
        """Pieces of work, each independent of all others."""
        counts = {"train": self.environments, "judged": self.judged, "judged-unseen": self.judged}
        return [
            Part(kind, first, min(first + PER_PART[kind], count), self.seed, self.protocol)
            for kind, count in counts.items()
            for first in range(0, count, PER_PART[kind])
        ]

    def to_json(self) -> dict[str, Any]:
        """The order, and the schema of what it makes."""
        return asdict(self) | {"features": VERSION, "windows": dataset.WINDOWS, "iterations_per_window": 10}


@dataclass(frozen=True)
class Part:
    """Environments [first, last) of a kind."""

    kind: str
    first: int
    last: int
    seed: int
    protocol: str = PROTOCOLS[0]

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.kind}-{self.first:05d}.npz"

    def make(self, models: Mapping[str, Model], simulate: Simulate, steady: Steady) -> Groups:
        """Do the work.

        Args:
            models: those of its kind.
            simulate: shows a window.
            steady: tells the truth.
        """
        return Groups.join(self._one(number, models, simulate, steady) for number in range(self.first, self.last))

    def _one(self, number: int, models: Mapping[str, Model], simulate: Simulate, steady: Steady) -> Groups:
        if self.kind == "train":
            kind = "published" if self.protocol == "published" else ("paper", "varied")[number % 2]
            return dataset.episode(dataset.draw(number, models, seed=self.seed, kind=kind), simulate)
        return dataset.judged(dataset.draw(number, models, seed=self.seed, kind=self.kind), simulate, steady)


class Folder:
    """The parts of one order, and measured rows that were added."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, order: Order) -> None:
        """Make the folder, or go on in one of the same order.

        Raises:
            FileError: it holds another order or something else, or cannot be made.
        """
        about, asked = self.path / "dataset.json", order.to_json()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not about.exists() and any(self.path.iterdir()):
                raise FileError(f"{self.path} holds something else; choose another folder")
            if about.exists():
                known = {"protocol": PROTOCOLS[0]} | json.loads(about.read_text())["order"]
                other = [key for key in asked if known.get(key) != asked[key]]
                if other:
                    was, now = known.get(other[0]), asked[other[0]]
                    raise FileError(f"{self.path} has {other[0]} {was}, asked for was {now}; choose another folder")
            else:
                self.describe({"order": asked})
        except FileError:
            raise
        except OSError as error:
            raise FileError(f"cannot use {self.path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise FileError(f"{about} is damaged: {error}") from None

    def missing(self, order: Order) -> list[Part]:
        """What is still to be made."""
        return [part for part in order.parts if not (self.path / part.name).exists()]

    def keep(self, name: str, groups: Groups) -> None:
        """Write a part, whole or not at all."""
        with draft_of(self.path / name) as draft, draft.open("wb") as file:
            np.savez_compressed(file, **{f.name: getattr(groups, f.name) for f in fields(groups)})

    def describe(self, about: Mapping[str, Any]) -> None:
        """Write what the parts are, and how they came about."""
        with draft_of(self.path / "dataset.json") as draft:
            draft.write_text(json.dumps(about, indent=1) + "\n")

    @property
    def about(self) -> dict[str, Any]:
        """What `describe` wrote.

        Raises:
            FileError: this is no data set, or one of other features.
        """
        try:
            known: dict[str, Any] = json.loads((self.path / "dataset.json").read_text())
            schema = known["order"]["features"]
        except OSError:
            raise FileError(
                f"{self.path} is no data set; make one with `autobyte collect --out {self.path}`"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise FileError(f"{self.path / 'dataset.json'} is damaged: {error}") from None
        if schema != VERSION:
            raise FileError(f"{self.path} has features of schema {schema}; this version has {VERSION}: collect anew")
        return known

    def load(self, *kinds: str) -> Groups:
        """The parts of some kinds, joined: `train`, `measured`, `judged`, `judged-unseen`.

        Raises:
            FileError: the collection is not finished, or a part is damaged.
        """
        about = self.about["order"]
        order = Order(**{f.name: about[f.name] for f in fields(Order) if f.name in about})
        missing = self.missing(order)
        if missing:
            raise FileError(f"{self.path} misses {len(missing)} parts; run the same `autobyte collect` again")
        names = [part.name for part in order.parts if part.kind in kinds]
        if "measured" in kinds:
            names += sorted(file.name for file in self.path.glob("measured-*.npz"))
        return Groups.join(self._read(name) for name in names)

    def _read(self, name: str) -> Groups:
        try:
            with (self.path / name).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                return Groups(**{field.name: file[field.name] for field in fields(Groups)})
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise FileError(f"{self.path / name} is damaged: {error}; delete it and collect again") from None
