"""A job whose cluster changes while it trains: what changes, and at which iteration."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, Self

import numpy as np

from autobyte.errors import FileError, InputError, unknown
from autobyte.job import Cluster, Floats
from autobyte.units import parse_rate

SCHEMA = 1


@dataclass(frozen=True)
class Change:
    """What is different from one iteration on. What is None stays as it was.

    Args:
        at: the iteration; the change takes effect when the first worker starts it.
        every: it happens again after each so many iterations.
        worker: on this worker alone; None is all of them.
        up, down: payload rates (bytes/s, or like "10Gbit"); "50%" is that part of the cluster's own rate.
        slowdown: compute times, as a multiple of the cluster's own.
        workers: the cluster's new size.
    """

    at: int
    every: int | None = None
    worker: int | None = None
    up: float | str | None = None
    down: float | str | None = None
    slowdown: float | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        for name, low in (("at", 0), ("every", 1), ("worker", 0), ("workers", 1)):
            value = getattr(self, name)
            if value is not None and (not _is_number(value, int) or value < low):
                raise InputError(f"{name} must be a whole number of at least {low}, got {value!r}")
        slowdown = self.slowdown
        if slowdown is not None and not (_is_number(slowdown, int | float) and 0 < slowdown < math.inf):
            raise InputError(f"slowdown must be a positive number, got {slowdown!r}")
        for side in ("up", "down"):
            object.__setattr__(self, side, _read_rate(getattr(self, side)))

    def last(self, iteration: int) -> int:
        """The latest time it happened up to this iteration, or -1."""
        if iteration < self.at:
            return -1
        return self.at if self.every is None else iteration - (iteration - self.at) % self.every


@dataclass(frozen=True)
class Scenario:
    """A name and its changes.

    >>> slow = Scenario("10 to 3 Gbit/s", (Change(at=20, up=3.75e8, down=3.75e8),))
    >>> slow.cluster(Cluster.uniform(8, 1.25e9), 20).up_bytes_per_s[0]
    375000000.0
    """

    name: str
    changes: tuple[Change, ...] = ()

    def cluster(self, base: Cluster, iteration: int) -> Cluster:
        """The cluster at an iteration; of changes to the same thing the latest counts.

        Raises:
            InputError: a change of a worker that there never is; one that has left, or is to come, is passed by.
        """
        most = max([base.workers, *(change.workers or 0 for change in self.changes)])
        for change in self.changes:
            if change.worker is not None and change.worker >= most:
                raise InputError(f"scenario '{self.name}': no worker {change.worker} among {most}")
        happened = [(change.last(iteration), index) for index, change in enumerate(self.changes)]
        now = [self.changes[index] for when, index in sorted(happened) if when >= 0]
        cluster = base
        for size in (change.workers for change in now if change.workers is not None):
            cluster = resized(base, size)
        up, down, slowdown = (
            list(row) for row in (cluster.up_bytes_per_s, cluster.down_bytes_per_s, cluster.slowdown)
        )
        for change in now:
            for index in range(cluster.workers):
                if change.worker not in (None, index):
                    continue
                if change.up is not None:
                    up[index] = _rate(change.up, cluster.up_bytes_per_s[index])
                if change.down is not None:
                    down[index] = _rate(change.down, cluster.down_bytes_per_s[index])
                if change.slowdown is not None:
                    slowdown[index] = cluster.slowdown[index] * change.slowdown
        return replace(cluster, up_bytes_per_s=tuple(up), down_bytes_per_s=tuple(down), slowdown=tuple(slowdown))

    def shifted(self, iterations: int) -> Self:
        """The same, all of it later."""
        return replace(self, changes=tuple(replace(change, at=change.at + iterations) for change in self.changes))

    def changes_between(self, first: int, last: int) -> list[int]:
        """The iterations in [first, last) at which something happens."""
        return [i for i in range(first, last) if any(change.last(i) == i for change in self.changes)]

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a scenario file (TOML).

        Raises:
            FileError: the file cannot be read, or is of a newer schema.
            InputError: a key or value in it cannot be used.
        """
        try:
            data = tomllib.loads(Path(path).read_text())
        except (OSError, ValueError, RecursionError) as error:  # of text, TOML, numbers that are too long, nesting
            raise FileError(f"cannot read scenario {path}: {getattr(error, 'strerror', None) or error}") from None
        if data.get("schema", SCHEMA) != SCHEMA:
            raise FileError(f"scenario {path} has schema {data['schema']}; this version reads {SCHEMA}")
        try:
            _check_keys(data, ("schema", "name", "change"))
            entries = data.get("change", [])
            if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
                raise InputError("every change is a table of its own, under [[change]]")
            changes = tuple(_change(entry) for entry in entries)
        except InputError as error:
            raise InputError(f"scenario {path}: {error}") from None
        if not changes:
            raise InputError(f"scenario {path} changes nothing: it needs at least one [[change]]")
        return cls(str(data.get("name", Path(path).stem)), changes)


STEADY = Scenario("steady")


@dataclass(frozen=True, eq=False)
class Timeline:
    """A run of iterations, spelled out: rates and slowdown of every worker at each, shape [iterations, workers]."""

    up_bytes_per_s: Floats
    down_bytes_per_s: Floats
    slowdown: Floats

    @classmethod
    def of(cls, base: Cluster, scenario: Scenario, *, first: int, iterations: int) -> Self:
        """Spell a scenario out.

        Raises:
            InputError: the number of workers changes before the last iteration: such a run is simulated in pieces.
        """
        if not scenario.changes:
            up, down, slowdown = np.broadcast_to(base.table[:, None], (3, iterations, base.workers))
            return cls(up, down, slowdown)
        clusters = [scenario.cluster(base, first + k) for k in range(iterations)]
        if clusters[-1].workers != clusters[0].workers:
            clusters[-1] = clusters[-2]  # the next piece begins with it
        if len({cluster.workers for cluster in clusters}) > 1:
            raise InputError(f"scenario '{scenario.name}' changes the number of workers within one simulation")
        return cls(
            np.array([cluster.up_bytes_per_s for cluster in clusters]),
            np.array([cluster.down_bytes_per_s for cluster in clusters]),
            np.array([cluster.slowdown for cluster in clusters]),
        )


_KEYS = ("at", "every", "worker", "bandwidth", "up", "down", "slowdown", "workers")


def _change(entry: Mapping[str, Any]) -> Change:
    _check_keys(entry, _KEYS)
    if "at" not in entry:
        raise InputError("a [[change]] needs `at`, the iteration at which it happens")
    rates = {side: entry.get(side, entry.get("bandwidth")) for side in ("up", "down")}
    rest = {key: entry[key] for key in ("at", "every", "worker", "slowdown", "workers") if key in entry}
    change = Change(up=rates["up"], down=rates["down"], **rest)
    if not entry.keys() & {"bandwidth", "up", "down", "slowdown", "workers"}:
        raise InputError(f"the [[change]] at {change.at} changes nothing: give it a bandwidth, slowdown or workers")
    return change


def _check_keys(table: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            raise unknown("key", key, known)


def _is_number(value: object, kind: type | UnionType) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _read_rate(rate: float | str | None) -> float | str | None:
    """A rate in bytes per second; a part, like "50%", as it is."""
    if rate is None:
        return None
    if not isinstance(rate, str) or not rate.strip().endswith("%"):
        return parse_rate(rate)
    try:
        part = float(rate.strip().removesuffix("%"))
    except ValueError:
        raise InputError(f"cannot read bandwidth '{rate}'; write it like 10Gbit or 50%") from None
    if not part > 0:
        raise InputError(f"bandwidth must be positive, got '{rate}'")
    return rate


def _rate(rate: float | str, own: float) -> float:
    return float(rate.strip().removesuffix("%")) / 100 * own if isinstance(rate, str) else rate


def resized(base: Cluster, workers: int) -> Cluster:
    """A cluster of another size; new workers are like the last one, and servers stay on every host if they were."""
    if workers == base.workers:
        return base

    def stretch(values: tuple[float, ...]) -> tuple[float, ...]:
        return (values + values[-1:] * workers)[:workers]

    return replace(
        base,
        workers=workers,
        servers=workers if base.servers == base.workers else min(base.servers, workers),
        up_bytes_per_s=stretch(base.up_bytes_per_s),
        down_bytes_per_s=stretch(base.down_bytes_per_s),
        slowdown=stretch(base.slowdown),
    )
