"""A cell of each figure from 3 on, computed again, is the committed one; no pair is faster than the optimum."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import pandas as pd
import pytest

PAPER = Path(__file__).parents[2] / "paper"
DIGITS = 2e-5  # of what is written with six figures


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The scripts can be imported: they only draw, and write nothing."""
    (tmp_path / "data").symlink_to(PAPER / "data")
    monkeypatch.setattr(sys, "path", [str(PAPER), *sys.path])
    monkeypatch.setattr(sys, "argv", ["figure", "--redraw", "--out", str(tmp_path)])
    with matplotlib.rc_context():
        style = load("style")
        monkeypatch.setattr(style, "save", lambda figure, *_, **__: style.plt.close(figure))
        yield tmp_path


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


def committed(name: str, **where: Any) -> pd.DataFrame:
    table = pd.read_csv(PAPER / "data" / f"{name}.csv")
    for column, value in where.items():
        table = table[table[column] == value]
    assert not table.empty, (name, where)
    return table


def test_figure_5(scripts: Path) -> None:
    figure = load("fig05_convergence")
    run = ("nccl", "ps", "2,2", "metanet", 0)
    place = dict(zip(figure.RUN, run, strict=True))
    (speeds, in_force), before = figure.trial(run), committed(figure.NAME, **place)
    assert [figure.jobs.label(config) for _, config, _ in speeds] == before["pair"].tolist()
    assert [speed for *_, speed in speeds] == pytest.approx(before["samples_per_s"].tolist(), rel=DIGITS)
    truth = figure.changing.Truth(figure.cell_of(run), in_force, [])
    ends = committed(f"{figure.NAME}.summary", **place)
    again = figure.summary(run, in_force, truth.of_run(), ends["best_samples_per_s"].item())
    for key in ("predictions", "reconfigurations", "start_samples_per_s", "end_samples_per_s", "staying_first_fifty"):
        assert again[key] == pytest.approx(ends[key].item(), rel=DIGITS), key


def test_nothing_in_figure_5_is_faster_than_the_optimum(scripts: Path) -> None:
    figure, world = load("fig05_convergence"), {"block_cost": "nccl", "architecture": "ps", "seed": 0}
    rows = committed(figure.NAME, **world)
    optimum = rows[rows["tuner"] == "oracle"].set_index("iteration")["samples_per_s"]
    assert (rows["samples_per_s"] <= rows["iteration"].map(optimum)).all()
    ends = committed(f"{figure.NAME}.summary", **world)
    assert ends["best_samples_per_s"].nunique() == 1
    assert (ends[["start_samples_per_s", "end_samples_per_s"]].max(axis=1) <= ends["best_samples_per_s"]).all()
    cell = figure.cell_of(("nccl", "ps", "", "", 0))
    for pair in figure.Space().grid()[
        8 * 16 :: 11
    ]:  # from partitions of 1 MiB on: smaller ones take seconds to simulate
        speeds = cell.job.samples * figure.changing.SLOT / figure.changing.seconds_of_slots(cell, [pair])
        assert (speeds <= 1.005 * optimum.to_numpy()).all(), pair


@pytest.mark.parametrize(
    ("script", "windows", "place"),
    [
        ("fig06_dynamic_bandwidth", 12, ("nccl", 0, 64, "allreduce", "resnet50", 0)),
        ("fig07_shared_resources", 6, ("nccl", 0, 64, "ps", "resnet50", 0)),
    ],
)
def test_figures_6_and_7(script: str, windows: int, place: tuple[Any, ...], scripts: Path) -> None:
    figure, changing = load(script), load("changing")
    gbit = figure.HIGH_GBIT if hasattr(figure, "HIGH_GBIT") else figure.GBIT
    cell = changing.Cell(figure.scenario, gbit, windows, *place)
    before = committed(f"{script}.phases", **cell.place)
    again = changing.phases(cell, changing.trial(cell))
    for method in ("bayesian", "robust", "twin", "metanet-published", "metanet", "oracle"):
        assert [row[method] for row in again] == pytest.approx(before[method].tolist(), rel=DIGITS), method


@pytest.mark.parametrize(
    ("name", "architecture"), [("fig08_parameter_server", "ps"), ("fig09_allreduce", "allreduce")]
)
def test_figures_8_and_9(name: str, architecture: str, scripts: Path) -> None:
    environments = load("environments")
    row, _ = environments._trial(("nccl", "resnet50", 10, architecture, "metanet", 0))
    before = committed(name, block_cost="nccl", model="resnet50", gbit=10, method="metanet", seed=0)
    assert row["pair"] == before["pair"].item()
    for speed in ("samples_per_s", "first_fifty"):
        assert row[speed] == pytest.approx(before[speed].item(), rel=DIGITS)


def test_figure_10(scripts: Path) -> None:
    figure, landscape, config = (
        load("fig10_search_cost"),
        load("autobyte.simulator.landscape"),
        load("autobyte.config"),
    )
    cost, architecture, model = place = ("nccl", "ps", "resnet50")
    job = figure.jobs.job(model, figure.GBIT, architecture, cost=cost)
    figure.best = {place: landscape.survey(job, config.Space().grid()).best_s}
    row, _ = figure.trial((*place, "metanet", 0))
    before = committed(figure.NAME, block_cost=cost, architecture=architecture, model=model, tuner="metanet", seed=0)
    assert row["iterations"] == before["iterations"].item()
    assert row["lost_steps"] == pytest.approx(before["lost_steps"].item(), rel=DIGITS)


def test_figure_3(scripts: Path) -> None:
    figure = load("fig03_optimal_pairs")
    place = {"block_cost": "nccl", "architecture": "allreduce", "panel": "b", "model": "resnet50", "gbit": 20}
    rows, best = figure.measured((*place.values(), figure.BY_GBIT[20]))
    before = committed(figure.NAME, **place)["samples_per_s"]
    assert [row["samples_per_s"] for row in rows] == pytest.approx(before.tolist(), rel=DIGITS)
    assert best["ours"] == committed(f"{figure.NAME}.best", **place)["ours"].item()


def test_table_1(scripts: Path) -> None:
    table = load("table1_methods")
    place = {"block_cost": "nccl", "factor": "model", "tuner": "metanet", "seed": 0}
    row, before = table.trial(tuple(place.values())), committed(table.NAME, **place)
    assert row["pair"] == before["pair"].item()
    assert row["regret"] == pytest.approx(before["regret"].item(), rel=DIGITS)


def test_where_tuning_matters(scripts: Path) -> None:
    diagram = load("when_tuning_matters")
    place = (0.09, "held", 0, "allreduce")
    at = diagram.RATIOS[1:3]  # a change that ties do not survive, and back
    picks = {before: diagram.searches((*place, before)) for before in at}
    for before, tuners in picks.items():
        known = committed(f"{diagram.NAME}.picks", **diagram.named(place), before=before)
        pairs = {tuner: diagram.jobs.label(pick) for tuner, pick in tuners.items()}
        assert pairs == dict(zip(known["tuner"], known["pair"], strict=True))
    for row in diagram.losses((place, picks)):
        before = committed(diagram.NAME, **diagram.named(place), before=row["before"], after=row["after"])
        assert row["tied"] == before["tied"].item()
        for who in diagram.TITLES:
            assert row[who] == pytest.approx(before[who].item(), rel=DIGITS, abs=1e-9), who


def test_a_cost_that_is_hidden_as_latency_is_the_same_cost(scripts: Path) -> None:
    """A single block, alone on the link, takes as long either way."""
    diagram, steady, models = load("when_tuning_matters"), load("autobyte.simulator.steady"), load("autobyte.job")
    one = models.Model.build("one tensor", [("layer", [("weight", 1 << 20)], 1e-3, 1e-3)], batch_size=1)
    for architecture in ("ps", "allreduce"):
        took = []
        for where in ("held", "latency"):
            job, space = diagram.setting((0.92, where, 0, architecture))
            took.append(steady.step_s(diagram.replace(job, model=one), space.grid()[-1]))
        assert took[0] == pytest.approx(took[1], rel=1e-9), architecture
        free = diagram.replace(job.cluster, latency_s=0.0)
        least_s = steady.step_s(diagram.replace(job, model=one, cluster=free), space.grid()[-1])
        assert took[0] - least_s == pytest.approx(0.92e-3, rel=1e-6), architecture


def test_no_pair_that_ran_in_one_slot_is_faster_than_the_optimum_in_another(scripts: Path) -> None:
    changing, figure = load("changing"), load("fig06_dynamic_bandwidth")
    cell = changing.Cell(figure.scenario, figure.HIGH_GBIT, figure.WINDOWS, "nccl", 0, 64, "ps", "resnet50", 0)
    drawn = committed(figure.NAME, **cell.place)
    optimum = drawn[drawn["method"] == "oracle"].sort_values("iteration")["samples_per_s"]
    ran = drawn[drawn["method"].isin(["hindsight", "all-knowing", "robust", "twin", "metanet"])]["pair"].unique()
    pairs = [tuple(float(number) for number in pair.strip("⟨⟩").split(",")) for pair in ran]
    assert len(pairs) >= 4
    for partition_mb, credit in pairs:
        took = changing.seconds_of_slots(cell, [figure.jobs.pair(partition_mb, credit)])[0]
        speeds = cell.job.samples * changing.SLOT / took
        assert (speeds <= 1.005 * optimum.to_numpy()).all(), (partition_mb, credit)  # labels have three digits


def test_the_optimum_knows_pairs_beside_those_that_ran(scripts: Path) -> None:
    """In a short run: no pair of the whole grid is faster than it by more than what pruning may miss."""
    changing, figure = load("changing"), load("fig06_dynamic_bandwidth")
    cell = changing.Cell(figure.scenario, figure.HIGH_GBIT, 4, "nccl", 0, 64, "allreduce", "resnet50", 0)
    grid = changing.Space(default=cell.default).grid()
    pruned = changing.Truth(cell, [cell.default], grid)
    best = [1 / speed for _, _, speed in pruned.of_slots()]
    for config in grid[6 * 16 :: 3]:  # from partitions of 256 KiB on: smaller ones take seconds to simulate
        took = changing.seconds_of_slots(cell, [config])[0] / (cell.job.samples * changing.SLOT)
        assert all(seconds >= 0.995 * least for seconds, least in zip(took, best, strict=True)), config


def test_of_ties_the_pair_with_the_fewest_bytes_in_flight(scripts: Path) -> None:
    changing, trace, tuning, config = (
        load(n) for n in ("changing", "autobyte.trace", "autobyte.tuning", "autobyte.config")
    )
    times = {(8, 32): 1.0, (4, 8): 1.015, (1, 1): 1.5, (4, 4): 1.03}
    decisions = []
    for at, ((partition, credit), seconds) in enumerate(times.items()):
        pair = config.Config(partition << 20, credit << 20)
        window = trace.Measurement(pair, 10 * at, (seconds,) * 10, 2, None)
        decisions.append(tuning.Decision(window, pair, 0.0))
    assert changing.robust(decisions) == config.Config(4 << 20, 8 << 20)
