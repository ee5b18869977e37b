"""Folders and files that commands write, and what they refuse to overwrite."""

from pathlib import Path
from typing import Any


def open_folder(folder: Path) -> Path:
    """Make the folder, or take one that a comparison has begun in.

    Raises:
        FileError: it holds something else, or cannot be made.
    """
    from autobyte.errors import FileError
    from autobyte.results import DATABASE

    try:
        folder.mkdir(parents=True, exist_ok=True)
        strange = sorted(file.name for file in folder.iterdir() if not (folder / DATABASE).exists())
    except OSError as error:
        raise FileError(f"cannot use {folder}: {error.strerror}") from None
    if strange:
        raise FileError(f"{folder} holds something else ({strange[0]}); choose another folder")
    return folder


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a file of ours, whole or not at all; no other file is touched."""
    import json
    from tempfile import NamedTemporaryFile

    from autobyte.errors import FileError

    draft = None
    try:
        with NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
        ) as file:
            draft = Path(file.name)
            file.write(json.dumps(data, indent=1) + "\n")
        draft.chmod(0o644)  # a draft is made readable for its owner alone
        draft.replace(path)
    except OSError as error:
        if draft is not None:
            draft.unlink(missing_ok=True)
        raise FileError(f"cannot write {path}: {error.strerror}") from None
