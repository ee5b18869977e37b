"""Labels do not overlap, numbers survive their CSV, pictures are the same every time."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import matplotlib
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

PAPER = Path(__file__).parents[2] / "paper"


def load(name: str) -> ModuleType:
    """A module of `paper/`, which is on no path; it leaves matplotlib as it was."""
    with matplotlib.rc_context():
        spec = importlib.util.spec_from_file_location(f"paper_{name}", PAPER / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return module


style, sheet = load("style"), load("sheet")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_labels_keep_their_order_and_their_distance(places: list[float]) -> None:
    wanted = np.sort(places)
    moved = style._apart(wanted, 0.1)
    assert (np.diff(moved) >= 0.1 - 1e-9).all()
    if len(wanted) == 1 or (np.diff(wanted) >= 0.1).all():
        np.testing.assert_allclose(moved, wanted)
    assert abs(moved.mean() - wanted.mean()) < 1e-9


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(), st.sampled_from(["", "vgg16", "⟨1,4⟩"]))
def test_numbers_survive_their_csv(number: float, whole: int, text: str) -> None:
    read = sheet._value(sheet._text(number))
    assert np.isclose(read, number, rtol=1e-5)
    assert sheet._value(sheet._text(whole)) == whole
    assert sheet._value(text) == text


def test_a_method_has_one_look_and_one_name() -> None:
    assert set(style.LOOKS) == set(style.NAMES)
    assert len({(colour, str(dashes)) for colour, dashes in style.LOOKS.values()}) >= len(style.LOOKS) - 1
