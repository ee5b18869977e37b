"""Engines are found by name."""

from pathlib import Path

import pytest

from autobyte.errors import InputError
from autobyte.torch.exchange.engines import ENGINES, connector


def test_engines_of_other_packages_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "moves.py").write_text("def connect(training, timeout):\n    return training, timeout\n")
    info = tmp_path / "moves-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moves\nVersion: 1.0\n")
    points = ["mine = moves:connect", "ps = moves:connect", "gone = not_there:connect"]
    (info / "entry_points.txt").write_text("\n".join(["[autobyte.engines]", *points]))
    monkeypatch.syspath_prepend(tmp_path)
    assert connector("mine").__module__ == "moves"
    assert connector("ps") is ENGINES["ps"]  # theirs takes no name of ours
    with pytest.raises(InputError, match=r"^engine 'gone' cannot be loaded from not_there:connect: "):
        connector("gone")
    with pytest.raises(InputError, match=r"^unknown engine 'minne'; did you mean 'mine'\? \(known: allreduce, gone,"):
        connector("minne")
