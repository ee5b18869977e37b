"""Errors are Python's own as well, name what is near, and say what to install."""

import math

import pytest

from autobyte.errors import AutoByteError, FileError, InputError, MissingExtra, require, unknown


@pytest.mark.parametrize(
    ("error", "builtin"), [(InputError, ValueError), (MissingExtra, ImportError), (FileError, OSError)]
)
def test_an_error_can_be_caught_as_what_it_is(error: type[AutoByteError], builtin: type[Exception]) -> None:
    for kind in (AutoByteError, builtin):
        with pytest.raises(kind):
            raise error("no")


def test_an_unknown_name_is_answered_with_the_nearest_and_with_all() -> None:
    known = ["grid", "default"]
    assert str(unknown("tuner", "Gird", known)) == (
        "unknown tuner 'Gird'; did you mean 'grid'? (known: default, grid)"
    )
    assert str(unknown("tuner", "xyz", known)) == "unknown tuner 'xyz' (known: default, grid)"
    assert str(unknown("tuner", "xyz", [])) == "unknown tuner 'xyz' (known: none)"


def test_a_missing_package_is_named_with_what_brings_it() -> None:
    assert require("math", extra="nothing", what="counting") is math
    with pytest.raises(MissingExtra, match=r"^the testbed needs no_such: pip install 'autobyte\[testbed\]'$"):
        require("no_such", extra="testbed", what="the testbed")
