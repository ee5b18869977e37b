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

    from autobyte.drafts import draft_of

    with draft_of(path) as draft:
        draft.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def write_outcome(outcome: dict[str, Any], folder: Path) -> None:
    """Write what a comparison found, and its picture, into the folder of the trials."""
    from autobyte.comparison.plot import draw_comparison

    write_json(folder / "compare.json", outcome)
    draw_comparison(outcome, folder / "compare.png")
