"""Tuners that never change their mind: what a system ships with."""

from autobyte.config import P3_DEFAULT, Config, Space
from autobyte.job import Model
from autobyte.trace import Measurement
from autobyte.tuners.base import Tuner


class Default(Tuner):
    """The space's default for good: for ByteScheduler, 4 MB and 16 MB.

    Reference: AutoByte, Table I, "Default"; ByteScheduler's released code (bytecore.py).
    """

    def __init__(self, space: Space, *, model: Model, seed: int = 0, budget: int | None = None) -> None:
        self._config = space.default

    def ask(self) -> Config:
        """The same as ever."""
        return self._config

    def tell(self, measurement: Measurement) -> None:
        """Nothing to learn."""


class FixedP3(Tuner):
    """P3's slices of 160 KB, one at a time, brought into the space if need be.

    Reference: AutoByte, sec. II-E.
    """

    def __init__(self, space: Space, *, model: Model, seed: int = 0, budget: int | None = None) -> None:
        self._config = space.at(space.locate(P3_DEFAULT))

    def ask(self) -> Config:
        """The same as ever."""
        return self._config

    def tell(self, measurement: Measurement) -> None:
        """Nothing to learn."""
