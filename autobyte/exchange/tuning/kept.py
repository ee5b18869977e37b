"""The config that tuning found, in a small file that says what it is for; read again next time."""

import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Self

import tomli_w

from autobyte.config import Config
from autobyte.drafts import draft_of
from autobyte.errors import FileError, InputError, unknown
from autobyte.scheduler.policies import POLICIES

SCHEMA, READ = 3, (1, 2, 3)
SAME_LINK = 0.3  # links whose rates differ by less are taken for the same

_HEADING = """\
# AutoByte: the config found while this job trained. It is used again for a job like it, without tuning; a search
# that had not ended goes on from it. Delete this file to tune again.
"""


@dataclass
class Trial:
    """What windows of one config showed."""

    windows: float = 0  # of ten steps; one that ended after five is half of one
    step_s: float = 0.0  # mean over them; in auditions, of their medians


def yardstick(trials: Mapping[Config, Trial]) -> Config:
    """What a search's result is compared with: DDP's fastest buckets, or else what was measured first.

    Args:
        trials: at least one, in the order of their first windows.
    """
    buckets = [config for config in trials if config.policy == "ddp"]
    return min(buckets, key=lambda config: trials[config].step_s) if buckets else next(iter(trials))


def fastest_by_engine(trials: Mapping[Config, Trial], *, own: str) -> dict[str, float]:
    """The shortest step by each engine that was measured (s), the fastest engine first.

    Args:
        trials: what was measured.
        own: the engine that training began with.
    """
    steps: dict[str, float] = {}
    for config, trial in sorted(trials.items(), key=lambda item: item[1].step_s):
        steps.setdefault(config.engine or own, trial.step_s)
    return steps


def by_engine(steps: Mapping[str, float]) -> str:
    """What `fastest_by_engine` found, in words."""
    return "at best " + ", ".join(f"{1e3 * step_s:.4g} ms by {name}" for name, step_s in steps.items())


@dataclass(frozen=True)
class Fingerprint:
    """What a config was tuned for.

    Args:
        model: name of its class.
        parameters: hash of names, shapes and dtypes.
        workers: ranks.
        engine: that gradients travel by; never `auto`, but what it stood for.
        wire_dtype, policy: as given to `DistributedOptimizer`.
    """

    model: str
    parameters: str
    workers: int
    engine: str
    wire_dtype: str
    policy: str

    def differs(self, other: Self) -> str:
        """In what another job differs, or nothing."""
        own, others = asdict(self), asdict(other)
        return ", ".join(f"{key} is {own[key]}, not {others[key]}" for key in own if own[key] != others[key])


@dataclass(frozen=True)
class Kept:
    """A config, what it is for, and how it was found.

    Args:
        job: it is for.
        link_bytes_per_s: payload rate that blocks saw.
        config: to use.
        tuner: that found it.
        windows: it took.
        step_s: mean step under the config (s).
        first_s: mean step under the config that was measured first (s).
        finished: whether the search had ended.
        engines_s: the shortest mean step by each engine that was measured (s).
    """

    job: Fingerprint
    link_bytes_per_s: float
    config: Config
    tuner: str
    windows: float
    step_s: float
    first_s: float
    finished: bool = True
    engines_s: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read a file, if there is one.

        Raises:
            FileError: it cannot be read, or is something else.
        """
        try:
            data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
            if data.get("schema") not in READ:
                raise FileError(f"{path} is not a config that this AutoByte kept; name another file with keep=")
            section, config = data["found"], Config.from_json(data["config"])
            if config.policy not in POLICIES.names():
                raise unknown("policy", str(config.policy), POLICIES.names())
            if not 0 < data["link"]["gigabit_per_s"] < math.inf:
                raise InputError(f"gigabit_per_s must be positive, got {data['link']['gigabit_per_s']}")
            return cls(
                Fingerprint(**data["job"]),
                data["link"]["gigabit_per_s"] * 1e9 / 8,
                config,
                section["tuner"],
                section["windows"],
                section["step_ms"] / 1e3,
                section["default_ms" if data["schema"] == 1 else "first_ms"] / 1e3,
                section.get("finished", True),
                {name: step_ms / 1e3 for name, step_ms in section.get("engines_ms", {}).items()},
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, InputError) as error:
            raise FileError(f"cannot use {path}: {error}; delete it, or name another file with keep=") from None

    def write(self, path: Path) -> None:
        """Write the file, unless it holds what was found for another job.

        Raises:
            FileError: it does, or cannot be written.
        """
        there = type(self).read(path)
        if there is not None and (difference := self.job.differs(there.job)):
            raise FileError(f"{path} is for another job ({difference}) and stays; name another file with keep=")
        engines_ms = {name: round(step_s * 1e3, 2) for name, step_s in self.engines_s.items()}
        data = {
            "schema": SCHEMA,
            "job": asdict(self.job),
            "link": {"gigabit_per_s": round(self.link_bytes_per_s * 8 / 1e9, 3)},
            "config": self.config.to_json(),
            "found": {
                "tuner": self.tuner,
                "finished": self.finished,
                "windows": self.windows,  # of ten steps
                "step_ms": round(self.step_s * 1e3, 2),
                "first_ms": round(self.first_s * 1e3, 2),  # under the config that was measured first
                "on": date.today().isoformat(),
                **({"engines_ms": engines_ms} if len(engines_ms) > 1 else {}),  # of each, its fastest config
            },
        }
        text = _HEADING + tomli_w.dumps(data)
        with draft_of(path) as draft:
            draft.write_text(text, encoding="utf-8")

    @staticmethod
    def check(path: Path) -> None:
        """Look whether a file can be written there.

        Raises:
            InputError: it cannot.
        """
        folder = path.absolute().parent
        if path.is_dir():
            raise InputError(f"keep= is '{path}', a folder: name a file in it")
        if not folder.is_dir():
            raise InputError(f"keep= is '{path}', but '{folder}' is no folder: make it, or say keep=None")
        if not os.access(folder, os.W_OK):
            raise InputError(f"keep= is '{path}', but '{folder}' cannot be written: name another, or say keep=None")

    @staticmethod
    def set_aside(path: Path) -> Path | None:
        """Rename a file that was kept here and is damaged.

        Returns:
            where it is now; None if it is not known to be one that was kept here, and stays.
        """
        try:
            with path.open("rb") as file:
                beginning = file.read(len(_HEADING))
            if beginning.strip() and not beginning.startswith((b"# AutoByte", b"schema = ")):
                return None
            return path.rename(path.with_name(f"{path.name}.damaged"))
        except OSError:
            return None

    def same_link(self, bytes_per_s: float) -> bool:
        """Whether a link is as fast as the one it was found on."""
        return abs(bytes_per_s / self.link_bytes_per_s - 1) <= SAME_LINK
