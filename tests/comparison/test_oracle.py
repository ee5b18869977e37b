"""The two ends that tuners are measured between, and contests in which something changes."""

from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from contests import TOY

from autobyte.comparison.contest import Contest, hold
from autobyte.comparison.oracle import ends, lack, where_decided
from autobyte.comparison.truth import Truth
from autobyte.comparison.verdict import verdict
from autobyte.config import Config, Space
from autobyte.errors import FileError, InputError
from autobyte.job import Cluster, Job
from autobyte.results import Results
from autobyte.scenario import STEADY, Change, Scenario
from autobyte.tuners import TUNERS
from autobyte.tuning import BRIEF, WINDOW

SPACE = Space((1 << 16, 1 << 22), (1.0, 4.0), Config(1 << 20, 1 << 22))
JOB = Job(TOY, Cluster.uniform(4, 1.25e9))
SLOWER = Scenario("a tenth", (Change(at=20, up="10%", down="10%"), Change(at=40, up="100%", down="100%")))


def contest(
    scenario: Scenario = SLOWER, *, tuners: tuple[str, ...] = ("default",), budget: int = 6, **ways: str
) -> Contest:
    return Contest(JOB, tuners, budget, 1, SPACE, scenario, **ways)  # type: ignore[arg-type]


def judged(of: Contest, folder: Path) -> dict[str, dict[str, float]]:
    with Results.open(folder / "results.sqlite", run=of.to_json()) as results:
        runs = hold(of, results, progress=lambda *_: None)
        assert [len(run.decisions) for run in runs] == [of.budget] * len(of.tuners)
        return verdict(of, runs, [TOY])


def test_where_nothing_changes_the_oracle_is_the_optimum() -> None:
    still = contest(STEADY)
    truth, constant = Truth(still, []), SPACE.at([0.0, 0.0])
    both = ends(still, truth, constant, 0)
    assert both.oracle == both.all_knowing == JOB.samples / truth.best_s(0)
    assert both.constant == JOB.samples / truth.step_s(constant, 0)
    assert both.closed(both.oracle) == pytest.approx(1.0)
    assert both.closed(both.constant) == pytest.approx(0.0)


def test_a_gap_below_five_percent_does_not_count() -> None:
    still = contest(STEADY)
    truth = Truth(still, [])
    assert ends(still, truth, truth.at(0).best, 0).closed(1.0) is None
    little = ": with less than 5 %, adapting gains too little to compare tuners by"
    assert lack(0.0499) == f"the best constant lacks 5.0 % of it{little}"
    assert lack(-0.002) == f"the best constant lacks −0.2 % of it{little}"
    assert lack(0.05) == "the best constant lacks 5.0 % of it: adapting can gain"


def test_the_oracle_is_a_window_late_and_the_all_knowing_one_is_not() -> None:
    truth = Truth(contest(), [])
    constant = truth.at(0).best
    assert truth.at(20).best != constant
    both = ends(contest(), truth, constant, 0)
    assert both.oracle < both.all_knowing
    assert both.constant < both.all_knowing


def test_beside_a_run_of_shorter_windows_the_oracle_decides_as_often(tmp_path: Path) -> None:
    of = contest(tuners=("twin", "default"), budget=6)
    with Results.open(tmp_path / "results.sqlite", run=of.to_json()) as results:
        twin, default = hold(of, results, progress=lambda *_: None)
    truth = Truth(of, [])
    between = ends(of, truth, truth.at(0).best, 0)
    assert where_decided(of, truth, default, between) is between
    beside = where_decided(of, truth, twin, between)
    assert beside.oracle > between.oracle  # it leaves the default sooner
    assert (beside.constant, beside.all_knowing) == (between.constant, between.all_knowing)


def test_who_searches_once_does_so_before_the_run(tmp_path: Path) -> None:
    of = contest(tuners=("random", "descent"), budget=6)
    outcome = judged(of, tmp_path)
    random, descent = outcome["tuners"]
    assert random["before_cost_s"] > 0
    assert random["switches"] == 0
    assert descent["before_cost_s"] is None
    with Results.read(tmp_path / "results.sqlite") as results:
        assert {
            (trial.tuner, trial.measurement.iteration) for trial in results.trials() if "before" in trial.tuner
        } == {("random, before", 10 * number) for number in range(6)}


def test_a_killed_contest_goes_on_in_either_part(tmp_path: Path) -> None:
    of = contest(tuners=("random",))
    first = judged(of, tmp_path)
    assert judged(of, tmp_path)["tuners"][0]["samples_per_s"] == first["tuners"][0]["samples_per_s"]


def test_a_contest_whose_windows_have_another_length_now_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(contest(), tmp_path)
    monkeypatch.setattr(TUNERS["default"], "brief", True)
    with pytest.raises(FileError, match=r"10 iterations and is now .*5 iterations: the code changed; choose another"):
        judged(contest(), tmp_path)


def test_a_storage_of_studies_changes_no_result(tmp_path: Path) -> None:
    plain = contest(tuners=("optuna", "optuna-random"))
    kept = replace(plain, storage=f"sqlite:///{tmp_path}/studies.db")
    others = replace(kept, job=Job(TOY, Cluster.uniform(4, 1.25e8)))
    wanted = costs(plain, tmp_path / "plain")
    assert costs(others, tmp_path / "others") != wanted
    for folder in ("kept", "kept", "anew"):
        assert costs(kept, tmp_path / folder) == wanted
    assert len(optuna.get_all_study_names(kept.storage or "")) == 4  # of two tuners on two jobs


def costs(of: Contest, folder: Path) -> list[float]:
    folder.mkdir(exist_ok=True)
    return [row["before_cost_s"] for row in judged(of, folder)["tuners"]]


def test_on_drift_it_searches_again(tmp_path: Path) -> None:
    of = contest(tuners=("random",), budget=10, retune="drift")
    assert judged(of, tmp_path)["tuners"][0]["switches"] > 0
    with pytest.raises(InputError, match="unknown way to retune 'drfit'; did you mean 'drift'"):
        contest(retune="drfit")


def test_retune_and_before_are_part_of_what_a_run_is() -> None:
    for ways in ({"retune": "drift"}, {"before": "all"}):
        assert contest().to_json() | ways == contest(**ways).to_json()
        assert contest().to_json().keys().isdisjoint(ways)


def test_all_may_search_before_and_go_on_with_what_they_know(tmp_path: Path) -> None:
    of = contest(tuners=("twin", "random"), before="all")
    with Results.open(tmp_path / "results.sqlite", run=of.to_json()) as results:
        twin, random = hold(of, results, progress=lambda *_: None)
    twins, others = ([len(each.measurement.step_s) for each in run.before] for run in (twin, random))
    assert others == [WINDOW] * of.budget
    assert sum(twins) == sum(others)
    assert min(twins) == BRIEF  # it asks for no more while it knows little
    assert twin.decisions[0].measurement.config == twin.before[-1].config != SPACE.default
    with pytest.raises(InputError, match="unknown tuners to search before 'al'; did you mean 'all'"):
        contest(before="al")


def test_the_oracle_begins_as_all_do() -> None:
    truth = Truth(contest(), [])
    constant = truth.at(0).best
    assert ends(contest(before="all"), truth, constant, 0).oracle > ends(contest(), truth, constant, 0).oracle
