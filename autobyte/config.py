"""The two knobs ⟨partition size, credit size⟩ and the space they are searched in."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from autobyte.errors import InputError
from autobyte.units import GIB, KIB, format_bytes, format_credit


@dataclass(frozen=True)
class Config:
    """How gradients are cut and how many bytes may be in flight.

    >>> Config(4_000_000, 16_000_000).label
    '⟨4 MB, 4x⟩'

    Args:
        partition_bytes: S_p, a gradient larger than this is cut (bytes on the wire).
        credit_bytes: S_c, the window of bytes in flight.
        policy: which policy makes the plan.
        knobs: the policy's own knobs beyond the two.
        engine: that moves gradients, where training can choose; empty is the one that it began with.

    Raises:
        InputError: a size that is not a positive whole number.

    Reference: ByteScheduler (SOSP'19), sec. 4.2; AutoByte (arXiv 2112.13509), sec. II-D.
    """

    partition_bytes: int
    credit_bytes: int
    policy: str = "bytescheduler"
    knobs: Mapping[str, float] = field(default_factory=dict)
    engine: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        for name in ("partition_bytes", "credit_bytes"):
            value = getattr(self, name)
            if not 1 <= value < 1 << 63 or value != int(value):
                raise InputError(f"{name} must be a positive whole number of bytes below 2^63, got {value}")
            object.__setattr__(self, name, int(value))
        for name, value in self.knobs.items():
            if not math.isfinite(value):
                raise InputError(f"knob '{name}' must be a finite number, got {value}")
        object.__setattr__(self, "knobs", dict(sorted(self.knobs.items())))

    def __hash__(self) -> int:
        return hash((self.partition_bytes, self.credit_bytes, self.policy, self.engine, *self.knobs.items()))

    @property
    def label(self) -> str:
        """The pair as the paper writes it, the policy's own knobs after it, and the engine where one is named."""
        credit = format_credit(self.credit_bytes, self.partition_bytes)
        knobs = "".join(f", {name}={value:g}" for name, value in self.knobs.items())
        engine = f" by {self.engine}" if self.engine else ""
        return f"⟨{format_bytes(self.partition_bytes)}, {credit}{knobs}⟩{engine}"

    @property
    def full_label(self) -> str:
        """The policy, and the label after it."""
        return f"{self.policy} {self.label}"

    def to_json(self) -> dict[str, Any]:
        """The config as plain JSON; `policy`, `knobs` and `engine` only where they differ from the default."""
        data: dict[str, Any] = {"partition_bytes": self.partition_bytes, "credit_bytes": self.credit_bytes}
        if self.policy != "bytescheduler":
            data["policy"] = self.policy
        if self.knobs:
            data["knobs"] = dict(self.knobs)
        if self.engine:
            data["engine"] = self.engine
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        try:
            return cls(**data)
        except (TypeError, AttributeError) as error:
            raise InputError(f"not a config: {data} ({error})") from None


#: ByteScheduler's shipped defaults, 1e6 and 4e6 fp32 parameters (bytecore.py, v0.1), in bytes.
BYTESCHEDULER_DEFAULT = Config(4_000_000, 16_000_000)
#: P3's slices of 40,000 fp32 parameters, one at a time (AutoByte, sec. II-E).
P3_DEFAULT = Config(160_000, 160_000)


@dataclass(frozen=True)
class Space:
    """The box a tuner searches: log2 of the partition, log2 of credit / partition, both ends included.

    >>> space = Space()
    >>> len(space.grid()), space.at([0.0, 0.0]).label, BYTESCHEDULER_DEFAULT in space
    (304, '⟨4 KiB, 1x⟩', True)

    Args:
        partition_bytes: smallest and largest partition (bytes).
        credit_ratio: smallest and largest credit, as a multiple of the partition.
        default: the config of trial 0; its policy is that of every config of the space.
        knobs: the policy's own knobs, (smallest, largest) each, searched linearly.

    Reference: AutoByte, sec. III-B (4 KB … 1024 MB, 1X … 16X).
    """

    partition_bytes: tuple[int, int] = (4 * KIB, GIB)
    credit_ratio: tuple[float, float] = (1.0, 16.0)
    default: Config = BYTESCHEDULER_DEFAULT
    knobs: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bounds = {"partition_bytes": self.partition_bytes, "credit_ratio": self.credit_ratio}
        for name, (low, high) in bounds.items():
            if not 0 < low <= high < math.inf:
                raise InputError(f"{name} must be a range of positive numbers, low first, got ({low}, {high})")
        for name, (low, high) in self.knobs.items():
            if not -math.inf < low <= high < math.inf:
                raise InputError(f"knob '{name}' must be a range, low first, got ({low}, {high})")

    @property
    def names(self) -> tuple[str, ...]:
        """The dimensions, in the order of `at` and `locate`."""
        return ("partition", "credit", *self.knobs)

    def __contains__(self, config: Config) -> bool:
        ratio = config.credit_bytes / config.partition_bytes
        slack = 1 / config.partition_bytes  # a credit is rounded to whole bytes
        return (
            config.policy == self.default.policy
            and self.partition_bytes[0] <= config.partition_bytes <= self.partition_bytes[1]
            and self.credit_ratio[0] - slack <= ratio <= self.credit_ratio[1] + slack
            and all(low <= config.knobs.get(name, low) <= high for name, (low, high) in self.knobs.items())
            and all(
                config.knobs.get(name) == value
                for name, value in self.default.knobs.items()
                if name not in self.knobs
            )
        )

    def at(self, unit: Sequence[float]) -> Config:
        """The config at a point of the unit cube, shape [len(names)]."""
        if len(unit) != len(self.names) or not all(0 <= u <= 1 for u in unit):
            raise InputError(f"a point of the unit cube has {len(self.names)} numbers in [0, 1], got {list(unit)}")
        partition = round(_between(*self.partition_bytes, unit[0]))
        credit = max(1, round(partition * _between(*self.credit_ratio, unit[1])))
        edges = zip(self.knobs.items(), unit[2:], strict=True)
        knobs = dict(self.default.knobs) | {name: low + (high - low) * u for (name, (low, high)), u in edges}
        return Config(partition, credit, self.default.policy, knobs)

    def locate(self, config: Config) -> tuple[float, ...]:
        """The point of the unit cube of a config, clipped into it."""
        ratio = config.credit_bytes / config.partition_bytes
        point = [
            _position(*self.partition_bytes, config.partition_bytes),
            _position(*self.credit_ratio, ratio),
        ]
        for name, (low, high) in self.knobs.items():
            value = config.knobs.get(name, self.default.knobs.get(name, low))
            point.append((value - low) / (high - low) if high > low else 0.0)
        return tuple(min(max(u, 0.0), 1.0) for u in point)

    def grid(self) -> list[Config]:
        """Partitions doubling, credits in steps of 1X: 19 × 16 = 304 configs of the default box."""
        low, high = self.partition_bytes
        doublings = (high // low).bit_length() - 1
        ratios = range(math.ceil(self.credit_ratio[0]), math.floor(self.credit_ratio[1]) + 1)
        policy, knobs = self.default.policy, self.default.knobs
        return [
            Config(low << power, max(1, round((low << power) * ratio)), policy, knobs)
            for power in range(doublings + 1)
            for ratio in ratios or (self.credit_ratio[0],)
        ]


def _between(low: float, high: float, u: float) -> float:
    return float(low * (high / low) ** u) if 0 < u < 1 else float(high if u else low)  # log2 scale


def _position(low: float, high: float, value: float) -> float:
    return math.log2(value / low) / math.log2(high / low) if high > low else 0.0
