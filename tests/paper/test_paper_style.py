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


def test_numbers_survive_their_csv(tmp_path: Path) -> None:
    rows = [
        {"seed": "", "pair": "⟨1,4⟩", "start": "2,2", "gbit": 0.5, "samples_per_s": 1 / 3, "found": 1},
        {"seed": 3, "pair": "", "start": "8,3", "gbit": 10, "samples_per_s": 2e7, "found": 0},
    ]
    sheet.write(rows, "some", tmp_path, what="measured")
    table = sheet.read("some", tmp_path)
    assert table["what"].tolist() == ["measured", "measured"]
    assert table["seed"].isna().tolist() == [True, False]
    assert table["pair"].tolist() == ["⟨1,4⟩", ""]
    assert table["start"].tolist() == ["2,2", "8,3"]
    assert table["gbit"].tolist() == [0.5, 10]
    assert table["samples_per_s"].tolist() == [0.333333, 2e7]  # six figures
    assert table["found"].tolist() == [1, 0]
    assert sheet.where(table, start="8,3", found=0)["gbit"].tolist() == [10]
    before = (tmp_path / "data" / "some.csv").read_bytes()
    again = table.drop(columns="what").to_dict("records")
    sheet.write(again, "some", tmp_path, what="measured")
    assert (tmp_path / "data" / "some.csv").read_bytes() == before


def test_a_method_has_one_look_and_one_name() -> None:
    assert set(style.LOOKS) == set(style.NAMES)
    assert len({(colour, str(dashes)) for colour, dashes in style.LOOKS.values()}) >= len(style.LOOKS) - 1
