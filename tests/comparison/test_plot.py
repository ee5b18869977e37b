"""Pictures: everything at its place, every name readable, the same bytes every time."""

import copy
import math
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from contests import TOY, held, small_contest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.figure import Figure

from autobyte.comparison.panels.labels import CLEARANCE, leader, place, spread
from autobyte.comparison.panels.landscape import draw_landscape, edges, outline, places
from autobyte.comparison.panels.look import COLOURS, DASHES, look, new_figure, styled, svg, wrapped
from autobyte.comparison.panels.regret import apart, coinciding, draw_regret, regret_height
from autobyte.comparison.plot import draw_comparison, picture
from autobyte.comparison.title import title
from autobyte.config import Config, Space
from autobyte.errors import FileError
from autobyte.job import Cluster, Job
from autobyte.scenario import Change, Scenario
from autobyte.units import KIB

Outcome = dict[str, Any]
TEN = (
    "default",
    "p3",
    "grid",
    "random",
    "bayesian",
    "annealing",
    "pretrained",
    "us-byte",
    "hyperband",
    "evolutionary",
)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return held(small_contest(), tmp_path_factory.mktemp("plot"))


@pytest.fixture
def axes() -> Iterator[Axes]:
    with styled():
        _, (made,) = new_figure(1.6, top=0.3)
        yield made


def with_tuners(outcome: Outcome, *tuners: tuple[str, Config, list[float]]) -> Outcome:
    """The same comparison with other tuners, their configs and their curves."""
    template = outcome["tuners"][0]
    rows = [template | {"name": n, "config": c.to_json(), "regret_curve": curve} for n, c, curve in tuners]
    return outcome | {"tuners": rows}


def ten(outcome: Outcome, *, across: float) -> Outcome:
    """Ten tuners that end at different places, within some powers of two of 8 MiB, and fall at different rates."""
    draw = np.random.default_rng(3)
    rows = []
    for index, name in enumerate(TEN):
        partition = round(2 ** draw.uniform(23 - across, 23 + across))
        credit = round(partition * 2 ** draw.uniform(0, across / 2))
        rows.append((name, Config(partition, credit), [0.9 * (0.80 + 0.02 * index) ** k for k in range(30)]))
    return with_tuners(outcome, *rows)


def fourteen(outcome: Outcome) -> Outcome:
    """All that `make judge` judges and more, most of them near each other."""
    more = ("bayesian-published", "metanet-published", "optuna-random", "optuna-cmaes")
    rows = [(t["name"], Config.from_json(t["config"]), t["regret_curve"]) for t in ten(outcome, across=2)["tuners"]]
    rows += [(name, Config((20 + k) << 20, (24 + k) << 20), [0.5, 0.02 - 0.002 * k]) for k, name in enumerate(more)]
    return with_tuners(outcome, *rows)


def alike(outcome: Outcome) -> Outcome:
    """Ten tuners that are at the optimum from the start."""
    best = outcome["optimum"]
    config = Config(best["partition_bytes"], best["credit_bytes"])
    return with_tuners(outcome, *((name, config, [0.0, 0.0, 0.0]) for name in TEN))


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


# Regret


def test_curves_stand_at_the_decisions(axes: Axes, outcome: Outcome) -> None:
    draw_regret(axes, outcome)
    drawn = [line for line in axes.lines if line.get_drawstyle() == "steps-post"]
    assert {tuple(line.get_ydata()) for line in drawn} == {tuple(t["regret_curve"]) for t in outcome["tuners"]}
    assert all(list(line.get_xdata()) == [10, 20, 30] for line in drawn)
    dashed = [line for line in axes.lines if list(line.get_ydata()) == [0.03, 0.03]]
    assert len(dashed) == 1
    ticks = dict(zip(axes.get_yticks(), (tick.get_text() for tick in axes.get_yticklabels()), strict=True))
    assert ticks[0.03] == "3 %"


def test_curves_that_coincide_are_one_with_all_names(axes: Axes, outcome: Outcome) -> None:
    draw_regret(axes, alike(outcome))
    assert coinciding(alike(outcome)) == {(0.0, 0.0, 0.0): list(range(10))}
    assert len([line for line in axes.lines if line.get_drawstyle() == "steps-post"]) == 1
    (label,) = texts(axes)
    assert label.replace("\n", " ").split(", ") == list(TEN)


def test_every_curve_is_named_at_the_height_of_its_end(axes: Axes, outcome: Outcome) -> None:
    ends = (0.8, 0.2, 0.01)
    draw_regret(axes, with_tuners(outcome, *((str(end), Config(1, 1), [0.9, end]) for end in ends)))
    assert sorted(texts(axes)) == sorted(str(end) for end in ends)
    for text in axes.texts:
        end = float(text.get_text())
        height = axes.transData.transform((0, end))[1]
        assert axes.transAxes.transform(text.get_position())[1] == pytest.approx(height, abs=0.01)


def test_ten_tuners_look_different() -> None:
    looks = [look(index) for index in range(len(COLOURS) * len(DASHES))]
    assert len(looks) >= 10
    assert all(one != other for one, other in combinations(looks, 2))


def test_changes_of_the_cluster_are_marked(axes: Axes, outcome: Outcome) -> None:
    draw_regret(axes, outcome | {"changes": [7, 19]})
    assert [line.get_xdata()[0] for line in axes.lines if len(set(line.get_xdata())) == 1][:2] == [7, 19]


def test_many_curves_have_a_panel_each_the_best_first(outcome: Outcome) -> None:
    many = fourteen(outcome)
    with styled():
        _, (axes,) = new_figure(regret_height(many), top=0.3)
        draw_regret(axes, many)
    panels = axes.child_axes
    curves = {tuner["name"]: tuple(tuner["regret_curve"]) for tuner in many["tuners"]}
    names = [panel.texts[0].get_text() for panel in panels]
    assert sorted(names, key=lambda name: curves[name][-1]) == names
    assert set(names) == curves.keys()
    for panel, name in zip(panels, names, strict=True):
        (own,) = (line for line in panel.lines if line.get_drawstyle() == "steps-post" and line.get_alpha() is None)
        assert tuple(own.get_ydata()) == curves[name]
    assert apart(many)
    assert not apart(with_tuners(many, *[(n, Config(1, 1), list(c)) for n, c in list(curves.items())[:5]]))


def test_a_long_name_breaks_at_its_hyphens() -> None:
    assert wrapped(["metanet-published"], 13) == ["metanet-", "published"]
    assert wrapped(["p3", "optuna-gp"], 10) == ["p3,", "optuna-gp"]


# Landscape


def test_every_cell_has_its_speed(axes: Axes, outcome: Outcome) -> None:
    draw_landscape(axes, outcome)
    (cells,) = (artist for artist in axes.collections if isinstance(artist, QuadMesh))
    land = outcome["landscape"]
    assert np.array_equal(cells.get_array(), np.array(land["samples_per_s"]).T)
    corners = cells.get_coordinates()
    for column, partition in enumerate(land["partition_bytes"]):
        for row, ratio in enumerate(land["credit_ratio"]):
            (left, low), (right, high) = corners[row, column], corners[row + 1, column + 1]
            assert left < math.log2(partition) < right
            assert low < math.log2(ratio) < high
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["4 KiB", "256 KiB", "16 MiB", "1 GiB"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["1x", "2x", "4x", "8x", "16x"]


def test_marks_stand_at_their_configs(axes: Axes, outcome: Outcome) -> None:
    draw_landscape(axes, outcome)

    def where(config: Outcome) -> tuple[float, float]:
        return math.log2(config["partition_bytes"]), math.log2(config["credit_bytes"] / config["partition_bytes"])

    def marked(shape: str) -> set[tuple[float, float]]:
        lines = [line for line in axes.lines if line.get_marker() == shape]
        return {(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in lines}

    assert marked("*") == {where(outcome["optimum"])}
    assert marked("D") == {where(outcome["best_constant"])}
    assert marked("o") == {where(tuner["config"]) for tuner in outcome["tuners"]}


def test_tuners_at_one_config_share_a_label(axes: Axes, outcome: Outcome) -> None:
    here, there = Config(8 * KIB, 8 * KIB), Config(16 * KIB, 64 * KIB)
    shared = with_tuners(outcome, ("a", here, [0.1]), ("b", there, [0.1]), ("c", here, [0.1]))
    assert [tuners for _, tuners in places(shared).values() if tuners] == [["a", "c"], ["b"]]
    draw_landscape(axes, shared)
    assert {text.get_text(): text.xy for text in axes.texts if hasattr(text, "xy")} == {"a, c": (13, 0), "b": (14, 2)}


def test_the_outline_is_around_what_is_within_3_percent(axes: Axes, outcome: Outcome) -> None:
    draw_landscape(axes, outcome)
    (fence,) = (artist for artist in axes.collections if type(artist) is LineCollection)
    speed = np.array(outcome["landscape"]["samples_per_s"]).T
    good = speed / outcome["optimum"]["samples_per_s"] >= 0.97
    assert len(fence.get_segments()) == len(list(outline(good))) > 0


@given(arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=5)))
def test_an_outline_separates_set_cells_from_the_rest(cells: np.ndarray) -> None:
    rows, columns = cells.shape

    def is_set(row: int, column: int) -> bool:
        return 0 <= row < rows and 0 <= column < columns and bool(cells[row, column])

    upright = {
        ((c, r), (c, r + 1)) for r in range(rows) for c in range(columns + 1) if is_set(r, c - 1) != is_set(r, c)
    }
    flat = {((c, r), (c + 1, r)) for r in range(rows + 1) for c in range(columns) if is_set(r - 1, c) != is_set(r, c)}
    drawn = list(outline(cells))
    assert set(drawn) == upright | flat
    assert len(drawn) == len(set(drawn))


@given(st.lists(st.integers(0, 100), min_size=1, max_size=8, unique=True).map(sorted))
def test_cells_lie_around_their_centres(centres: list[int]) -> None:
    found = edges(np.array(centres, dtype=float))
    assert all(low < centre < high for (low, high), centre in zip(pairwise(found), centres, strict=True))


# Labels

HEIGHTS = st.lists(st.tuples(st.floats(-20, 120), st.floats(1, 9)), min_size=1, max_size=10)


@given(HEIGHTS)
def test_a_column_of_labels_has_no_overlap_and_keeps_their_order(labels: list[tuple[float, float]]) -> None:
    wanted, heights = zip(*labels, strict=True)
    centres = spread(wanted, heights, low=0, high=100)
    order = sorted(range(len(labels)), key=lambda i: wanted[i])
    for below, above in pairwise(order):
        assert centres[above] - centres[below] >= (heights[above] + heights[below]) / 2 - 1e-9
    assert all(h / 2 - 1e-9 <= c <= 100 - h / 2 + 1e-9 for c, h in zip(centres, heights, strict=True))


def test_labels_that_do_not_touch_stay_where_they_are() -> None:
    assert spread([50, 10, 90], [10, 10, 10], low=0, high=100) == [50, 10, 90]


def test_labels_that_touch_move_by_as_little_as_there_is() -> None:
    wanted, heights = [40.0, 42.0, 60.0], [10.0, 10.0, 10.0]
    centres = spread(wanted, heights, low=0, high=100)
    steps = np.arange(20, 80, 0.5)
    fits = [(a, b) for a in steps for b in steps if b - a >= 10 and 60 - b >= 10]  # by brute force
    best = min(fits, key=lambda ab: (ab[0] - 40) ** 2 + (ab[1] - 42) ** 2)
    assert centres == [*best, 60]


SPOTS = st.lists(st.tuples(st.floats(5, 145), st.floats(5, 120)), min_size=1, max_size=7)


def touch(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def inside(box: tuple[float, ...], width: float, height: float) -> bool:
    return min(box) >= 0 and box[2] <= width and box[3] <= height


@settings(max_examples=40)
@given(SPOTS, st.floats(10, 45))
def test_labels_cover_neither_each_other_nor_a_mark(marks: list[tuple[float, float]], width: float) -> None:
    size = (width, 10.0)
    corners = place(marks, [size] * len(marks), within=(0, 0, 150, 125))
    boxes = [(x, y, x + width, y + 10.0) for x, y in corners]
    assert all(inside(box, 150, 125) for box in boxes)
    assert not any(touch(a, b) for a, b in combinations(boxes, 2))
    reach = CLEARANCE - 1e-9
    spots = [(x - reach, y - reach, x + reach, y + reach) for x, y in marks]
    assert not any(touch(box, spot) for box in boxes for spot in spots)


def test_a_label_that_is_far_has_a_leader_and_one_that_is_near_has_none() -> None:
    assert leader((0, 0), (5, -5), (20, 10)) == []
    line = leader((0, 0), (30, -5), (20, 10))
    assert line[0] == (0, 0)
    assert line[-1] == (30, 0)


def test_a_label_without_any_room_stands_on_its_mark() -> None:
    assert place([(5, 5)], [(50, 50)], within=(0, 0, 10, 10)) == [(5, 5)]


# The whole


def drawn(outcome: Outcome) -> Figure:
    with styled():
        return picture(outcome)


def shown(figure: Figure) -> list[tuple[str, tuple[float, ...]]]:
    """Every text that is seen, with its extent in pixels."""
    figure.draw_without_rendering()
    found = []
    for text in figure.findobj(matplotlib.text.Text):
        if text.get_text() and text.get_visible() and (extent := text.get_window_extent()).width:
            found.append((text.get_text(), (extent.x0 + 0.5, extent.y0 + 1, extent.x1 - 0.5, extent.y1 - 1)))
    return found


def one_point(outcome: Outcome) -> Outcome:
    land = {"partition_bytes": [4096], "credit_ratio": [1.0], "samples_per_s": [[7.0]]}
    return with_tuners(outcome, ("grid", Config(4096, 4096), [0.0])) | {"landscape": land}


@pytest.mark.parametrize(
    "change",
    [
        copy.copy,
        alike,
        one_point,
        lambda o: o | {"tuners": o["tuners"][:1]},
        lambda o: ten(o, across=5),
        lambda o: ten(o, across=2),
        fourteen,
        lambda o: (
            o | {"job": o["job"] | {"model": "a long name " * 8, "scenario": "everything at once"}, "changes": [5]}
        ),
    ],
    ids=["real", "alike", "one-point", "one-tuner", "ten", "ten-close", "fourteen", "scenario"],
)
def test_no_two_texts_overlap_and_none_is_cut_off(outcome: Outcome, change: Any) -> None:
    figure = drawn(change(outcome))
    found = shown(figure)
    assert {"iteration", "samples/s"} <= {text for text, _ in found}
    overlaps = [(a, b) for (a, one), (b, other) in combinations(found, 2) if touch(one, other)]
    assert overlaps == []
    assert [text for text, box in found if not inside(box, figure.bbox.width, figure.bbox.height)] == []


def test_a_real_scenario_is_drawn(tmp_path: Path) -> None:
    slower = Scenario("10 to 3 Gbit/s", (Change(at=15, up=3.75e8, down=3.75e8),))
    found = held(small_contest(tuners=("random",), scenario=slower), tmp_path)
    assert found["changes"] == [15]
    texts = [text.replace("\n", " ") for text, _ in shown(drawn(found))]
    assert any("10 to 3 Gbit/s" in text for text in texts)
    assert any("at first" in text for text in texts)


def test_a_real_grid_of_one_point_is_drawn(tmp_path: Path) -> None:
    point = Space((64 * KIB, 64 * KIB), (2.0, 2.0), Config(64 * KIB, 128 * KIB))
    found = held(small_contest(tuners=("grid",), space=point), tmp_path)
    draw_comparison(found, tmp_path / "compare.png")
    assert (tmp_path / "compare.png").stat().st_size > 10_000


def test_two_pictures_are_equal_to_the_byte(outcome: Outcome, tmp_path: Path) -> None:
    draw_comparison(outcome, tmp_path / "one.png")
    with matplotlib.rc_context({"font.size": 30, "text.color": "red", "savefig.dpi": 50}):  # as a user's matplotlibrc
        draw_comparison(copy.deepcopy(outcome), tmp_path / "other.png")
    data = (tmp_path / "one.png").read_bytes()
    assert data == (tmp_path / "other.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert b"tEXt" not in data
    assert int.from_bytes(data[16:20]) == 1050  # 3.5 inches of 300 dots


def test_two_panels_are_equal_to_the_byte(outcome: Outcome) -> None:
    def panel() -> str:
        return svg(lambda axes: draw_landscape(axes[0], outcome), 1.7, name="land", what='a "panel"')

    text = panel()
    assert text == panel()
    assert text.startswith('<svg role="img" aria-label="a &quot;panel&quot;"')
    assert "http" not in text
    assert "currentColor" in text


def test_drawing_leaves_matplotlib_as_it_was(outcome: Outcome, tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    draw_comparison(outcome, tmp_path / "compare.png")
    assert dict(matplotlib.rcParams) == before
    script = "import sys, autobyte.comparison.page; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_names_are_drawn_as_they_are(outcome: Outcome) -> None:
    strange = with_tuners(outcome, ("$x^2$", Config(KIB, KIB), [0.1]), ("模\n型", Config(KIB, KIB), [0.2]))
    figure = drawn(strange | {"job": outcome["job"] | {"model": "a$b$c"}})
    formulas = [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_parse_math()]
    assert [text for text in formulas if "$" in text] == ["partition $S_p$", "credit $S_c$"]
    texts = [text for text, _ in shown(figure)]
    assert "$x^2$" in texts
    assert "? ?" in texts
    assert any(text.startswith("a$b$c · ") for text in texts)


def test_the_title_says_what_it_is_about(outcome: Outcome) -> None:
    assert title(outcome) == "toy · allreduce · 4 workers · 1 Gbit/s · simulated"
    job = Job(TOY, Cluster(2, 2, (1.25e9, 3.75e8), (1.25e9,))).to_json() | {"scenario": "straggler"}
    assert (
        title({"job": job, "what": "simulated"})
        == "toy · ps · 2 workers · 3 Gbit/s to 10 Gbit/s · simulated · straggler"
    )
    endless = Job(TOY, Cluster.uniform(2, math.inf)).to_json() | {"scenario": "steady"}
    assert title({"job": endless, "what": "simulated"}) == "toy · allreduce · 2 workers · inf Gbit/s · simulated"


def test_a_picture_that_cannot_be_written_is_one_line(outcome: Outcome, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"cannot write .*nowhere/compare.png: No such file or directory"):
        draw_comparison(outcome, tmp_path / "nowhere" / "compare.png")
