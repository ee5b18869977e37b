"""Policies on one job, side by side: each tunes its own knobs with the same budget, and is judged without noise."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from autobyte.bound import gap_closed, yardstick_s
from autobyte.config import Config, Space
from autobyte.errors import InputError
from autobyte.job import Job
from autobyte.scheduler.policies import POLICIES, make_plan, space_of
from autobyte.simulator.choose import choose
from autobyte.simulator.effects import PLAIN, Effects
from autobyte.simulator.steady import reference_s, step_s
from autobyte.simulator.world import World
from autobyte.tuners import TUNERS
from autobyte.tuning import make_tuner, tune

AUTO = "auto"  # policy and config chosen from the simulator, without a search


@dataclass(frozen=True)
class Entrant:
    """A policy as the user writes it, such as `bytescheduler:fusion=1`.

    Raises:
        InputError: no such policy or knob, or a knob that is no number.
    """

    name: str

    def __post_init__(self) -> None:
        if self.name != AUTO:
            POLICIES[self.policy]
        self._knobs()

    @property
    def policy(self) -> str:
        """The policy's name."""
        return self.name.partition(":")[0]

    def space(self, job: Job) -> Space:
        """What there is to tune; a knob whose value the user gives stays as it is.

        Raises:
            InputError: the policy has no such knob.
        """
        space = space_of(self.policy, job)
        default = replace(space.default, knobs=dict(space.default.knobs) | self._knobs())
        make_plan(job, default)  # an unknown knob is told at once
        free = {name: ends for name, ends in space.knobs.items() if name not in self._knobs()}
        return replace(space, default=default, knobs=free)

    def search(self, job: Job, *, tuner: str, budget: int, seed: int, effects: Effects) -> Config:
        """The config that a search of so many windows ends with."""
        if self.policy == AUTO:
            return choose(job, effects=effects)
        space = self.space(job)
        searching = make_tuner(tuner, space, job=job, seed=seed, budget=budget)
        return tune(searching, World(job, effects=effects, seed=seed), space, budget=budget)[-1].config

    def _knobs(self) -> dict[str, float]:
        knobs = {}
        for text in filter(None, self.name.partition(":")[2].split(":")):
            knob, _, value = text.partition("=")
            try:
                knobs[knob] = float(value)
            except ValueError:
                raise InputError(f"cannot read '{text}' of '{self.name}'; write it like fusion=1") from None
        return knobs


def compare_policies(
    job: Job,
    names: list[str],
    *,
    tuner: str = "random",
    budget: int = 30,
    seeds: int = 5,
    effects: Effects = PLAIN,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> dict[str, Any]:
    """Tune every policy, and say how fast each is.

    Args:
        job: what is trained, and on what; nothing changes.
        names: policies, maybe with knobs; `auto` chooses policy and config together, from the simulator.
        tuner: which one tunes them.
        budget: windows of 10 iterations for each search.
        seeds: searches of each; the median one counts.
        effects: second-order effects of the world.
        progress: called with how many searches are done, how many there are, and of which policy.

    Returns:
        what `autobyte compare --policies --json` prints.

    Raises:
        InputError: no policy, an unknown one, one that is named twice or cannot plan this job, or a count below 1.
    """
    for what, value in (("policies", len(names)), ("budget", budget), ("seeds", seeds)):
        if value < 1:
            raise InputError(f"{what} must be at least 1, got {value}")
    twice = [name for index, name in enumerate(names) if name in names[:index]]
    if twice:
        raise InputError(f"policy '{twice[0]}' is named twice")
    entrants = [Entrant(name) for name in names]
    for entrant in entrants:
        if entrant.policy != AUTO:  # whoever cannot take part says so before anybody has searched
            knobs = entrant.space(job).knobs
            if knobs and not TUNERS[tuner].tunes_knobs:
                raise InputError(
                    f"'{tuner}' does not tune {', '.join(knobs)} of '{entrant.name}': take another tuner"
                )
    lower, reference = yardstick_s(job), reference_s(job, effects=effects)
    rows = []
    for index, entrant in enumerate(entrants):
        searched = []
        for seed in range(seeds):
            progress(index * seeds + seed, len(entrants) * seeds, entrant.name)
            config = entrant.search(job, tuner=tuner, budget=budget, seed=seed, effects=effects)
            searched.append((step_s(job, config, effects=effects), config))
        searched.sort(key=lambda pair: pair[0])
        rows.append(_row(job, entrant.name, *searched[(seeds - 1) // 2], lower=lower, reference=reference))
    how = {"tuner": tuner, "budget": budget, "seeds": seeds}
    return {"job": job.to_json(), "bound_s": lower, **how, "policies": rows}


def _row(job: Job, name: str, seconds: float, config: Config, *, lower: float, reference: float) -> dict[str, Any]:
    return {
        "name": name,
        "config": config.to_json(),
        "step_s": seconds,
        "samples_per_s": job.samples / seconds,
        "over_bound": seconds / lower,
        "gap_closed": gap_closed(seconds, reference, lower),
    }
