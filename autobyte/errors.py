"""What can go wrong, as a tree; every message names the thing, the value and the way out.

    AutoByteError
    ├── InputError     the caller's mistake (also a ValueError)
    ├── MissingExtra   an optional package is not installed (also an ImportError)
    └── FileError      a file that cannot be read, or that must not be overwritten (also an OSError)

The command line prints any of these as one line and ends with status 2.
"""

import difflib
import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType


class AutoByteError(Exception):
    """Everything this package raises on purpose."""


class InputError(AutoByteError, ValueError):
    """A value that cannot be used."""


class MissingExtra(AutoByteError, ImportError):  # noqa: N818 - the name says what to do
    """An optional package is needed and absent."""


class FileError(AutoByteError, OSError):
    """A file that is corrupt, too new, or in the way."""


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Make the error for a name that is not in a table, with the nearest known name.

    >>> str(unknown("tuner", "gird", ["default", "grid"]))
    "unknown tuner 'gird'; did you mean 'grid'? (known: default, grid)"
    """
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return InputError(f"unknown {kind} '{name}'{hint} (known: {', '.join(names) or 'none'})")


def require(module: str, *, extra: str, what: str) -> ModuleType:
    """Import an optional package.

    Raises:
        MissingExtra: it is not installed; the message is the `pip install` that brings it.
    """
    with needs(extra, what=what):
        return importlib.import_module(module)


@contextmanager
def needs(extra: str, *, what: str) -> Iterator[None]:
    """Import optional packages inside this block.

    >>> with needs("tune", what="the Bayesian search"):
    ...     import skopt

    Args:
        extra: the extra of AutoByte that brings them.
        what: cannot be done without them.

    Raises:
        MissingExtra: one is not installed; the message is the `pip install` that brings it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{what} needs {error.name}: pip install 'autobyte[{extra}]'") from error
