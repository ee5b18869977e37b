"""Files of the user's own that register tuners and policies."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from autobyte.errors import AutoByteError, InputError


def load_plugins(files: Sequence[Path]) -> None:
    """Run each file, so that what it registers is known by name.

    Raises:
        InputError: no such file, or it fails.
    """
    for file in files:
        spec = importlib.util.spec_from_file_location(file.stem, file)
        if not file.is_file() or spec is None or spec.loader is None:
            raise InputError(f"no such Python file: {file}")
        try:
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
        except AutoByteError:
            raise
        except (Exception, SystemExit) as error:
            raise InputError(f"{file} fails: {type(error).__name__}: {error}") from error
