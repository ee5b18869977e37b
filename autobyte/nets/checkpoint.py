"""Where a fit is, on disk after every epoch: a killed one goes on from there."""

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autobyte.drafts import draft_of
from autobyte.errors import FileError


class Checkpoint:
    """Lists of arrays by name, and a few numbers; of one fit alone.

    Args:
        path: of the file; None keeps nothing.
        fit: what decides the fit, as plain JSON.
    """

    def __init__(self, path: Path | None, fit: Mapping[str, Any]) -> None:
        self._path = path
        self._fit = json.dumps(fit, sort_keys=True)

    def keep(self, numbers: Mapping[str, float], **lists: Sequence[Any]) -> None:
        """Write where the fit is, whole or not at all."""
        if self._path is None:
            return
        arrays: dict[str, Any] = {
            f"{name}_{i:04d}": np.asarray(v) for name, values in lists.items() for i, v in enumerate(values)
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot write {self._path}: {error.strerror}") from None
        with draft_of(self._path) as draft, draft.open("wb") as file:
            np.savez(file, fit=np.array(self._fit), numbers=np.array(json.dumps(dict(numbers))), **arrays)

    def find(self) -> tuple[dict[str, float], dict[str, list[Any]]] | None:
        """Where the fit was when it was killed; None if it is to begin.

        Raises:
            FileError: the file is another fit's, or damaged.
        """
        if self._path is None or not self._path.exists():
            return None
        try:
            with self._path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            fit, numbers = str(arrays.pop("fit")), json.loads(str(arrays.pop("numbers")))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise FileError(f"checkpoint {self._path} is damaged: {error}; delete it to begin anew") from None
        if fit != self._fit:
            raise FileError(f"checkpoint {self._path} is of another fit; delete it to begin anew")
        lists: dict[str, list[Any]] = {}
        for name in sorted(arrays):
            lists.setdefault(name.rpartition("_")[0], []).append(arrays[name])
        return numbers, lists

    def drop(self) -> None:
        """Forget it: the fit is over."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
