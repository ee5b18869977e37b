"""A profile: a model's layers with their times, measured or worked out, as a JSON file with a schema version."""

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autobyte.drafts import draft_of
from autobyte.errors import FileError
from autobyte.job import LARGEST, Layer, Model, Tensor

SCHEMA = 1

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _ProfileRecord(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TensorEntry(_ProfileRecord):
    """A gradient of a layer."""

    name: str
    numel: Annotated[int, Field(ge=0, le=LARGEST)]
    dtype: Literal["float16", "bfloat16", "float32", "float64"] = "float32"


class LayerEntry(_ProfileRecord):
    """A step of the forward pass; times in seconds."""

    name: str
    forward_s: Seconds
    backward_s: Seconds
    tensors: list[TensorEntry] = []


class Profile(_ProfileRecord):
    """The file. `provenance` says how the times came about, on what, and with which versions."""

    kind: Literal["autobyte-profile"] = "autobyte-profile"
    schema_version: Annotated[Literal[1], Field(alias="schema")] = 1
    name: str
    batch_size: Annotated[int, Field(ge=1, le=LARGEST)]
    provenance: dict[str, str | float | int]
    layers: Annotated[list[LayerEntry], Field(min_length=1)]

    def model(self) -> Model:
        """The profiled model."""
        layers = [
            Layer(
                entry.name,
                tuple(Tensor(t.name, t.numel, t.dtype, index) for t in entry.tensors),
                entry.forward_s,
                entry.backward_s,
            )
            for index, entry in enumerate(self.layers)
        ]
        return Model(self.name, tuple(layers), self.batch_size)

    @classmethod
    def of(cls, model: Model, *, provenance: dict[str, str | float | int]) -> "Profile":
        """The profile of a model."""
        layers = [
            LayerEntry(
                name=layer.name,
                forward_s=layer.forward_s,
                backward_s=layer.backward_s,
                tensors=[TensorEntry(name=t.name, numel=t.numel, dtype=t.dtype) for t in layer.tensors],  # type: ignore[arg-type]
            )
            for layer in model.layers
        ]
        return cls(name=model.name, batch_size=model.batch_size, provenance=provenance, layers=layers)

    def save(self, path: Path | str, *, replace: bool = False) -> None:
        """Write the file, whole or not at all.

        Raises:
            FileError: there is a file already and `replace` is not set, or the disk does not take it.
        """
        path = Path(path)
        if path.exists() and not replace:
            raise FileError(f"{path} exists already; choose another name or say --force")
        text = json.dumps(self.model_dump(by_alias=True), indent=1) + "\n"
        with draft_of(path) as draft:
            draft.write_text(text)

    @classmethod
    def load(cls, path: Path | str) -> "Profile":
        """Read a profile.

        Raises:
            FileError: the file cannot be read, is no profile, is of a newer schema, or says something impossible.
        """
        try:
            data = json.loads(Path(path).read_text())
        except OSError as error:
            raise FileError(f"cannot read profile {path}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise FileError(f"{path} is not a profile: {error}") from None
        if not isinstance(data, dict) or data.get("kind") != "autobyte-profile":
            raise FileError(f"{path} is not a profile: make one with `autobyte profile`")
        if data.get("schema") != SCHEMA:
            raise FileError(f"profile {path} has schema {data.get('schema')}; this version reads {SCHEMA}")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise FileError(f"profile {path}: {place}: {first['msg']} (got {first['input']!r:.60})") from None
