"""Every figure can be made, again with the same numbers, and drawn from its CSV alone."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from beds import needs_namespaces

PAPER = Path(__file__).parents[2] / "paper"
SCRIPTS = sorted(path.stem for pattern in ("fig*.py", "table*.py", "when*.py") for path in PAPER.glob(pattern))


def run(script: str, *options: str | Path) -> None:
    """Run a script, warnings being errors."""
    command = [sys.executable, "-W", "error", PAPER / f"{script}.py", *options]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"MPLBACKEND": "pdf"}, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def seeded(folder: Path) -> dict[str, bytes]:
    """What a seed determines: every CSV but those of a clock."""
    files = (folder / "data").glob("*.csv")
    return {path.name: path.read_bytes() for path in files if not path.name.endswith(".measured.csv")}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_makes_its_figure_and_draws_it_again_from_the_csv(script: str, tmp_path: Path) -> None:
    run(script, "--quick", "--out", tmp_path)
    figures = tmp_path / "figures"
    first = {path.name: path.read_bytes() for path in figures.iterdir()}
    assert sorted(first) == [f"{script}.pdf", f"{script}.png"]
    for path in figures.iterdir():
        path.unlink()
    run(script, "--redraw", "--out", tmp_path)
    assert {path.name: path.read_bytes() for path in figures.iterdir()} == first


@pytest.mark.parametrize("script", ["fig05_convergence", "fig07_shared_resources", "fig10_search_cost"])
def test_a_seed_determines_the_numbers(script: str, tmp_path: Path) -> None:
    for name in ("one", "other"):
        run(script, "--quick", "--out", tmp_path / name)
    run(script, "--quick", "--seed", "7", "--out", tmp_path / "third")
    assert seeded(tmp_path / "one") == seeded(tmp_path / "other")
    assert seeded(tmp_path / "one") != seeded(tmp_path / "third")


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_numbers_behind_a_committed_figure_are_committed_and_say_what_they_are(script: str) -> None:
    for suffix in ("pdf", "png"):
        assert (PAPER / "figures" / f"{script}.{suffix}").stat().st_size > 5000
    for path in PAPER.glob(f"data/{script}*.csv"):
        with path.open(encoding="utf-8") as file:
            kinds = {row["what"] for row in csv.DictReader(file)}
        emulated, measured = ".testbed." in path.name, path.name.endswith(".measured.csv")
        assert kinds == {"emulated" if emulated else "measured" if measured else "simulated"}


def test_a_start_of_ones_own_is_trial_0(tmp_path: Path) -> None:
    run("fig05_convergence", "--quick", "--start", "16,2", "--out", tmp_path)
    with (tmp_path / "data" / "fig05_convergence.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["tuner"] != "oracle"]  # the best pair, whatever the start
    first = [row["pair"] for row in rows if row["iteration"] == "0"]
    assert set(first) == {"⟨16,2⟩"}


def test_congestion_controls_are_swept_and_share_a_link(tmp_path: Path) -> None:
    run("mocc_links", "--quick", "--out", tmp_path)
    with (tmp_path / "data" / "mocc_sharing.csv").open(encoding="utf-8") as file:
        assert all(0.5 <= float(row["jain"]) <= 1 for row in csv.DictReader(file))
    with (tmp_path / "data" / "mocc_links.csv").open(encoding="utf-8") as file:
        swept = list(csv.DictReader(file))
    assert {float(row["loss"]) for row in swept} == {0.0, 0.01}
    assert all(0 < float(row["utilisation_got"]) <= 1.001 for row in swept)


def test_tuners_that_weights_lead_are_scored_beside_those_that_speed_leads(tmp_path: Path) -> None:
    run("mocc_tuners", "--quick", "--out", tmp_path)
    with (tmp_path / "data" / "mocc_tuners.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {(row["tuner"], row["led_by"]) for row in rows} == {
        (tuner, led) for tuner in ("default", "random") for led in ("weights", "speed")
    }
    assert all(0 < float(row["score"]) <= float(row["best"]) <= 1 for row in rows)


def test_networks_are_trained_once_for_all_scripts_on_mocc(tmp_path: Path) -> None:
    """In one process: each of three would import PyTorch."""
    scripts = ("objectives", "adaptation", "ablations")
    program = "import runpy, sys; [runpy.run_path(script, run_name='__main__') for script in sys.argv.pop().split()]"
    paths = " ".join(str(PAPER / f"mocc_{name}.py") for name in scripts)
    command = [sys.executable, "-W", "error", "-c", program, "--quick", "--out", tmp_path, paths]
    places = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join((str(PAPER), os.environ.get("PYTHONPATH", "")))}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | places, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    made = {path.stem for path in (tmp_path / "data").iterdir()}
    others = {"mocc_links", "mocc_sharing", "mocc_tuners"}
    assert made >= {path.stem for path in PAPER.glob("data/mocc_*.csv")} - others
    with (tmp_path / "data" / "mocc_objectives.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 38
    assert all(float(row["reward"]) <= float(row["bound"]) + 0.01 for row in rows)
    with (tmp_path / "data" / "mocc_adaptation.csv").open(encoding="utf-8") as file:
        assert all(float(row["known_3_at_first"]) > 0 for row in csv.DictReader(file))
    names = [path.name.split(".")[0] for path in (tmp_path / "kept").iterdir()]
    assert names.count("alone") == 4  # two objectives, from scratch and from MOCC's network
    assert names.count("variant") == 14  # and what they are: two of eight recipes are the same in so small a study


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*.*")}


def test_the_recorded_grids_are_figure_3_on_the_testbed(tmp_path: Path) -> None:
    run("fig03_optimal_pairs", "--testbed", "--out", tmp_path)
    made = files(tmp_path)
    assert sorted(made) == [f"fig03_optimal_pairs.testbed.{end}" for end in ("best.csv", "csv", "pdf", "png")]
    for name, numbers in made.items():
        if name.endswith(".csv"):
            assert numbers == (PAPER / "data" / name).read_bytes()


@needs_namespaces
def test_figure_5_is_measured_on_real_links_and_not_measured_twice(tmp_path: Path) -> None:
    name = "fig05_convergence.testbed"
    run("fig05_convergence", "--testbed", "--quick", "--out", tmp_path)
    made = files(tmp_path)
    assert sorted(made) == [f"{name}.{end}" for end in ("csv", "pdf", "png", "summary.csv")]
    rows = list(csv.DictReader(made[f"{name}.csv"].decode().splitlines()))
    assert {row["what"] for row in rows} == {"emulated"}
    assert {(row["start"], row["iteration"]) for row in rows} == {("2,2", str(at)) for at in (0, 5, 10, 15)}
    assert all(0 < float(row["samples_per_s"]) < 600 for row in rows)  # 2 hosts, 32 samples each, at least 0.11 s
    run("fig05_convergence", "--testbed", "--quick", "--out", tmp_path)
    assert files(tmp_path) == made
