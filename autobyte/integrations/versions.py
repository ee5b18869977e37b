"""Which versions of the libraries were tried."""

import logging
from collections.abc import Mapping
from importlib.metadata import version

from autobyte.errors import InputError

log = logging.getLogger("autobyte")

#: The oldest and the newest minor version of each library that the tests ran with.
TRIED = {
    "accelerate": ("1.14", "1.15"),
    "transformers": ("5.23", "5.24"),
    "lightning": ("2.5", "2.6"),
}

_warned: set[str] = set()


def check_version(
    package: str, *, found: str | None = None, tried: Mapping[str, tuple[str, str]] | None = None
) -> None:
    """Look at the installed version of a library, once per process.

    Args:
        package: the library.
        found: its version; None is what is installed under that name.
        tried: oldest and newest version by library; None is the table here.

    Raises:
        InputError: it is older than what was tried; a newer one is a warning in the log.
    """
    found, (oldest, newest) = found or version(package), (tried or TRIED)[package]
    if _minor(found) < _minor(oldest):
        raise InputError(f"{package} {found} is too old, {oldest} works: pip install --upgrade {package}")
    if _minor(found) > _minor(newest) and package not in _warned:
        _warned.add(package)
        log.warning(
            "%s %s was never tried with AutoByte, %s was: "
            "compare the first losses with those of a training without AutoByte",
            package,
            found,
            newest,
        )


def _minor(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])
