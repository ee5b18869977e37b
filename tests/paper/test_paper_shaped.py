"""Cells on shaped links are measured launch after launch, and what is there stays; older rows make way."""

import importlib
import math
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import pytest

PAPER = Path(__file__).parents[2] / "paper"
PLACES = [("ps", "resnet50"), ("ps", "vgg16")]


@pytest.fixture
def shaped(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setattr(sys, "path", [str(PAPER), *sys.path])
    with matplotlib.rc_context():
        yield importlib.import_module("shaped")


def collected(shaped: ModuleType, out: Path, places: list[tuple[str, str]], **how: Any) -> list[tuple[str, str]]:
    """What a call measures; its rows say which model it was."""
    measured: list[tuple[str, str]] = []

    def work(place: tuple[str, str]) -> list[dict[str, Any]]:
        measured.append(place)
        return [{"samples_per_s": float(len(measured))}]

    options = Namespace(out=out, quick=False, seed=0, **{"launches": 2, "minutes": math.inf} | how)
    shaped.collect("cells", places, ("architecture", "model"), work, options)
    return measured


def test_every_cell_once_then_again_and_no_launch_twice(shaped: ModuleType, tmp_path: Path) -> None:
    assert collected(shaped, tmp_path, PLACES, minutes=-1) == []
    assert collected(shaped, tmp_path, PLACES, launches=1) == PLACES
    assert collected(shaped, tmp_path, PLACES) == PLACES
    assert collected(shaped, tmp_path, PLACES) == []
    rows = shaped.sheet.read("cells", tmp_path)
    assert rows.groupby(["model", "seed"]).size().tolist() == [1, 1, 1, 1]
    assert set(rows["what"]) == {"emulated"}


def test_older_rows_go_when_their_cell_is_measured(shaped: ModuleType, tmp_path: Path) -> None:
    old = [{"architecture": "ps", "model": model, "seed": 0, "samples_per_s": 7.0} for _, model in PLACES]
    shaped.sheet.write(old, "cells", tmp_path, what="emulated")
    assert collected(shaped, tmp_path, PLACES[:1], launches=1) == PLACES[:1]
    rows = shaped.sheet.read("cells", tmp_path).set_index("model")
    assert rows["samples_per_s"].to_dict() == {"vgg16": 7.0, "resnet50": 1.0}
    assert rows["date"]["vgg16"] == ""
    claim = importlib.import_module("claim")
    told = claim.launches(rows.reset_index())
    assert told.startswith("Emulated is one launch each of VGG16 on servers, ResNet50 on servers (measured from 20")


def test_of_ties_the_pair_with_the_fewest_bytes_in_flight(shaped: ModuleType) -> None:
    times = {(8, 32): 1.0, (4, 8): 1.015, (4, 4): 1.03}
    watched = [
        {"config": shaped.Config(partition << 20, credit << 20).to_json(), "steps_s": [seconds] * 10}
        for (partition, credit), seconds in times.items()
    ]
    assert shaped.robust({"watched": watched}) == shaped.Config(4 << 20, 8 << 20)
