"""`auto` beside DDP at its best: in turn on real ranks, and what `tools/never_slower.py` makes of launches."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import on_ranks

from autobyte.bench import cell as rank_side
from autobyte.bench.bench import Cell, entry
from autobyte.config import Config
from autobyte.exchange.tuning import audition
from autobyte.job import Job
from autobyte.models import find
from autobyte.units import MIB

ROOT = Path(__file__).parents[2]
BUCKETS = Config(MIB, MIB, "ddp")
CELL = Cell("vgg16", 4, 2.5e8, compute_s=0.4, size_scale=0.063)


def test_turns_of_auto_and_of_ddp_at_its_best(tmp_path: Path) -> None:
    (first, again), *others = on_ranks(_in_turn, 2, str(tmp_path))
    assert [[row["bucket_mib"] for row in rows] for rows in others] == [[first["bucket_mib"], 25]]  # all choose alike
    assert first["bucket_mib"] == min(first["buckets_s"], key=first["buckets_s"].__getitem__)
    assert set(first["buckets_s"]) == {1, 25}
    assert not again["buckets_s"]
    assert again["bucket_mib"] == 25
    for row in (first, again):
        for key in ("steps_s", "ddp_s", "default_s", "ddp_default_s"):
            assert len(row[key]) == 6  # two turns of three steps
        assert row["config"] == BUCKETS.to_json()  # again, it is what the first run has kept


def _in_turn(rank: int, folder: str) -> list[dict[str, Any]]:
    model = find("vgg16").scaled(time=0.001, size=0.001)
    found = str(Path(folder, "found.toml"))
    how = {"steps": 3, "pace": Path(folder, "pace"), "device": torch.device("cpu")}
    rows = []
    for config, buckets in ((BUCKETS, [1, 25]), (Config(2 * MIB, 2 * MIB, "ddp"), [25])):
        audition.shortlist = lambda job, config=config, **_: [config]  # type: ignore[assignment]
        run = entry("auto", "autobyte", "allreduce", None, policy="auto", beside=buckets, turns=2, keep=found)
        rows += rank_side.measure(model, run, **how)
    audition.shortlist = _fail
    why = "see rank 0" if rank else "ValueError: no config"
    with pytest.raises(RuntimeError, match=f"auto has not decided: {why}"):
        list(rank_side.measure(model, run | {"keep": None}, **how))
    return rows


def _fail(job: Job, **_: object) -> list[Config]:
    raise ValueError("no config")


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(ROOT / "tools"), *sys.path])
    import never_slower  # noqa: PLC0415, scripts of no package
    import shaped_tables  # noqa: PLC0415

    monkeypatch.setattr(never_slower, "NEVER", tmp_path / "never")
    monkeypatch.setattr(shaped_tables, "DATA", tmp_path)
    return never_slower


def launch_of(auto_s: float, ddp_s: float = 0.42, **more: Any) -> dict[str, Any]:
    told = {"config": BUCKETS.to_json(), "reduced": True, "bucket_mib": 25}
    told |= {"steps_s": [auto_s, auto_s, 9.0], "ddp_s": [ddp_s] * 3, "other_cores": 0.04, "unsound_links": 0}
    return told | more


def test_the_cells_are_those_of_the_bench_the_dilated_last(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    found = [(cell.stands_for * 8e-9, cell.dilation) for cell in tool.cells([2, 0.5, 1])]
    assert found == [(2, 1)] * 4 + [(0.5, 1)] * 4 + [(1, 1)] * 4 + [(2, 4)] * 4


def test_a_cell_that_is_not_there_is_named(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    for words, said in (
        (["--rates", "2,10"], "no cell for --rates 10.0; there are 0.5, 1.0, 2.0"),
        (["--models", "vgg19"], "no cell for --models vgg19; there are densenet121, gpt2, resnet50, vgg16"),
    ):
        monkeypatch.setattr(sys, "argv", ["never_slower.py", *words])
        with pytest.raises(SystemExit):
            tool.main()
        assert said in capsys.readouterr().err


def test_launches_go_on_where_they_were_stopped(tool: Any) -> None:
    faster = Cell("gpt2", 4, 2.5e8, compute_s=0.4, size_scale=0.07)
    slow = Cell("vgg16", 4, 6.25e7, compute_s=0.4, size_scale=0.063)
    tool.keep(faster, [launch_of(0.42)])
    order = []
    for cell, before in tool.missing([CELL, faster, slow], 2):
        order.append((cell, len(before)))
        tool.keep(cell, [*before, launch_of(0.42)])
        if len(order) == 2:
            break  # stopped here
    assert order == [(CELL, 0), (CELL, 1)]
    assert [(cell, len(before)) for cell, before in tool.missing([CELL, faster, slow], 2)] == [(faster, 1), (slow, 0)]


def test_the_table_has_medians_of_launches_and_says_who_is_slower(tool: Any) -> None:
    assert tool.never() == "Not measured yet."
    tool.keep(CELL, [launch_of(0.42), launch_of(0.4242), launch_of(0.4284, other_cores=0.31)])
    table = tool.never()
    assert "| VGG16 | 2 Gbit/s | 25 MiB | 420 ms | DDP's buckets | 424 ms | 1.0100 (1.0000 … 1.0200) |" in table
    assert "| not measured | 3 |" in table
    assert "More than 0.5 % slower than DDP at its best: VGG16 at 2 Gbit/s, the fastest launch is not." in table
    assert "others used 0.3 cores, and 0 of 8 links" in table
    tool.keep(CELL, [launch_of(0.4, reduced=False, config=Config(MIB, MIB, knobs={"fusion": 1}).to_json())])
    table = tool.never()
    by_default = "| not measured | 1 |"
    assert f"| bytescheduler ⟨1 MiB, 1x, fusion=1⟩ | 400 ms | 0.9524 (0.9524 … 0.9524) {by_default}" in table
    assert "slower than DDP at its best: none." in table
    tool.keep(CELL, [launch_of(0.4), launch_of(0.4, default_s=[0.5, 0.51], ddp_default_s=[0.5, 0.5])])
    table = tool.never()
    assert "0.9524 (0.9524 … 0.9524) | 1.0100 (1.0100 … 1.0100) | 2 |" in table
    assert "slower than DDP at its best: the default on VGG16 at 2 Gbit/s." in table
    assert json.loads((tool.NEVER / "vgg16-2000Mbit.json").read_text())["cell"]["rate"] == 2.5e8
