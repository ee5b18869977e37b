"""`autobyte.compare`: what the command prints, for Python and notebooks."""

import json
import math
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import autobyte
from autobyte import Cluster, Config, Job, Scenario
from autobyte.cli import run
from autobyte.errors import InputError, MissingExtra
from autobyte.models import find
from autobyte.scenario import Change

PROFILE = Path(__file__).parents[1] / "data" / "small_vgg.json"
JOB = Job(find(str(PROFILE)), Cluster.uniform(8, 1.25e8))
COMMAND = ["compare", "--model", str(PROFILE), "--bandwidth", "1Gbit", "--budget", "3", "--seeds", "1", "--json"]
KNOBS = ("fusion", "cycle_ms")
CPU = "tuner_cpu_s"  # the one number that is measured


def without_cpu(outcome: dict) -> dict:  # type: ignore[type-arg]
    for row in outcome["tuners"]:
        del row[CPU], row["spread"][CPU]
    return outcome


def test_tuners_are_compared_as_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*COMMAND, "--tuners", "default,random"]) == 0
    found = autobyte.compare(JOB, ["default", "random"], budget=3, seeds=1)
    assert without_cpu(json.loads(json.dumps(found.to_json()))) == without_cpu(json.loads(capsys.readouterr().out))


def test_policies_are_compared_as_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*COMMAND, "--policies", "ddp,usbyte"]) == 0
    found = autobyte.compare(JOB, policies=["ddp", "usbyte"], budget=3, seeds=1)
    assert found.to_json() == json.loads(capsys.readouterr().out)


def test_it_becomes_a_data_frame_and_a_table() -> None:
    found = autobyte.compare(JOB, policies=["ddp", "usbyte"], budget=2, seeds=1)
    frame = found.to_frame()
    assert list(frame.index) == ["ddp", "usbyte"]
    for name, row in zip(frame.index, found.rows, strict=True):
        config = Config.from_json(row["config"])
        assert frame.loc[name, "step_s"] == row["step_s"]
        assert (frame.loc[name, "policy"], frame.loc[name, "partition_bytes"]) == (name, config.partition_bytes)
    best = max(found.rows, key=lambda row: row["samples_per_s"])["name"]
    assert repr(found).startswith(f"Comparison(2 policies on small_vgg, allreduce, 8 workers: '{best}' is fastest")
    assert len(ET.fromstring(found._repr_html_()).findall("tbody/tr")) == 2


def test_the_columns_of_a_data_frame_are_explained() -> None:
    """In the docstring and on the page, each of them; and what is not known is not a number."""
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text().partition("## Comparisons as DataFrames")[2]
    found = [{"tuners": ["default"]}, {"policies": ["bytescheduler:fusion=1", "horovod"]}]
    for what in found:
        frame = autobyte.compare(JOB, budget=1, seeds=1, **what).to_frame()  # type: ignore[arg-type]
        for column in frame:
            assert f"`{column}`" in page
            assert f"`{column}`" in str(autobyte.comparison.compare.Comparison.to_frame.__doc__) or column in KNOBS
    alone = autobyte.compare(Job(JOB.model, Cluster.uniform(1, 1e9)), ["default"], budget=1, seeds=1)
    assert math.isnan(alone.to_frame().loc["default", "gap_closed"])  # one worker: DDP is at the bound


def test_without_pandas_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    found = autobyte.compare(JOB, policies=["fifo"], budget=1, seeds=1)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"^a DataFrame needs pandas: pip install 'autobyte\[pandas\]'$"):
        found.to_frame()


def test_an_unfinished_comparison_goes_on(tmp_path: Path) -> None:
    kept = tmp_path / "trials.sqlite"
    first = autobyte.compare(JOB, ["default"], budget=2, seeds=1, results=kept)
    again = autobyte.compare(JOB, ["default", "random"], budget=2, seeds=1, results=kept)
    assert again.rows[0]["config"] == first.rows[0]["config"]
    with pytest.raises(autobyte.AutoByteError, match="holds another run"):
        autobyte.compare(JOB, ["default"], budget=3, seeds=1, results=kept)


@pytest.mark.parametrize(
    ("keywords", "wrong"),
    [
        ({"tuners": ["grid"]}, "tuners"),
        ({"space": autobyte.Space()}, "space"),
        ({"scenario": Scenario((Change(1, slowdown=2.0),))}, "scenario"),
    ],
)
def test_what_is_for_tuners_is_refused_for_policies(keywords: dict[str, object], wrong: str) -> None:
    with pytest.raises(InputError, match=rf"leave {wrong}= out$"):
        autobyte.compare(JOB, policies=["ddp"], **keywords)  # type: ignore[arg-type]


def test_report_shows_a_comparison_of_policies(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = [*COMMAND[:-1], "--policies", "ddp,usbyte", "--out", str(tmp_path / "all" / "mine")]
    (tmp_path / "all").mkdir()
    assert run(words) == 0
    printed = capsys.readouterr().out.split("written to")[0]
    for folder in (tmp_path / "all", tmp_path / "all" / "mine"):
        assert run(["report", str(folder)]) == 0
        assert capsys.readouterr().out == f"mine: a comparison of policies\n{printed}"
    assert run(["report", str(tmp_path / "all"), "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["policies"]] == ["ddp", "usbyte"]
    (tmp_path / "all" / "mine" / "policies.json").write_text("{")
    assert run(["report", str(tmp_path / "all")]) == 2
    assert "cannot read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("vgg16", ["default"]), r"^job must be a Job, got 'vgg16': say Job\(load\('vgg16'\), "),
        ((None, "default"), r"^tuners must be a list of names, got 'default': say \['default'\]$"),
    ],
    ids=["a name for a job", "a name for a list"],
)
def test_a_wrong_kind_of_argument_is_named(words: tuple[Any, Any], told: str) -> None:
    job, tuners = words
    with pytest.raises(InputError, match=told):
        autobyte.compare(job or JOB, tuners)
