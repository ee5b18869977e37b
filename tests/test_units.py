"""Sizes, rates and times as people write them."""

import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autobyte import config, errors, units
from autobyte.errors import InputError, MissingExtra, require, unknown
from autobyte.units import (
    format_bytes,
    format_credit,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_credit,
    parse_rate,
    parse_seconds,
)


@pytest.mark.parametrize("module", [units, config, errors])
def test_the_examples_in_the_docstrings_hold(module) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("4MiB", 4 * 1024**2),
        ("4 mib", 4 * 1024**2),
        ("4M", 4 * 1024**2),
        ("4MB", 4_000_000),
        ("160KB", 160_000),
        ("160k", 160 * 1024),
        ("1GiB", 1024**3),
        ("4096", 4096),
        (4096, 4096),
        ("1e6", 1_000_000),
        ("1.7B", 2),
        ("1.5KiB", 1536),
        (".5K", 512),
    ],
)
def test_sizes_are_read(text, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["0", "-4MiB", "0.5", "nan", "inf", "nanMiB", 0, -1])
def test_a_size_is_at_least_a_byte(text) -> None:
    with pytest.raises(InputError, match=rf"^partition must be at least 1 byte, got '{text}'$"):
        parse_bytes(text, what="partition")


@pytest.mark.parametrize("text", ["", "MiB", "4 QiB", "4Mbit", "four", "4,5MB", "4_000", "4 MiB 3"])
def test_a_size_that_cannot_be_read_shows_how_to_write_it(text: str) -> None:
    with pytest.raises(InputError, match=rf"^cannot read size '{text}'; write it like 4MiB or 160KB$"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("10Gbit", 1.25e9),
        ("10 Gbit/s", 1.25e9),
        ("10Gbps", 1.25e9),
        ("500Mbit", 6.25e7),
        ("8bit", 1.0),
        ("1.25GB/s", 1.25e9),
        ("3kB/s", 3e3),
        (1.25e9, 1.25e9),
        (7, 7.0),
        ("inf", math.inf),
        (math.inf, math.inf),
    ],
)
def test_rates_are_read(text, bytes_per_s: float) -> None:
    assert parse_rate(text) == bytes_per_s


@pytest.mark.parametrize("text", ["0Gbit", "-10Gbit", "nanGbit", 0, -1.0, math.nan, -math.inf])
def test_a_rate_is_positive(text) -> None:
    with pytest.raises(InputError, match=rf"^bandwidth must be positive, got '{text}'$"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["10", "10GB", "fast", "10 Gbit per s", "nan", [1.0], None, 10**400])
def test_a_rate_that_cannot_be_read_shows_how_to_write_it(text) -> None:
    with pytest.raises(InputError, match=r"^cannot read bandwidth .*; write it like 10Gbit or 1.25GB/s$"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2ms", 0.002),
        ("30us", 30e-6),
        ("30µs", 30e-6),
        ("0.6s", 0.6),
        ("0.6", 0.6),
        (0.6, 0.6),
        ("0", 0.0),
        ("5 min", 300.0),
        ("1h", 3600.0),
        ("7ns", 7e-9),
    ],
)
def test_times_are_read(text, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["-1ms", "nan", "inf", "infms", -1])
def test_a_time_is_finite_and_not_negative(text) -> None:
    with pytest.raises(InputError, match=rf"^latency must be a finite time of at least 0, got '{text}'$"):
        parse_seconds(text, what="latency")


@pytest.mark.parametrize("text", ["2m", "2MS", "soon", "", "1:30"])
def test_a_time_that_cannot_be_read_shows_how_to_write_it(text: str) -> None:
    with pytest.raises(InputError, match=rf"^cannot read time '{text}'; write it like 2ms or 0.6s$"):
        parse_seconds(text)


def test_a_credit_is_a_multiple_of_the_partition_or_a_size() -> None:
    assert parse_credit("4x", 1000) == 4000
    assert parse_credit("4 X", 1000) == 4000
    assert parse_credit("1.5x", 1000) == 1500
    assert parse_credit("0.0001x", 1000) == 1  # never nothing
    assert parse_credit("16MB", 1000) == 16_000_000
    assert parse_credit(77, 1000) == 77


@pytest.mark.parametrize("text", ["0x", "-4x", "nanx", "infx"])
def test_a_credit_is_positive(text: str) -> None:
    with pytest.raises(InputError, match=rf"^credit must be positive, got '{text}'$"):
        parse_credit(text, 1000)


@pytest.mark.parametrize("text", ["x", "4MBx", "4xx", "fourx"])
def test_a_credit_that_cannot_be_read_shows_how_to_write_it(text: str) -> None:
    with pytest.raises(InputError, match=rf"^cannot read credit '{text}'; write it like 4x or 16MB$"):
        parse_credit(text, 1000)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1.02 KB"),
        (1024, "1 KiB"),
        (1500, "1.5 KB"),
        (4 << 20, "4 MiB"),
        (160_000, "160 KB"),
        (999_999, "1 MB"),
        (1023 << 10, "1023 KiB"),
        (3 << 30, "3 GiB"),
        (5 << 40, "5498 GB"),
    ],
)
def test_sizes_are_written_in_three_figures(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (1e-9, "1 ns"),
        (30e-6, "30 µs"),
        (0.0123, "12.3 ms"),
        (0.9996, "1 s"),
        (75.0, "75 s"),
        (1234.4, "1234 s"),
    ],
)
def test_times_are_written_in_three_figures(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("bytes_per_s", "text"),
    [
        (1.25e9, "10 Gbit/s"),
        (6.25e7, "500 Mbit/s"),
        (124_998_750, "1 Gbit/s"),
        (0.125, "1 bit/s"),
        (2e12, "16000 Gbit/s"),
        (math.inf, "inf Gbit/s"),
        (450.0, "3.6 kbit/s"),
    ],
)
def test_rates_are_written_in_three_figures(bytes_per_s: float, text: str) -> None:
    assert format_rate(bytes_per_s) == text


@pytest.mark.parametrize(
    ("credit", "partition", "text"),
    [(4000, 1000, "4x"), (1000, 1000, "1x"), (1500, 1000, "1.5 KB"), (500, 1 << 30, "500 B"), (500, 1000, "500 B")],
)
def test_a_credit_is_written_as_a_multiple_where_it_is_one(credit: int, partition: int, text: str) -> None:
    assert format_credit(credit, partition) == text


@given(st.floats(1, 1e13))
def test_what_is_written_can_be_read_again(value: float) -> None:
    assert parse_bytes(format_bytes(round(value))) == pytest.approx(value, rel=0.006, abs=1)
    assert parse_rate(format_rate(value)) == pytest.approx(value, rel=0.006)
    assert parse_seconds(format_seconds(value / 1e9)) == pytest.approx(value / 1e9, rel=0.006)


def test_an_unknown_name_comes_with_the_nearest_one() -> None:
    assert str(unknown("tuner", "baysian", ["grid", "bayesian"])) == (
        "unknown tuner 'baysian'; did you mean 'bayesian'? (known: bayesian, grid)"
    )
    assert str(unknown("tuner", "zzz", ["grid"])) == "unknown tuner 'zzz' (known: grid)"


def test_a_missing_extra_says_what_to_install() -> None:
    with pytest.raises(MissingExtra, match=r"^the testbed needs no_such_module: pip install 'autobyte\[testbed\]'$"):
        require("no_such_module", extra="testbed", what="the testbed")
    assert require("math", extra="testbed", what="the testbed") is math
    assert issubclass(MissingExtra, ImportError)
    assert issubclass(InputError, ValueError)
    assert issubclass(errors.FileError, OSError)


@pytest.mark.parametrize("text", ["4", "999", "4.5"])
def test_a_small_size_needs_a_unit(text: str) -> None:
    with pytest.raises(InputError, match=rf"^size '{text}' has no unit: write {text}MiB, or {text}B if you mean byt"):
        parse_bytes(text)
    with pytest.raises(InputError, match=rf"^credit '{text}' has no unit: write {text}MiB, {text}x for partitions"):
        parse_credit(text, 1 << 20)
    assert [parse_bytes(one) for one in ("4B", "1000", "1e6")] == [4, 1000, 1_000_000]
