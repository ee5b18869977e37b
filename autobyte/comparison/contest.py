"""Tuners on the same job under equal conditions: the same world, the same windows, the same budget."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from autobyte.comparison.preference import Preference, Rewards
from autobyte.comparison.thrift import Thrift
from autobyte.config import Config, Space
from autobyte.errors import FileError, InputError, unknown
from autobyte.job import Job
from autobyte.results import Results
from autobyte.retuning import Retuned
from autobyte.scenario import STEADY, Scenario
from autobyte.simulator.effects import PLAIN, Effects
from autobyte.simulator.world import SWITCH_S, World
from autobyte.trace import Measurement
from autobyte.tuners import TUNERS, Tuner
from autobyte.tuners.fixed import Default
from autobyte.tuning import BRIEF, WARMUP, WINDOW, Decision, make_tuner, tune

RETUNE = ("never", "drift")
BEFORE = ("once", "all")


@dataclass(frozen=True)
class Contest:
    """What is compared, and how.

    Args:
        job: what is trained, and on what before anything changes.
        tuners: their names.
        budget: windows of 10 iterations that each run has.
        seeds: runs of each tuner.
        space: where they search.
        scenario: what changes.
        effects: second-order effects of the world.
        switch_s: what a change of config costs in it (s).
        retune: where something changes, tuners that search once do so before it does, and their windows and cost are
            apart; then they "never" search again, or on "drift".
        before: who has that budget before: tuners that search "once", or "all", so that those that live on begin
            with what they have found, as one-shot ones do.
        storage: a URL, for tuners that keep what they find; they never begin with what another run left there.
        objective: what tuners are to search for; by default, speed.

    Raises:
        InputError: no tuner, an unknown one, one that is named twice, a count below 1, an unknown way to retune, or
            nobody of that name to search before.
    """

    job: Job
    tuners: tuple[str, ...]
    budget: int
    seeds: int
    space: Space
    scenario: Scenario = STEADY
    effects: Effects = PLAIN
    switch_s: float = SWITCH_S
    retune: str = "never"
    before: str = "once"
    storage: str | None = None
    objective: Preference | None = None

    def __post_init__(self) -> None:
        for name, value in (("tuners", len(self.tuners)), ("budget", self.budget), ("seeds", self.seeds)):
            if value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        if self.retune not in RETUNE:
            raise unknown("way to retune", self.retune, RETUNE)
        if self.before not in BEFORE:
            raise unknown("tuners to search before", self.before, BEFORE)
        twice = [name for index, name in enumerate(self.tuners) if name in self.tuners[:index]]
        if twice:
            raise InputError(f"tuner '{twice[0]}' is named twice")
        for name in self.tuners:
            TUNERS[name]  # an unknown one is told at once, not after the others have run

    def world(self, seed: int = 0) -> World:
        """A world for one run."""
        return World(self.job, scenario=self.scenario, effects=self.effects, seed=seed, switch_s=self.switch_s)

    @cached_property
    def rewards(self) -> Rewards:
        """Of configs in this world, before noise."""
        return Rewards(self.world().job_at, self.effects)

    def to_json(self) -> dict[str, Any]:
        """What decides every single trial, as plain JSON: tuners and seeds may be added to a run later."""
        model = self.job.model
        layers = [(layer.forward_s, layer.backward_s) for layer in model.layers]
        tensors = [(tensor.numel, tensor.dtype, tensor.layer) for tensor in model.tensors]
        space = asdict(self.space)
        del space["default"]["engine"]  # a matter of training alone
        return {
            "job": self.job.to_json(),
            "model_digest": hashlib.sha256(repr((layers, tensors)).encode()).hexdigest()[:16],
            "budget": self.budget,
            "scenario": _plain(asdict(self.scenario)),
            "effects": _plain(asdict(self.effects)),
            "space": _plain(space),
            "switch_s": self.switch_s,
            "window": WINDOW,
            "brief": BRIEF,
            "warmup": WARMUP,
        } | {key: value for key, value, usual in self._ways if value != usual}

    @property
    def digest(self) -> str:
        """Names what decides every single trial."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:8]

    @property
    def _ways(self) -> tuple[tuple[str, Any, Any], ...]:
        wish = None if self.objective is None else asdict(self.objective)
        return ("retune", self.retune, RETUNE[0]), ("before", self.before, BEFORE[0]), ("objective", wish, None)


@dataclass(frozen=True)
class Run:
    """One tuner with one seed, from the first window to the last; `before` is its search before all that."""

    tuner: str
    seed: int
    decisions: tuple[Decision, ...]
    before: tuple[Decision, ...] = ()


def hold(
    contest: Contest,
    results: Results,
    *,
    progress: Callable[[str, int, int], None],
    seeds: Sequence[int] | None = None,
) -> list[Run]:
    """Let every tuner run with every seed; trials that `results` has already are not run again.

    Args:
        contest: what to run.
        results: where trials are kept.
        progress: called after every window with tuner, seed and how many times 10 iterations have passed.
        seeds: these instead of as many as the contest has.

    Raises:
        InputError: a tuner cannot be made.
    """
    chosen = range(contest.seeds) if seeds is None else seeds
    return [_run(contest, name, seed, results, progress) for name in contest.tuners for seed in chosen]


def _run(contest: Contest, name: str, seed: int, results: Results, progress: Callable[[str, int, int], None]) -> Run:
    def make(space: Space, search: int) -> Tuner:
        drawn = seed + 1_000_003 * search  # every search of a run draws differently
        study = f"{name} on {contest.job.model.name} {contest.digest}, seed {drawn}"
        tuner = make_tuner(
            name, space, job=contest.job, seed=drawn, budget=contest.budget, storage=contest.storage, anew=study
        )
        cost = contest.objective.cost if contest.objective else 0.0
        return Thrift(tuner, cost=cost, budget=contest.budget) if cost else tuner

    before: list[Decision] = []
    tuner, space = make(contest.space, 0), contest.space
    if contest.scenario.changes and (TUNERS[name].one_shot or contest.before == "all"):
        still = replace(contest, job=contest.world().job_at(0), scenario=STEADY)
        recorded = _Recorded(still.world(seed), results, f"{name}, before", seed)
        before = _tune(still, tuner, recorded, space, progress=lambda _: progress(name, seed, 0))
        space = replace(space, default=before[-1].config)
        if TUNERS[name].one_shot:
            again = contest.retune == "drift"
            tuner = Retuned(make, space, budget=contest.budget) if again else Default(space, model=contest.job.model)
    trainer = _Recorded(contest.world(seed), results, name, seed)
    decisions = _tune(contest, tuner, trainer, space, progress=lambda _: progress(name, seed, trainer.passed))
    return Run(name, seed, tuple(decisions), tuple(before))


def _tune(
    contest: Contest, tuner: Tuner, trainer: "_Recorded", space: Space, *, progress: Callable[[Decision], None]
) -> list[Decision]:
    """Train, and tell the tuner of steps, or of what is wished in place of steps."""
    if contest.objective is None:
        return tune(tuner, trainer, space, budget=contest.budget, progress=progress)
    wishing = _Wishing(trainer, contest.rewards, contest.objective)
    decisions = tune(tuner, wishing, space, budget=contest.budget, progress=progress)
    return [replace(decision, measurement=w) for decision, w in zip(decisions, wishing.windows, strict=True)]


class _Wishing:
    """A trainer whose windows say what is wished; `windows` are as they were."""

    def __init__(self, trainer: "_Recorded", rewards: Rewards, objective: Preference) -> None:
        self._trainer, self._rewards, self._objective = trainer, rewards, objective
        self.windows: list[Measurement] = []

    def measure(self, config: Config, *, iterations: int, warmup: int) -> Measurement:
        """Train for a window, and say what it is worth."""
        self.windows.append(self._trainer.measure(config, iterations=iterations, warmup=warmup))
        return self._rewards.wished(self.windows[-1], self._objective)


class _Recorded:
    """A world whose windows are kept, and looked up where they were kept before."""

    def __init__(self, world: World, results: Results, tuner: str, seed: int) -> None:
        self._world = world
        self._results = results
        self._tuner = tuner
        self._seed = seed
        self.number = 0  # windows so far

    @property
    def passed(self) -> int:
        """Whole windows' worth of iterations so far."""
        return self._world.iteration // WINDOW

    def measure(self, config: Config, *, iterations: int, warmup: int) -> Measurement:
        """Train for a window, or remember it."""
        key: dict[str, Any] = {"tuner": self._tuner, "seed": self._seed, "number": self.number}
        measurement = self._results.find(**key)
        if measurement is None:
            measurement = self._world.measure(config, iterations=iterations, warmup=warmup)
            self._results.add(measurement, **key)
        elif (measurement.config, len(measurement.step_s)) != (config, iterations):
            wanted = f"{config.label}, {iterations} iterations"
            kept = f"{measurement.config.label}, {len(measurement.step_s)} iterations"
            what = f"trial {self.number} of '{self._tuner}', seed {self._seed}"
            raise FileError(
                f"{what} was kept with {kept} and is now {wanted}: the code changed; choose another folder"
            )
        else:
            self._world.skip(config, iterations=len(measurement.step_s))
        self.number += 1
        return measurement


def _plain(value: Any) -> Any:
    """What JSON gives back unchanged: lists for tuples, text for infinity."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and value in (float("inf"), float("-inf")) else value
