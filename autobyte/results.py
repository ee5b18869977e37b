"""Every trial, kept in SQLite: a killed run loses at most the one in flight, and any can be repeated."""

import io
import json
import platform
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from autobyte.config import Config
from autobyte.errors import FileError
from autobyte.trace import Measurement, RuntimeStats

SCHEMA = 1
DATABASE, MODEL = "results.sqlite", "model.json"  # in a folder; the model where it was measured, too

_TABLES = """
CREATE TABLE meta (schema INTEGER NOT NULL, run TEXT NOT NULL);
CREATE TABLE trial (
    tuner TEXT NOT NULL,
    seed INTEGER NOT NULL,
    number INTEGER NOT NULL,     -- of the window, from 0
    run TEXT NOT NULL,           -- JSON: the job, and the other settings of the run
    versions TEXT NOT NULL,      -- JSON
    config TEXT NOT NULL,        -- JSON
    iteration INTEGER NOT NULL,  -- the window's first
    warmup INTEGER NOT NULL,
    step_s TEXT NOT NULL,        -- JSON: seconds
    mean_s REAL NOT NULL,        -- seconds, without the warm-up
    stats BLOB,                  -- NumPy's npz
    recorded_at TEXT NOT NULL,
    PRIMARY KEY (tuner, seed, number)
);
"""


class Results:
    """The trials of one run, in a file.

    >>> with Results.open(folder / "results.sqlite", run={"job": job.to_json()}) as results:
    ...     results.add(measurement, tuner="random", seed=0, number=0)

    Reference: SQLite's write-ahead log; one transaction per trial.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, run: str) -> None:
        self._path = path
        self._connection = connection
        self._run = run
        self._versions = json.dumps(versions())

    @classmethod
    def open(cls, path: Path | str, *, run: Mapping[str, Any]) -> "Results":
        """Start a file, or go on with one of the same run.

        Raises:
            FileError: the file is no results database, is of a newer schema, holds another run, or cannot be written.
        """
        path = Path(path)
        text = json.dumps(run, sort_keys=True)
        with _reported(path), ExitStack() as undo:
            connection = undo.enter_context(closing(sqlite3.connect(path)))
            if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                with connection:
                    connection.executescript(f"BEGIN; {_TABLES}")
                    connection.execute("INSERT INTO meta VALUES (?, ?)", (SCHEMA, text))
            _check(path, connection, text)
            connection.execute("PRAGMA journal_mode = WAL")  # not earlier: it writes to the file
            connection.execute("PRAGMA synchronous = NORMAL")
            undo.pop_all()
        return cls(path, connection, text)

    @classmethod
    def read(cls, path: Path | str) -> "Results":
        """Look into a file, and leave it and its folder as they are.

        Raises:
            FileError: the file is not there, is no results database, or is of another schema.
        """
        path = Path(path)
        unfinished = path.with_name(path.name + "-wal").exists()  # else reading would make one
        uri = path.absolute().as_uri() + ("?mode=ro" if unfinished else "?mode=ro&immutable=1")
        with _reported(path), ExitStack() as undo:
            connection = undo.enter_context(closing(sqlite3.connect(uri, uri=True)))
            run = _run(path, connection)
            undo.pop_all()
        return cls(path, connection, run)

    @property
    def run(self) -> dict[str, Any]:
        """The settings of the run."""
        with self._intact("the run"):
            return dict(json.loads(self._run))

    def __enter__(self) -> "Results":
        return self

    def __exit__(self, *exception: object) -> None:
        self._connection.close()

    def add(self, measurement: Measurement, *, tuner: str, seed: int, number: int) -> None:
        """Keep a trial, for good as soon as this returns."""
        row = (
            *(tuner, seed, number, self._run, self._versions, json.dumps(measurement.config.to_json())),
            *(measurement.iteration, measurement.warmup, json.dumps(measurement.step_s), measurement.mean_s),
            *(_pack(measurement.stats), datetime.now(UTC).isoformat(timespec="seconds")),
        )
        with _reported(self._path), self._connection:
            self._connection.execute(f"INSERT INTO trial VALUES ({', '.join('?' * len(row))})", row)

    def find(self, *, tuner: str, seed: int, number: int) -> Measurement | None:
        """The trial of that number, if it was kept."""
        columns = "config, iteration, step_s, warmup, stats"
        query = f"SELECT {columns} FROM trial WHERE tuner = ? AND seed = ? AND number = ?"
        with _reported(self._path):
            row = self._connection.execute(query, (tuner, seed, number)).fetchone()
        with self._intact(f"trial {number} of '{tuner}', seed {seed}"):
            return None if row is None else _measurement(*row)

    def trials(self) -> "Iterator[StoredTrial]":
        """Every trial, by tuner, seed and number; their runtime statistics stay where they are."""
        columns = "tuner, seed, number, versions, config, iteration, step_s, warmup, NULL"
        with _reported(self._path):
            rows = self._connection.execute(f"SELECT {columns} FROM trial ORDER BY tuner, seed, number").fetchall()
        for tuner, seed, number, packages, *measured in rows:
            with self._intact(f"trial {number} of '{tuner}', seed {seed}"):
                yield StoredTrial(tuner, seed, number, json.loads(packages), _measurement(*measured))

    def __len__(self) -> int:
        with _reported(self._path):
            return int(self._connection.execute("SELECT count(*) FROM trial").fetchone()[0])

    @contextmanager
    def _intact(self, what: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, EOFError, BadZipFile, zlib.error) as error:
            raise FileError(f"results database {self._path}: {what} is corrupt ({error})") from None


@dataclass(frozen=True)
class StoredTrial:
    """A window that was kept: whose it was, the versions it ran on, and what it showed."""

    tuner: str
    seed: int
    number: int
    versions: dict[str, str]
    measurement: Measurement


def versions() -> dict[str, str]:
    """What a run depends on."""
    packages = {name: version(name) for name in ("autobyte", "numpy", "numba", "torch")}
    return {"python": platform.python_version()} | packages


def _check(path: Path, connection: sqlite3.Connection, run: str) -> None:
    known = _run(path, connection)
    if known != run:
        raise FileError(f"{path} holds another run ({_difference(known, run)}); choose another folder")


def _run(path: Path, connection: sqlite3.Connection) -> str:
    """The settings of the run in a file, if the file is one of ours."""
    try:
        schema, known = connection.execute("SELECT schema, run FROM meta").fetchone()
    except (sqlite3.OperationalError, TypeError):
        raise FileError(f"{path} is not a results database of this project; choose another folder") from None
    if schema != SCHEMA:
        raise FileError(f"results database {path} has schema {schema}; this version reads {SCHEMA}")
    return str(known)


def _difference(known: str, run: str) -> str:
    """The first thing that two runs do not share."""
    before, after = json.loads(known), json.loads(run)
    for key in after:
        if before.get(key) == after[key]:
            continue
        if isinstance(after[key], dict) and isinstance(before.get(key), dict):
            return _difference(json.dumps(before[key]), json.dumps(after[key]))
        return f"its {key} is {json.dumps(before.get(key)):.60}, but this run has {json.dumps(after[key]):.60}"
    return "it has more settings"


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise FileError(f"results database {path}: {error}") from None


def _pack(stats: RuntimeStats | None) -> bytes | None:
    if stats is None:
        return None
    file, columns = io.BytesIO(), zip((f.name for f in fields(stats)), astuple(stats), strict=True)
    np.savez_compressed(file, **{name: column for name, column in columns if column is not None})
    return file.getvalue()


def _measurement(config: str, iteration: int, step_s: str, warmup: int, stats: bytes | None) -> Measurement:
    unpacked = None
    if stats is not None:
        with np.load(io.BytesIO(stats), allow_pickle=False) as columns:
            unpacked = RuntimeStats(**columns)
    return Measurement(Config.from_json(json.loads(config)), iteration, tuple(json.loads(step_s)), warmup, unpacked)
