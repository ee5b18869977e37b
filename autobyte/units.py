"""Sizes, rates and times as people write them: 4MiB, 160KB, 10Gbit, 2ms, 4x."""

import math
import re

from autobyte.errors import InputError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

LEAST_BARE = 1000  # a size below it needs a unit

_PREFIX = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SIZES = {"": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": KIB, "mib": MIB, "gib": GIB}
_SIZES |= {"k": KIB, "m": MIB, "g": GIB}
_LONG = {"s": 1.0, "": 1.0, "min": 60.0, "h": 3600.0}
_SHORT = {"ms": 1e3, "us": 1e6, "µs": 1e6, "ns": 1e9}  # in a second; 30e-6 is 30 / 1e6, and not 30 * 1e-6


def parse_bytes(text: str | int, *, what: str = "size") -> int:
    """Read a size in bytes: `4MiB`, `160KB`, `4096`. K, M and G alone are binary. Must be positive.

    Text with a number below 1000 needs a unit: `4B` is four bytes, and `4` is more likely a slip.

    >>> parse_bytes("4MiB"), parse_bytes("160KB"), parse_bytes("1e6")
    (4194304, 160000, 1000000)
    """
    number, unit = _split(text, what, "4MiB or 160KB")
    if unit.lower() not in _SIZES or unit in ("Kb", "kb", "Mb", "mb", "Gb", "gb"):  # those are bits
        raise _unreadable(text, what, "4MiB or 160KB")
    value = number * _SIZES[unit.lower()]
    if not 1 <= value < math.inf:
        raise InputError(f"{what} must be at least 1 byte, got '{text}'")
    if isinstance(text, str) and not unit and value < LEAST_BARE:
        also = f", {text}x for partitions" if what == "credit" else ""
        raise InputError(f"{what} '{text}' has no unit: write {text}MiB{also}, or {text}B if you mean bytes")
    return round(value)


def parse_rate(text: str | float, *, what: str = "bandwidth") -> float:
    """Read a rate in bytes per second: `10Gbit`, `500Mbit`, `1.25GB/s`. `inf` is a link without limit.

    >>> parse_rate("10Gbit")
    1250000000.0
    """
    if isinstance(text, str) and text.strip().lower() != "inf":
        number, unit = _split(text, what, "10Gbit or 1.25GB/s")
        match = re.fullmatch(r"([kmgtKMGT]?)(?:(bit|b)(?:/s|ps)?|B/s)", unit)
        if match is None:
            raise _unreadable(text, what, "10Gbit or 1.25GB/s")
        value = number * _PREFIX[match[1].lower()] / (8 if match[2] else 1)
    else:
        try:
            value = float(text)
        except (TypeError, OverflowError):
            raise _unreadable(text, what, "10Gbit or 1.25GB/s") from None
    if not value > 0:
        raise InputError(f"{what} must be positive, got '{text}'")
    return value


def parse_seconds(text: str | float, *, what: str = "time") -> float:
    """Read a time in seconds, zero allowed: `2ms`, `30us`, `0.6s`.

    >>> parse_seconds("2ms"), parse_seconds("30us")
    (0.002, 3e-05)
    """
    number, unit = _split(text, what, "2ms or 0.6s")
    if unit not in _LONG | _SHORT:
        raise _unreadable(text, what, "2ms or 0.6s")
    value = number * _LONG[unit] if unit in _LONG else number / _SHORT[unit]
    if not 0 <= value < math.inf:
        raise InputError(f"{what} must be a finite time of at least 0, got '{text}'")
    return value


def parse_credit(text: str | int, partition_bytes: int) -> int:
    """Read a credit in bytes: `4x` is four partitions, `16MB` is itself.

    >>> parse_credit("4x", 1 << 20)
    4194304
    """
    if not str(text).strip().lower().endswith("x"):
        return parse_bytes(text, what="credit")
    ratio, unit = _split(text, "credit", "4x or 16MB")
    if unit.lower() != "x":
        raise _unreadable(text, "credit", "4x or 16MB")
    if not 0 < ratio * partition_bytes < math.inf:
        raise InputError(f"credit must be positive, got '{text}'")
    return max(1, round(ratio * partition_bytes))


def format_bytes(nbytes: float) -> str:
    """Write a size with three figures, in the system that makes it shorter: `4 MiB`, `160 KB`.

    >>> format_bytes(4194304), format_bytes(160000), format_bytes(1500)
    ('4 MiB', '160 KB', '1.5 KB')
    """
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if unit <= nbytes < 1024 * unit and nbytes % unit == 0:
            return f"{nbytes / unit:.4g} {name}"
    return _three_figures(round(nbytes), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1.0, "B"))


def format_rate(bytes_per_s: float) -> str:
    """Write a rate in bits: `10 Gbit/s`.

    >>> format_rate(1.25e9)
    '10 Gbit/s'
    """
    return _three_figures(bytes_per_s * 8, (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s"))


def format_seconds(seconds: float) -> str:
    """Write a time with three figures: `12.3 ms`.

    >>> format_seconds(0.0123), format_seconds(75)
    ('12.3 ms', '75 s')
    """
    return _three_figures(seconds, (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")) if seconds > 0 else "0 s"


def format_percent(part: float | None) -> str:
    """A share as tables show it; a dash where there is none.

    >>> format_percent(-0.5), format_percent(None)
    ('−50.0 %', '–')
    """
    return "–" if part is None else f"{100 * part:.1f} %".replace("-", "−")


def format_credit(credit_bytes: int, partition_bytes: int) -> str:
    """Write a credit as a multiple of the partition where it is one: `4x`, else `10 MB`."""
    ratio = credit_bytes / partition_bytes
    whole = ratio > 0.5 and abs(ratio - round(ratio)) < 1e-6
    return f"{ratio:.0f}x" if whole else format_bytes(credit_bytes)


def _three_figures(value: float, *units: tuple[float, str]) -> str:
    """Write a value in the largest unit of which it is at least one, as it is rounded."""
    for size, name in units:
        figures = f"{value / size:.3g}"
        if float(figures) >= 1 or (size, name) == units[-1]:
            break
    return f"{figures if float(figures) < 1000 else f'{value / size:.0f}'} {name}"


_NUMBER = r"(-?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|nan|inf))"


def _split(text: str | float, what: str, example: str) -> tuple[float, str]:
    match = re.fullmatch(_NUMBER + r"\s*([A-Za-zµ/]*)", str(text).strip())
    if match is None:
        raise _unreadable(text, what, example)
    return float(match[1]), match[2]


def _unreadable(text: str | float, what: str, example: str) -> InputError:
    return InputError(f"cannot read {what} '{text}'; write it like {example}")
