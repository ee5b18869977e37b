"""What tests of the paper's scripts share."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPTS = frozenset(path.stem for path in (Path(__file__).parents[2] / "paper").glob("*.py"))


@pytest.fixture(autouse=True)
def scripts_apart() -> Iterator[None]:
    """Scripts import each other by bare names, and so do tests, which have modules of the same names."""
    others = {name: sys.modules.pop(name) for name in SCRIPTS & sys.modules.keys()}
    yield
    for name in SCRIPTS & sys.modules.keys():
        del sys.modules[name]
    sys.modules.update(others)
