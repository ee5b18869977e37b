"""Which versions of the libraries were tried."""

import logging
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


def check_version(package: str) -> None:
    """Look at the installed version of a library, once per process.

    Raises:
        InputError: it is older than what was tried; a newer one is a warning in the log.
    """
    found, (oldest, newest) = version(package), TRIED[package]
    if _minor(found) < _minor(oldest):
        raise InputError(f"{package} {found} is too old, {oldest} works: pip install --upgrade {package}")
    if _minor(found) > _minor(newest) and package not in _warned:
        _warned.add(package)
        log.warning(
            "%s %s was never tried with AutoByte, %s was: compare the first losses with those of DDP",
            package,
            found,
            newest,
        )


def _minor(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])
