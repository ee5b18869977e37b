"""The config that tuning found, in a small file that says what it is for; read again next time."""

import tomllib
from dataclasses import asdict, dataclass
from datetime import date
from json import dumps
from pathlib import Path
from typing import Any, Self

from autobyte.config import Config
from autobyte.errors import FileError, InputError

SCHEMA, READ = 3, (1, 2, 3)
SAME_LINK = 0.3  # links whose rates differ by less are taken for the same

_TEMPLATE = """\
# AutoByte: the config found while this job trained. It is used again for a job like it, without tuning; a search
# that had not ended goes on from it. Delete this file to tune again.
schema = {schema}

[job]
model = {model}
parameters = {parameters}  # hash of their names, shapes and dtypes
workers = {workers}
engine = {engine}
wire_dtype = {wire_dtype}
policy = {policy}

[link]
gigabit_per_s = {gigabit_per_s:.3f}  # as blocks saw it; {same:.0%} to either side is taken for the same link

[config]  # {label}
{config}

[found]
tuner = {tuner}
finished = {finished}  # whether the search had ended when training did
windows = {windows:g}  # of ten steps
step_ms = {step_ms:.2f}
first_ms = {first_ms:.2f}  # the same steps under the config that was measured first
on = {on}
"""


@dataclass
class Trial:
    """What windows of one config showed."""

    windows: float = 0  # of ten steps; one whose tuner wanted five is half of one
    step_s: float = 0.0  # mean over them


@dataclass(frozen=True)
class Fingerprint:
    """What a config was tuned for.

    Args:
        model: name of its class.
        parameters: hash of names, shapes and dtypes.
        workers: ranks.
        engine, wire_dtype, policy: as given to `DistributedOptimizer`.
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
    """

    job: Fingerprint
    link_bytes_per_s: float
    config: Config
    tuner: str
    windows: float
    step_s: float
    first_s: float
    finished: bool = True

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
            section = data["found"]
            return cls(
                Fingerprint(**data["job"]),
                data["link"]["gigabit_per_s"] * 1e9 / 8,
                Config.from_json(data["config"]),
                section["tuner"],
                section["windows"],
                section["step_ms"] / 1e3,
                section["default_ms" if data["schema"] == 1 else "first_ms"] / 1e3,
                section.get("finished", True),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, InputError) as error:
            raise FileError(f"cannot use {path}: {error}; delete it, or name another file with keep=") from None

    def write(self, path: Path) -> None:
        """Write the file, unless it holds what was found for another job.

        Raises:
            FileError: it does, or cannot be written.
        """
        there = type(self).read(path)
        if there is not None and (difference := self.job.differs(there.job)):
            raise FileError(f"{path} is for another job ({difference}) and stays; name another file with keep=")
        knobs = ", ".join(f"{name} = {value}" for name, value in self.config.knobs.items())
        config = [
            f"partition_bytes = {self.config.partition_bytes}",
            f"credit_bytes = {self.config.credit_bytes}",
            f"policy = {dumps(self.config.policy)}",
            f"knobs = {{ {knobs} }}",
        ]
        text = _TEMPLATE.format(
            schema=SCHEMA,
            **{key: dumps(value) for key, value in asdict(self.job).items()},
            gigabit_per_s=self.link_bytes_per_s * 8 / 1e9,
            same=SAME_LINK,
            label=self.config.label,
            config="\n".join(config),
            tuner=dumps(self.tuner),
            finished=dumps(self.finished),
            windows=self.windows,
            step_ms=self.step_s * 1e3,
            first_ms=self.first_s * 1e3,
            on=date.today().isoformat(),
        )
        new = path.with_name(f"{path.name}.new")  # a process that ends meanwhile leaves no half of a file
        try:
            new.write_text(text, encoding="utf-8")
            new.replace(path)
        except OSError as error:
            raise FileError(f"cannot keep the config in {path}: {error}") from None

    def same_link(self, bytes_per_s: float) -> bool:
        """Whether a link is as fast as the one it was found on."""
        return abs(bytes_per_s / self.link_bytes_per_s - 1) <= SAME_LINK
