"""What a report counts and says, against numbers worked out by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jobs import make_job

from autobyte.config import Config
from autobyte.exchange.tuning.advice import Window
from autobyte.exchange.tuning.kept import Trial
from autobyte.exchange.tuning.report import Report, report_on
from autobyte.exchange.tuning.window import RankWindow

DEFAULT, FAST = Config(4_000_000, 16_000_000), Config(1_000_000, 4_000_000)
EMPTY = Report("Net", 4, "allreduce", None, DEFAULT, DEFAULT, "twin", {}, None, None, 0.0, "", state="starting")


@pytest.fixture
def report() -> Report:
    """Two windows at 0.5 s a step, three at 0.4 s."""
    trials = {DEFAULT: Trial(2, 0.5), FAST: Trial(3, 0.4)}
    return replace(EMPTY, state="settled", config=FAST, trials=trials, bound_s=0.3, link_bytes_per_s=125e6, cpu_s=1.5)


def test_gain_is_the_defaults_step_over_that_of_the_config_in_force(report: Report) -> None:
    assert report.gain == pytest.approx(1.25)
    assert replace(report, trials={DEFAULT: Trial(2, 0.5)}).gain is None  # nothing is known of the other yet
    unmeasured = replace(report, default=Config(1, 1))  # training began with what a file had
    assert unmeasured.gain == pytest.approx(1.25)


def test_a_search_costs_what_windows_took_beyond_the_best(report: Report) -> None:
    assert report.search_cost_s == pytest.approx(2 * 10 * (0.5 - 0.4))
    assert EMPTY.search_cost_s == 0.0


def test_it_says_what_was_tried_won_and_spent(report: Report) -> None:
    title, links, tuner, head, *rows = str(report).splitlines()
    assert title == f"Net on 4 ranks, allreduce: {FAST.label}"
    assert links == "links as blocks saw them 1 Gbit/s; by an estimate, no step is below 300.0 ms"
    assert tuner == ("twin: 5 windows of 2 configs, 2.00 s of training and 1.50 s of CPU spent, 1.250x the default")
    assert head.split("  ")[0] == "config"
    assert [row.split()[-2:] for row in rows] == [["400.0", "ms"], ["500.0", "ms"]]  # fastest first
    assert "in force" in rows[0] and "default" in rows[1]


@pytest.mark.parametrize("below", [{"trials": {DEFAULT: Trial(1, 0.29)}}, {"trials": {}, "least_s": 0.29}])
def test_a_bound_above_a_measured_step_is_not_printed(report: Report, below: dict[str, Any]) -> None:
    assert str(replace(report, **below)).splitlines()[1] == "links as blocks saw them 1 Gbit/s"


def test_it_says_how_long_the_model_waits(report: Report) -> None:
    waiting = replace(report, exposed_s=0.0123)
    assert str(waiting).splitlines()[2] == "in a step, the model waits 12.3 ms for averages"
    assert waiting.to_json()["exposed_s"] == 0.0123


def test_the_rank_that_computes_longest_tells_how_long_the_model_waits() -> None:
    """Others wait for that rank, too."""
    config, rows = DEFAULT, np.zeros((2, 4))
    ranks = [RankWindow(np.ones(10), s * np.ones(3), s * np.ones(3), np.ones(4), rows, 5.0 / s) for s in (1.0, 2.0)]
    job: Any = SimpleNamespace(model=SimpleNamespace(name="Net"), wire_dtype=None)
    training: Any = SimpleNamespace(rank=0, job=job, size=2, engine="allreduce", config=config)
    adviser: Any = SimpleNamespace(
        latest=Window.of(config, 0, ranks), trials={}, cpu_s=0.0, failure="", state="fixed", least_s=None,
        measured_job=lambda _: make_job(4),
    )  # fmt: skip
    assert report_on(training, adviser, tuner=None, default=config).exposed_s == 2.5


def test_a_search_that_goes_on_says_what_is_best_so_far(report: Report) -> None:
    running = replace(report, config=DEFAULT, state="searching")
    title, _, tuner, _, *rows = str(running).splitlines()
    assert title == f"Net on 4 ranks, allreduce: searching, best so far {FAST.label}"
    assert tuner.endswith("1.250x the default")  # of the best, not of what is on trial
    assert "in force" not in str(running) and rows[1].split("  ")[1].strip() == "on trial, default"
    assert running.to_json()["best"] == FAST.to_json()
    ended = str(replace(running, over=True))
    assert "search unfinished, best so far" in ended and "on trial" not in ended


def test_what_was_never_measured_is_not_compared_with(report: Report) -> None:
    buckets, other = Config(25 << 20, 25 << 20, "ddp"), Config(1, 1)
    unmeasured = replace(report, default=other)
    assert str(unmeasured).splitlines()[2].endswith(f"1.250x the first measured, {DEFAULT.label}")
    beside_ddp = replace(unmeasured, trials={**report.trials, buckets: Trial(1, 0.44)})
    assert beside_ddp.gain == pytest.approx(1.1)
    assert str(beside_ddp).splitlines()[2].endswith("1.100x DDP's best, ddp ⟨25 MiB⟩")
    kept = replace(beside_ddp, config=buckets)
    assert str(kept).splitlines()[2].endswith("of CPU spent")  # it is what others are compared with
    assert "default" not in str(kept)


def test_without_a_tuner_the_config_is_fixed_before_the_first_window_too() -> None:
    states = [report_on(training_of(0), None, tuner=tuner, default=DEFAULT).state for tuner in (None, "twin")]
    assert states == ["fixed", "starting"]


def training_of(rank: int) -> Any:
    job = SimpleNamespace(model=SimpleNamespace(name="Net"), wire_dtype=None)
    return SimpleNamespace(job=job, size=4, rank=rank, engine="allreduce", config=DEFAULT)


def test_other_ranks_say_who_knows() -> None:
    report = report_on(training_of(2), None, tuner="twin", default=DEFAULT)
    assert str(report).splitlines()[1:] == ["this is rank 2: rank 0 has what twin measured"]
    assert (report.state, report.to_json()["unmeasured"]) == ("unknown", str(report).splitlines()[1])
    untuned = report_on(training_of(2), None, tuner=None, default=DEFAULT)
    assert (untuned.state, str(untuned).splitlines()[1].partition(":")[0]) == ("fixed", "nothing searches")


def test_a_model_that_is_never_measured_says_why() -> None:
    for rank in (0, 1):
        report = report_on(training_of(rank), None, tuner="twin", default=DEFAULT, untuned="no hooks")
        assert (report.state, str(report).splitlines()[1:]) == ("fixed", ["no hooks"])


def test_what_a_search_does_before_its_first_choice(report: Report) -> None:
    said = {
        "starting": "waiting for its first window",
        "thinking": "thinking about its first window",
        "compiling": "compiling what it needs",
        "searching": "measuring its first config",
    }
    for state, what in said.items():
        empty: Report = replace(EMPTY, state=state)  # type: ignore[arg-type]
        assert str(empty).splitlines()[1].startswith(f"twin is {what}, beside training")
        assert str(replace(empty, over=True)).splitlines()[1] == f"twin was still {what} when training ended"
    kept = replace(EMPTY, state="settled")
    assert str(kept).splitlines()[1:] == ["twin uses what an earlier training found"]
    compiling = str(replace(report, state="compiling"))
    assert "searching, best so far" in compiling and "is compiling" in compiling and "5 windows of 2" in compiling


def test_what_is_not_known_is_not_said() -> None:
    assert str(EMPTY).splitlines()[1:] == ["twin is waiting for its first window, beside training"]
    assert str(replace(EMPTY, tuner=None)).endswith(
        'nothing searches: pass policy="auto" or tuner="twin" if it should'
    )
    assert str(replace(EMPTY, failure="ValueError: no idea")).endswith("failed: ValueError: no idea")


def test_a_policy_is_named_where_there_are_several(report: Report) -> None:
    other = Config(1_000_000, 4_000_000, "usbyte")
    assert f"usbyte {other.label}" in str(replace(report, trials={**report.trials, other: Trial(1, 0.6)}))


def test_json_has_every_trial(report: Report) -> None:
    plain = report.to_json()
    assert [trial["windows"] for trial in plain["trials"]] == [2, 3]
    assert (plain["gain"], plain["tuner_cpu_s"], plain["bound_s"]) == (report.gain, 1.5, 0.3)
