"""Several comparisons on one page: every tuner in every scenario, and a way to each page."""

from pathlib import Path

import pytest
from contests import held, small_contest

from autobyte.cli import run
from autobyte.comparison.outcome import read_outcome
from autobyte.comparison.overview import render, write_overview
from autobyte.comparison.panels.cost import draw_cost
from autobyte.comparison.panels.look import new_figure, styled
from autobyte.errors import FileError
from autobyte.scenario import Change, Scenario


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two comparisons side by side, with tuners that are not in both, and something else."""
    folder = tmp_path_factory.mktemp("several")
    (folder / "still").mkdir()
    held(small_contest(tuners=("default", "p3")), folder / "still")
    (folder / "notes").mkdir()
    scenario = Scenario("<slower>", (Change(at=20, up="10%", down="10%"),))
    (folder / "slower").mkdir()
    held(small_contest(tuners=("default", "random"), scenario=scenario), folder / "slower")
    return folder


def test_every_tuner_is_set_beside_the_oracle_in_every_scenario(folder: Path) -> None:
    page = write_overview(folder).read_text(encoding="utf-8")
    assert page.count("<tr") == 1 + 3 + 1  # the head, three tuners, the best constant
    assert "&lt;slower&gt;" in page
    assert "<slower>" not in page
    assert ">still</a>" in page  # nothing changes: the folder says which it is
    for name in ("still", "slower"):
        assert f'href="{name}/report.html"' in page
        assert (folder / name / "report.html").exists()
        outcome = read_outcome(folder / name / "compare.json")
        default = next(tuner for tuner in outcome["tuners"] if tuner["name"] == "default")
        assert f"{100 * default['samples_per_s'] / outcome['oracle']['samples_per_s']:.1f}&nbsp;%" in page
    p3, random = (page[page.index(f">{name}</th>") :].split("</tr>")[0] for name in ("p3", "random"))
    assert p3.count("–") == random.count("–") == 1


def test_the_command_takes_either(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(folder)]) == 0
    assert str(folder / "report.html") in "".join(capsys.readouterr().out.split())
    assert run(["report", str(folder / "still")]) == 0


def test_a_comparison_of_an_earlier_version_has_no_oracle(folder: Path) -> None:
    outcome = read_outcome(folder / "still" / "compare.json")
    assert render({"old": outcome | {"oracle": None}}).count("<td>–</td>") == 3


def test_nothing_finished_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no comparison was finished"):
        write_overview(tmp_path)


def test_search_cost_is_drawn_for_every_tuner_and_what_came_before(folder: Path) -> None:
    outcome = read_outcome(folder / "slower" / "compare.json")
    with styled():
        _, (axes,) = new_figure(0.6, top=0.1)
        draw_cost(axes, outcome)
    widths = [bar.get_width() for bar in axes.patches]
    by_cost = sorted(outcome["tuners"], key=lambda tuner: tuner["search_cost_s"])
    assert widths == [tuner["search_cost_s"] for tuner in by_cost]
    diamonds = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "D"]
    assert diamonds == [tuner["before_cost_s"] for tuner in by_cost if tuner["before_cost_s"] is not None]
    assert len(diamonds) == 1
