"""A plan is made from the first window, and made anew within a window when the job drifts."""

import json
import logging
import math
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import nn

from autobyte.config import Config, Space
from autobyte.exchange.planning import MeasuredPlan, begin_with, unmeasured
from autobyte.exchange.tuning import advice
from autobyte.exchange.tuning.advice import BEHIND, NOTICE, Advice, Adviser, Window
from autobyte.exchange.tuning.audition import HOLD
from autobyte.exchange.tuning.kept import Kept, Trial
from autobyte.exchange.tuning.report import report_on
from autobyte.exchange.tuning.search import Search
from autobyte.job import Cluster, Job
from autobyte.scheduler.policies.ddp import DEFAULT_BUCKETS
from autobyte.torch.model.layers import CalledLayer
from autobyte.tuners.fixed import Default
from autobyte.tuning import BRIEF, WARMUP, WINDOW, Tuning
from autobyte.units import KIB, MIB

RANKS, BYTE_S = 2, 8e-9
STEP_S, SWITCH_S, HOOKS = 0.5, 0.1, 1.02  # of a training in virtual time: with DDP; a switch; what our hooks cost
CONFIG = Config(4096, 16384, "usbyte", {"fusion": 1})
OTHER = Config(8192, 16384, "usbyte", {"fusion": 1})


@pytest.fixture
def adviser() -> Adviser:
    return Adviser(*make_training())


def make_training() -> tuple[Any, list[CalledLayer]]:
    """One rank's training as far as an adviser and a search see it, and the layers."""
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 300), nn.Linear(300, 10))
    parameters = dict(model.named_parameters())
    layers = [
        CalledLayer(name, module, [(f"{name}.{n}", p) for n, p in module.named_parameters()])
        for name, module in model.named_children()
    ]
    job = Job(unmeasured("net", parameters.items()), Cluster(RANKS))
    training: Any = SimpleNamespace(
        job=job, config=CONFIG, exchange=SimpleNamespace(parameters=parameters), rank=0, size=RANKS,
        engine="allreduce", fingerprint="net", control=SimpleNamespace(share=lambda told: told),
        ways=("allreduce",), fitting=lambda config: config,
    )  # fmt: skip
    training.replan = lambda job, config, order: setattr(training, "config", config)
    return training, layers


def window(*, compute: float = 1.0, wire: float = 1.0) -> Window:
    """Ten steps, with layer times and seconds per byte so many times as long as usual."""
    nbytes = 4.0 * 43_410
    return Window(
        CONFIG,
        0,
        np.full(10, 0.02),
        np.full((RANKS, 3), 1e-3 * compute),
        np.full((RANKS, 3), 2e-3 * compute),
        np.tile([8.0, nbytes, nbytes * BYTE_S * wire, np.nan], (RANKS, 1)),
    )


def heard(adviser: Adviser, seen: Window) -> Advice | None:
    """What is to be used after a window."""
    adviser.consult(seen)
    assert adviser._thread is not None
    adviser._thread.join(30)
    assert adviser.failure == ""
    return adviser.take()


def forward_s(answer: Advice) -> list[float]:
    assert answer.plan.job is not None
    return [layer.forward_s for layer in answer.plan.job.model.layers]


def bytes_per_s(answer: Advice) -> float:
    assert answer.plan.job is not None
    return answer.plan.job.cluster.up_bytes_per_s[0]


def test_what_blocks_cost_is_known_of_each_engine_apart(adviser: Adviser) -> None:
    """So a plan for one is not made of what another's blocks took."""
    heard(adviser, window())
    there = replace(window(wire=4.0), config=replace(CONFIG, engine="host"))
    heard(adviser, there)
    rates = [min(adviser.measured_job(each).cluster.up_bytes_per_s) for each in (window(), there)]
    assert rates[0] == pytest.approx(4 * rates[1], rel=0.3)
    for config, rate in ((CONFIG, rates[0]), (there.config, rates[1])):
        assert bytes_per_s(adviser._plan(window(), config)) == rate


def test_an_answer_is_the_same_on_other_ranks(adviser: Adviser) -> None:
    answer = heard(adviser, window())
    assert answer is not None
    told = json.loads(json.dumps(answer.to_json()))
    assert Advice.from_json(told, make_training()[0].job) == answer


def test_the_first_window_brings_a_plan_and_one_like_it_none(adviser: Adviser) -> None:
    first = heard(adviser, window())
    assert first is not None
    assert forward_s(first) == pytest.approx([1e-3] * 3)
    assert heard(adviser, window(compute=1.05, wire=0.95)) is None


def test_a_plan_made_from_less_than_a_window_is_made_again(adviser: Adviser) -> None:
    assert heard(adviser, replace(window(), step_s=np.full(3, 0.02))) is not None
    assert heard(adviser, window()) is not None
    assert heard(adviser, window()) is None


@pytest.mark.parametrize("drift", [{"compute": 1.3}, {"compute": 0.7}, {"wire": 1.4}, {"wire": 0.6}])
def test_a_job_that_drifts_is_planned_anew_within_one_window(adviser: Adviser, drift: dict[str, float]) -> None:
    first = heard(adviser, window())
    again = heard(adviser, window(**drift))
    assert first is not None
    assert again is not None
    if "compute" in drift:
        assert forward_s(again) == pytest.approx([1e-3 * drift["compute"]] * 3)
    else:
        assert bytes_per_s(again) == pytest.approx(bytes_per_s(first) / drift["wire"], rel=0.02)
    assert heard(adviser, window(**drift)) is None  # from then on that is how it is


def test_the_first_plan_of_a_window_stays_where_no_drift_calls_for_another(adviser: Adviser) -> None:
    adviser._drift = math.inf
    assert heard(adviser, window()) is not None
    assert heard(adviser, window(compute=2.0, wire=3.0)) is None


def test_no_window_is_given_up_before_it_has_a_step_that_counts(adviser: Adviser) -> None:
    adviser.trials = {OTHER: Trial(windows=1, step_s=0.02)}
    assert not adviser.hopeless([9.0] * (WARMUP - 1))
    assert adviser.hopeless([9.0] * WARMUP)
    assert adviser.hopeless([0.02] * WARMUP + [0.031])
    assert not adviser.hopeless([0.02] * WARMUP + [0.029])
    assert not adviser.hopeless([9.0] * (WINDOW - 1))  # it ends anyway, before all ranks know


class Brief(Default):
    """Always wants half a window."""

    brief = True


def test_a_window_ends_where_its_tuner_wants_no_whole_one(adviser: Adviser) -> None:
    space = Space(default=CONFIG)
    assert not adviser.enough([0.02] * BRIEF)
    for tuner, ends in ((Default, False), (Brief, True)):
        adviser.tuning = Tuning(tuner(space, model=adviser._training.job.model), space)
        assert not adviser.enough([0.02] * (BRIEF - NOTICE - 1))
        assert adviser.enough([0.02] * (BRIEF - NOTICE)) is ends
        assert not adviser.enough([0.02] * (WINDOW - 1))  # it ends anyway
        adviser.answer = Advice(MeasuredPlan(CONFIG, None, None), brief=False)
        assert not adviser.enough([0.02] * BRIEF)  # what it wanted was another window
        adviser.answer = None


def test_half_a_window_counts_for_half_of_one(adviser: Adviser) -> None:
    adviser._try(replace(window(), step_s=np.full(WINDOW, 0.02)))
    adviser._try(replace(window(), step_s=np.full(BRIEF, 0.03)), BRIEF / WINDOW)
    trial = adviser.trials[CONFIG]
    assert (trial.windows, trial.step_s) == (1.5, pytest.approx(0.07 / 3))


def test_a_config_that_stays_is_never_given_up(adviser: Adviser) -> None:
    """The job may have become slow, and that takes whole windows to tell."""
    adviser.trials = {OTHER: Trial(windows=1, step_s=0.02)}
    assert adviser.hopeless([9.0] * WARMUP)
    heard(adviser, window())
    assert not adviser.hopeless([9.0] * WARMUP)


def test_a_trial_of_an_audition_ends_when_three_steps_are_clearly_slower() -> None:
    training, layers = make_training()
    search = Search(training, tuner=None, space=None, budget=None, seed=0, keep=None)
    adviser = Adviser(training, layers, search)
    slow, close = 0.02 * BEHIND + 1e-6, 0.02 * BEHIND - 1e-6
    audition = search.audition
    assert audition is not None
    audition._seen = {CONFIG: [0.02]}
    assert not adviser.enough([0.02, 0.02, slow, slow, slow])  # it has been heard before
    training.config = OTHER
    assert not adviser.enough([0.02, 0.02, slow, slow])
    assert adviser.enough([0.02, 0.02, slow, slow, slow])
    assert not adviser.enough([0.02, 0.02, slow, close, slow, slow])
    assert not adviser.enough([0.02, 0.02, *[slow] * (WINDOW - 1 - WARMUP)])  # it ends anyway
    audition._opens = True  # candidates on this engine are chosen from the window
    assert not adviser.enough([0.02, 0.02, slow, slow, slow])
    audition._opens, audition._final = False, True  # the audition is over
    assert not adviser.enough([0.02, 0.02, slow, slow, slow])
    audition._final = False
    assert adviser.enough([0.02, 0.02, slow, slow, slow])
    adviser._search = None
    assert not adviser.enough([0.02, 0.02, slow, slow, slow])


def test_a_trial_of_an_audition_that_ends_early_counts_for_its_steps() -> None:
    training, layers = make_training()
    search = Search(training, tuner=None, space=None, budget=None, seed=0, keep=None)
    adviser = Adviser(training, layers, search)
    (config,) = follow(adviser, CONFIG, 1)
    heard(adviser, replace(window(), config=config, step_s=np.full(7, 0.03)))
    assert adviser.trials == {config: Trial(windows=0.7, step_s=pytest.approx(0.03))}


def test_links_that_drift_after_a_switch_bring_a_new_plan(adviser: Adviser) -> None:
    """The plan was made from a window of another config, whose pace says nothing of this one's."""
    heard(adviser, replace(window(), config=OTHER))
    adviser.plan(CONFIG)
    assert heard(adviser, window()) is None
    assert heard(adviser, window(wire=1.4)) is not None


def test_what_was_thought_of_another_config_is_forgotten(adviser: Adviser) -> None:
    adviser.consult(window())
    adviser.forget()
    assert adviser._thread is not None
    adviser._thread.join(30)
    assert adviser.take() is None
    assert heard(adviser, window()) is not None
    assert heard(adviser, window()) is None
    adviser.forget()  # as when a checkpoint brings a plan of its own
    assert heard(adviser, window()) is not None


def test_a_tuner_that_cannot_begin_costs_no_plan(adviser: Adviser) -> None:
    def begin(job: Job, running: Config) -> None:
        raise ValueError("no such thing")

    search: Any = SimpleNamespace(begin=begin, audition=None)
    adviser._search = search
    adviser.consult(window())
    assert adviser._thread is not None
    adviser._thread.join(30)
    assert adviser.take() is not None
    assert adviser.failure == "ValueError: no such thing"
    assert adviser._choose(window()) == CONFIG


@pytest.mark.parametrize(("servers", "credit"), [(False, MIB), (True, KIB)])
def test_usbyte_begins_with_pieces_that_are_soon_packed(servers: bool, credit: int) -> None:
    assert begin_with("usbyte", workers=4, servers=servers) == Config(MIB, credit, "usbyte", {"fusion": 1})


def follow(adviser: Adviser, config: Config, windows: int, *, slower: float = 1.0) -> list[Config]:
    """The configs of the windows that are next; messages of US-Byte are fastest, and a packet is lost in each."""
    used = []
    for _ in range(windows):
        steps_s = np.full(10, slower * (0.02 if config.policy == "usbyte" else 0.03))
        steps_s[-1] += 0.2
        answer = heard(adviser, replace(window(), config=config, step_s=steps_s))
        config = config if answer is None else answer.plan.config
        used.append(config)
    return used


def test_the_log_says_how_much_a_step_has_changed_and_that_a_search_was_cut_short(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "autobyte")
    training, layers = make_training()
    adviser = Adviser(
        training, layers, Search(training, tuner=None, space=None, budget=None, seed=0, keep=tmp_path / "kept.toml")
    )
    chosen = follow(adviser, CONFIG, 25)[-1]
    follow(adviser, chosen, HOLD + 2, slower=1.5)
    assert f"under {chosen.full_label} a step takes 30 ms now, and took 20 ms" in caplog.text
    adviser.part()
    assert "training ended before the search did: nothing is kept of this search" in caplog.text


def test_the_shortest_step_of_all_windows_is_known_where_nothing_searches(adviser: Adviser) -> None:
    for step_s in (0.03, 0.01, 0.02):
        heard(adviser, replace(window(), step_s=np.full(10, step_s)))
    assert adviser.least_s == pytest.approx(0.01)
    training: Any = adviser._training
    assert report_on(training, adviser, tuner=None, default=CONFIG).least_s == pytest.approx(0.01)


def test_what_auto_chose_is_kept_and_used_again_while_it_is_as_fast(tmp_path: Path) -> None:
    keep = tmp_path / "kept.toml"

    def begin() -> tuple[Adviser, Config]:
        training, layers = make_training()
        search = Search(training, tuner=None, space=None, budget=None, seed=0, keep=keep)
        search.resume()
        return Adviser(training, layers, search), training.config

    adviser, config = begin()
    assert config == CONFIG  # nothing was found yet
    chosen = follow(adviser, config, 25)[-1]
    kept = Kept.read(keep)
    assert kept is not None
    assert (kept.config, kept.tuner, kept.job.policy, kept.finished) == (chosen, "auto", "auto", True)
    assert chosen.policy == "usbyte"
    assert kept.step_s == pytest.approx(0.02)

    adviser, config = begin()
    assert config == chosen
    assert follow(adviser, OTHER, 6) == [chosen] * 6  # whatever a checkpoint says
    tried = dict(adviser.trials)
    assert len(set(follow(adviser, chosen, HOLD + 2, slower=1.5))) > 1  # all are measured again
    assert tried.keys() <= adviser.trials.keys()


class Slow(Default):
    """Thinks until it is let go."""

    gate = threading.Event()

    def tell(self, measurement: object) -> None:
        assert self.gate.wait(30)


@pytest.mark.parametrize("busy", ["compiling", "thinking"])
def test_training_that_ends_meanwhile_says_that_nothing_is_kept(
    busy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "autobyte")
    monkeypatch.setattr(advice, "is_compiling", lambda: busy == "compiling")
    monkeypatch.setattr(advice, "PARTING_S", 0.05)
    training, layers = make_training()
    search = Search(training, tuner="default", space=None, budget=None, seed=0, keep=tmp_path / "kept.toml")
    adviser = Adviser(training, layers, search)
    heard(adviser, window())
    Slow.gate.clear()
    space = Space(default=CONFIG)
    adviser.tuning = Tuning(Slow(space, model=training.job.model), space, patience_s=30)
    adviser.consult(replace(window(), first=10))
    if busy == "compiling":
        assert adviser.state == busy
    adviser.part()
    Slow.gate.set()
    ends = [text for text in caplog.messages if text.startswith("training ended")]
    assert ends == [f"training ended while default was {busy}: nothing is kept of this search; configs measured: 1"]
    assert not (tmp_path / "kept.toml").exists()


def test_training_that_ends_before_the_first_window_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "autobyte")
    training, layers = make_training()
    Adviser(training, layers, Search(training, tuner="twin", space=None, budget=None, seed=0, keep=None)).part()
    assert caplog.messages == [
        "training ended before the search did: nothing is kept of this search; configs measured: 0"
    ]


class Virtual:
    """A training in virtual time under the default, and how much longer it has taken than with DDP.

    Args:
        ratios: a step over DDP's, by policy; DDP's other bucket sizes take 1.03.
    """

    def __init__(self, ratios: dict[str, float]) -> None:
        self.training, layers = make_training()
        self.training.config = DEFAULT_BUCKETS
        search = Search(self.training, tuner=None, space=None, budget=None, seed=0, keep=None, share=0.01)
        self.adviser = Adviser(self.training, layers, search, reducible=True)
        self._ratios = ratios
        self.steps, self.elapsed_s, self.reduced = 0, 0.0, False
        self.used: dict[Config, None] = {}
        self.losses_s: list[float] = []  # after every step

    def window(self) -> None:
        """Train for a window, hear what follows from it, and switch."""
        taken: list[float] = []
        left = 3 if not self.steps else WINDOW
        while left:
            taken.append(self._step())
            left = min(left - 1, NOTICE) if self.adviser.enough(taken) else left - 1
        self.adviser.passed(taken, reduced=self.reduced)
        seen = replace(window(), config=self.training.config, step_s=np.array(taken), reduced=self.reduced)
        answer = heard(self.adviser, seen)
        if answer is None:
            return
        self.adviser.passed([self._step() for _ in range(NOTICE)], reduced=self.reduced)
        self.training.config, self.reduced = answer.plan.config, answer.reduced
        self._pass(SWITCH_S)
        self.adviser.passed([], reduced=self.reduced, switch_s=SWITCH_S)

    def _step(self) -> float:
        config = self.training.config
        self.used.setdefault(config)
        ratio = self._ratios.get(config.policy, 1.2)
        if config.policy == "ddp":
            ratio = (1.0 if config == DEFAULT_BUCKETS else 1.03) * (1.0 if self.reduced else HOOKS)
        self.steps += 1
        self._pass(ratio * STEP_S)
        return ratio * STEP_S

    def _pass(self, seconds: float) -> None:
        self.elapsed_s += seconds
        self.losses_s.append(self.elapsed_s - self.steps * STEP_S)


def test_a_window_by_pytorchs_reducer_is_not_recorded_because_it_shows_no_link(adviser: Adviser) -> None:
    recorded: list[Any] = []
    recording: Any = SimpleNamespace(add=lambda measurement, _: recorded.append(measurement))
    adviser._recording = recording
    heard(adviser, window())
    heard(adviser, replace(window(), totals=np.zeros((RANKS, 4)), reduced=True))
    assert len(recorded) == 1
    assert recorded[0].stats.up_bytes_per_s == pytest.approx(1 / BYTE_S)


@pytest.mark.parametrize(
    ("ratios", "wins"),
    [
        ({"usbyte": 0.85}, "usbyte"),
        ({"usbyte": 1.1, "bytescheduler": 1.5, "dear": 2.0}, "ddp"),
        ({"dear": 0.99}, "ddp"),
    ],
)
def test_by_default_trials_lose_one_percent_at_most_and_the_fastest_is_found(
    ratios: dict[str, float], wins: str
) -> None:
    virtual = Virtual(ratios)
    virtual.window()
    begun_s = max(virtual.losses_s)  # three steps by our hooks, and the first switch
    assert virtual.reduced
    while virtual.steps < 50:
        virtual.window()
    assert list(virtual.used) == [DEFAULT_BUCKETS], "a short training tries nothing"
    assert virtual.adviser.state == "settled"
    assert max(virtual.losses_s) == pytest.approx(begun_s)
    while virtual.adviser._search.audition.waits or virtual.adviser.state != "settled":
        virtual.window()
        assert virtual.losses_s[-1] <= begun_s + 0.01 * virtual.elapsed_s
        assert virtual.steps < 8000
    assert virtual.training.config.policy == wins
    assert virtual.adviser._search.to_json() == {"won_s": virtual.adviser._search.audition.usual_s}
    assert virtual.reduced == (wins == "ddp")
    assert len(virtual.used) > 8


def test_by_default_a_config_of_the_users_own_stays() -> None:
    virtual = Virtual({})
    virtual.window()
    search = virtual.adviser._search
    assert search is not None
    search.stay(OTHER)
    virtual.adviser.forget()
    virtual.training.config, virtual.reduced = OTHER, False
    for _ in range(150):
        virtual.window()
    assert list(virtual.used) == [DEFAULT_BUCKETS, OTHER]


@pytest.mark.parametrize("found", ["own", "won_s", "nothing"])
def test_by_default_what_a_checkpoint_has_found_stays(found: str) -> None:
    """What an older one holds does not say how it was found."""
    before, after = Virtual({}), Virtual({})
    for virtual in (before, after):
        virtual.training.config = OTHER
    search, resumed = before.adviser._search, after.adviser._search
    assert search is not None
    assert resumed is not None
    if found == "own":
        search.stay(OTHER)
    search.won = (OTHER, 1.2 * STEP_S) if found == "won_s" else None
    state = search.to_json()
    assert list(state) == ([] if found == "nothing" else [found])
    resumed.take_up(json.loads(json.dumps(state | {"config": OTHER.to_json(), "engine": "allreduce"})))
    assert resumed.to_json() == state, "a later checkpoint keeps it, too"
    for _ in range(20):
        after.window()
    assert list(after.used) == ([OTHER, DEFAULT_BUCKETS] if found == "nothing" else [OTHER])


def test_by_default_a_job_that_changes_is_searched_again_within_the_budget() -> None:
    virtual = Virtual({"usbyte": 0.85})
    while virtual.training.config.policy != "usbyte" or virtual.adviser._search.audition.waits:
        virtual.window()
    virtual._ratios = {"usbyte": 1.4}
    for _ in range(400):
        virtual.window()
    assert virtual.training.config.policy == "ddp"
    assert virtual.reduced
