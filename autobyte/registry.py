"""A table of names and the classes they stand for: built in, registered, or brought by another package."""

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Generic, TypeVar

from autobyte.errors import AutoByteError, InputError, MissingExtra, unknown

T = TypeVar("T")


class Registry(Generic[T]):
    """Look classes up by name; a class is imported when it is asked for, not before.

    Args:
        kind: what the names are names of, for messages.
        builtin: name to "module:Class".
        group: entry-point group in which other packages name theirs.
    """

    def __init__(self, kind: str, builtin: Mapping[str, str], *, group: str) -> None:
        self._kind = kind
        self._places = dict(builtin)
        self._group = group
        self._classes: dict[str, type[T]] = {}

    def names(self) -> list[str]:
        """Every name, sorted."""
        return sorted({*self._places, *self._classes, *(point.name for point in entry_points(group=self._group))})

    def __contains__(self, name: str) -> bool:
        return name in self._places or name in self.names()  # other packages are looked through only if need be

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Decorate a class to add it under a name.

        Raises:
            InputError: the name is another class's.
        """

        def add(cls: type[T]) -> type[T]:
            known = self._classes.get(name)
            if name in self._places or (known and _place(known) != _place(cls)):
                raise InputError(f"{self._kind} '{name}' exists already; choose another name")
            self._classes[name] = cls
            return cls

        return add

    def __getitem__(self, name: str) -> type[T]:
        if name in self._classes:
            return self._classes[name]
        places = {point.name: point.value for point in entry_points(group=self._group)} | self._places
        if name not in places:
            raise unknown(self._kind, name, self.names())
        module, _, attribute = places[name].partition(":")
        try:
            self._classes[name] = getattr(importlib.import_module(module), attribute)
        except MissingExtra:
            raise
        except (ImportError, AttributeError) as error:
            raise InputError(f"{self._kind} '{name}' cannot be loaded from {places[name]}: {error}") from error
        return self._classes[name]


def load_plugins(files: Sequence[Path]) -> None:
    """Run each file of the user's own, so that what it registers is known by name.

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


def _place(cls: type) -> tuple[str, str]:
    """Where a class is written: a module that is loaded again brings the same one again."""
    return cls.__module__, cls.__qualname__
