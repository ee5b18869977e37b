"""Switch each rule of the twin off in turn, in development worlds, and keep what that costs. Simulated, or replayed.

    python tools/ablate_twin.py run       # docs/data/ablate_twin.csv: about half a minute a world; goes on
    python tools/ablate_twin.py table     # the table of docs/research/twin-ablation.md

A rule is switched off by a patch of the code, for the twin and for the meta-network, which shares it. All variants
run in the same worlds with the same random numbers, so differences are paired. No tuner is judged in these worlds:
their seeds lie below those of `judge_tuners.py`. Only the recorded grids are the same, with other seeds.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import judge_tables
import judge_tuners as judge
import numpy as np

from autobyte.cli.options import make_job
from autobyte.comparison.replay import Replay, nearest, space_of
from autobyte.comparison.worlds import draw
from autobyte.config import Config, Space
from autobyte.job import Floats, Job
from autobyte.scenario import Scenario
from autobyte.simulator.calibrate import Calibration
from autobyte.simulator.steady import step_s
from autobyte.simulator.world import World
from autobyte.trace import Measurement
from autobyte.tuners import trigger
from autobyte.tuners.twin import calibration, choosing, expectations, noise, tuner
from autobyte.tuners.twin.calibration import JobCalibration
from autobyte.tuners.twin.process import Process, Processes
from autobyte.tuners.twin.tuner import Twin
from autobyte.tuners.twin.windows import JobWindow, broken
from autobyte.tuning import Trainer, make_tuner, tune

ROOT = Path(__file__).parent.parent
DATA, PAGE = ROOT / "docs" / "data" / "ablate_twin.csv", ROOT / "docs" / "research" / "twin-ablation.md"
TUNERS = ("twin", "metanet")
BUDGET, EARLY = 30, 3  # windows; decisions after which the first verdict falls
STATIC, DISTURBED, EFFECTS, GRIDS = 46_000, 46_500, 47_000, 900  # where seeds begin
RESAMPLED = 2000
NOTICEABLE = 0.05  # % of a run's time: half of the last digit that the judged tables print

Patch = Callable[[ExitStack], None]


def put(owner: Any, name: str, value: Any) -> Patch:
    """A patch that replaces one attribute."""

    def patch(stack: ExitStack) -> None:
        stack.enter_context(mock.patch.object(owner, name, value, create=True))

    return patch


def several(*patches: Patch) -> Patch:
    """All of these patches."""

    def patch(stack: ExitStack) -> None:
        for each in patches:
            each(stack)

    return patch


def links(drifts: Sequence[tuple[float, float]], blocks: Sequence[float], *, crowd: bool = True) -> Patch:
    """Other kinds of links than `calibration.LINKS`."""

    def kinds(crowding: tuple[float, float]) -> list[Process]:
        flights = [(0.02, (0.0, 0.0)), (0.2, (0.0, 0.0)), (0.2, crowding)][: 3 if crowd else 2]
        return [
            Process(regime=3.0, drift=drift, trend=trend, block=block, flight=flight, crowding=crowds)
            for drift, trend in drifts
            for block in blocks
            for flight, crowds in flights
        ]

    usual = kinds((0.4, 0.2))
    return several(
        put(calibration, "LINKS", usual),
        put(calibration, "USUAL", Processes.of(usual)),
        put(calibration, "OPEN", Processes.of(kinds((0.6, 0.6)))),
    )


REST, FADE, BLOCKS = (0.03, 0.0), (0.05, 1.2), (0.02, 0.15)
NO_SENDS = put(calibration, "light_of", lambda sends, window: None)
FIT = JobCalibration._fit


def nominal_cost(self: JobCalibration) -> None:
    """Fit, and keep the nominal cost of a block."""
    FIT(self)
    self.overhead = 1.0


def links_alike(self: JobCalibration) -> None:
    """Fit, and keep all kinds of links equally likely."""
    FIT(self)
    self._links = np.full(len(calibration.LINKS), 1 / len(calibration.LINKS))


def of_workers(self: JobCalibration, window: JobWindow) -> float:
    """A regime ends with other workers, and with nothing else."""
    if not self.windows:
        return 0.0
    others = [other for other in self.windows if other.row[0] == self.regime]
    if not self._workers_alike(window, others):
        self._regimes += 1
    return float(self._regimes - 1)


def remember_latest(self: JobCalibration, window: JobWindow) -> None:
    """The latest windows, whatever they are like."""
    self.windows = [*self.windows[-calibration.KEEP + 1 :], window]


class NoMisses(trigger.Misses):
    """Never off."""

    @property
    def error(self) -> float:
        return 0.0


class Always(trigger.Backoff):
    """Decides after every window."""

    def due(self, *, changed: bool = False) -> bool:
        return True


def alone(belief: choosing.Belief, *, windows: float) -> Floats:
    """Each candidate's own expected improvement."""
    return choosing.worth(belief.mean, belief.deviation, windows=windows)


def by_worth(candidates: Sequence[Config], running: Config, value: Floats, bar: float, *, mean: Floats) -> Config:
    """The candidate of most worth, whatever its expected step time."""
    return choosing.choice(candidates, running, value, bar)


#: What each rule is called, the lines of code that it takes, and how to do without it.
RULES: dict[str, tuple[int, Patch]] = {
    "sends tell whether links crowd": (68, NO_SENDS),
    "links are expected to crowd": (85, several(links((REST, FADE), BLOCKS, crowd=False), NO_SENDS)),
    "links that fade, fade on": (7, links((REST, (0.1, 0.0)), BLOCKS)),
    "links may wander": (9, links((REST,), BLOCKS)),
    "evidence weighs how far blocks matter": (1, links((REST, FADE), (0.15,))),
    "evidence weighs what links are like": (3, put(JobCalibration, "_fit", links_alike)),
    "evidence weighs what a block costs": (14, put(JobCalibration, "_fit", nominal_cost)),
    "a new regime where nothing fits": (15, put(JobCalibration, "_regime_of", of_workers)),
    "a long rest drives nothing out": (4, put(JobCalibration, "_remember", remember_latest)),
    "compute is the mean of four windows": (5, put(JobCalibration, "now", lambda self: self.of(self.windows[-1]))),
    "what is usual is mixed into noise": (
        30,
        several(
            put(noise.Noise, "error", lambda self, measurement: measurement.error),
            put(noise.Noise, "torn", lambda self, measurement: broken(measurement.step_s) > measurement.warmup),
        ),
    ),
    "misses widen the doubt": (8, put(tuner, "Misses", NoMisses)),
    "doubt is bounded by compute": (6, put(expectations, "_compute_s", lambda state: 1e-9)),
    "more in flight: expect the worse": (19, put(expectations, "beyond", lambda flight, seen: np.zeros(len(flight)))),
    "two octaves at most": (1, put(expectations, "OCTAVES", 99.0)),
    "of about as much, the fastest": (6, put(tuner, "choice", by_worth)),
    "knowledge gradient": (35, put(tuner, "worth_together", alone)),
    "longer horizon with time": (4, put(tuner, "ahead", lambda lasted: choosing.AHEAD)),
    "rarer decisions": (40, put(tuner, "Backoff", Always)),
    "five decisions without a pause": (2, put(tuner, "Backoff", partial(trigger.Backoff, first=0))),
    "torn windows are seen at all": (45, put(noise.Noise, "torn", lambda self, measurement: False)),
    "steps explain torn windows": (40, put(calibration, "explained", lambda window, *_: window)),
    "a warm-up that differs is explained": (9, put(calibration, "apart", lambda step_s, mean_s: 0.0)),
    "two-stage pruning": (10, put(expectations, "_is_coarse", lambda config: True)),
    "half windows": (6, put(Twin, "brief", property(lambda self: False, lambda self, value: None))),
}

#: Lines of the rules that were deleted after this, which the file of numbers still has.
GONE = {
    "only links that rest come back": 9,
    "torn windows are taken apart": 75,
    "the step of both states is left out": 5,
    "a torn warm-up after a switch": 5,
    "a trial that fits nothing is undone": 25,
    "a trial is blamed": 9,
    "a surprise joins the regime after it": 12,
    "it surprises as it did before": 2,
    "a surprise stands for its own config": 5,
    "a fading regime goes on": 3,
    "links under the same config are compared": 11,
    "regimes come back": 12,
    "links wander until the next window": 3,
    "evidence narrows the doubt": 15,
    "early: all of the worse, and no hope": 4,
    "early: a trial must pay off at once": 3,
    "early: one that ran": 6,
    "early, all": 20,
    "surprises say less": 24,
    "slower with more in flight is the config": 4,
    "torn windows, doubts and surprises, together": 190,
    "all that is deleted": 256,
}


@dataclass(frozen=True)
class Place:
    """A world that can be entered again and again, and the true step time of a config (s), if nothing changes."""

    kind: str
    name: str
    job: Job
    enter: Callable[[], Trainer]
    true_s: Callable[[Config], float] | None
    space: Space


class Disturbed(World):
    """The first window of the n-th switch takes so many times as long: something else has the hosts just then."""

    nth, times, switches = 2, 4.0, 0

    def measure(self, config: Config, *, iterations: int, warmup: int = 0) -> Measurement:
        """Train for a window."""
        switched = self._config not in (None, config)
        window = super().measure(config, iterations=iterations, warmup=warmup)
        self.switches += switched
        if not switched or self.switches != self.nth:
            return window
        assert window.stats is not None
        up, down = (rates / self.times for rates in (window.stats.up_bytes_per_s, window.stats.down_bytes_per_s))
        stats = replace(window.stats, up_bytes_per_s=up, down_bytes_per_s=down)
        return replace(window, step_s=tuple(step * self.times for step in window.step_s), stats=stats)


def static(number: int, *, disturbed: bool = False) -> Place:
    """A drawn world in which nothing changes, undisturbed or not."""
    seed = (DISTURBED if disturbed else STATIC) + number
    drawn, known = draw(seed), dict[Config, float]()

    def enter() -> World:
        if not disturbed:
            return World(drawn.job, effects=drawn.effects, seed=seed)
        world = Disturbed(drawn.job, effects=drawn.effects, seed=seed)
        world.nth, world.times = 2 + seed % 3, 2.0 + seed % 4
        return world

    def true_s(config: Config) -> float:
        if config not in known:
            known[config] = step_s(drawn.job, config, effects=drawn.effects.calm())
        return known[config]

    return Place("disturbed" if disturbed else "static", str(seed), drawn.job, enter, true_s, Space())


def changing(path: Path, number: int) -> Place:
    """A scenario with the job that its file names, in a world with effects."""
    command = next(line for line in path.read_text().splitlines() if "autobyte compare" in line).split()
    given = dict(zip(command[3::2], command[4::2], strict=True))
    workers, rate = int(given.get("--workers", 8)), given.get("--bandwidth", "10Gbit")
    job = make_job(given["--model"], arch=given.get("--arch", "allreduce"), workers=workers, bandwidth=rate)
    seed = EFFECTS + number
    effects = draw(seed).effects
    scenario = Scenario.load(path).shifted(int(np.random.default_rng([12, seed]).integers(10)))
    enter = partial(World, job, scenario=scenario, effects=effects, seed=seed)
    return Place("changing", f"{path.stem} {seed}", job, enter, None, Space())


def replayed(cell: int, number: int) -> Place:
    """A recorded grid, judged by its other recording."""
    place, recordings = judge._cells()[cell]
    seed = GRIDS + number
    recorded, judge_by = recordings[seed % len(recordings)], recordings[(seed + 1) % len(recordings)]
    job = place.cell.job(servers=place.engine == "ps", wire_dtype=None)
    costs = Calibration.load(judge.CALIBRATION).of(job)
    space = space_of(recorded, Config(4_000_000, 16_000_000, knobs={"fusion": 1.0}))
    enter = partial(Replay, job, recorded, costs=costs, seed=seed)
    name = f"{judge._cell_name(place)} {seed}"
    return Place("replayed", name, job, enter, lambda config: judge_by[nearest(config, judge_by)].step_s, space)


def places(rounds: int) -> Iterator[Callable[[], Place]]:
    """Worlds in rounds, so that a run that is stopped has some of every kind."""
    files = [path for path in sorted(judge.SCENARIOS.glob("*.toml")) if "autobyte compare" in path.read_text()]
    for number in range(rounds):
        yield from (partial(changing, path, number // 2) for path in files[number % 2 :: 2])
        yield from (partial(static, 8 * number + each) for each in range(8))
        yield from (partial(static, 4 * number + each, disturbed=True) for each in range(4))
        yield from (partial(replayed, cell, number // 3) for cell in range(number % 3, len(judge._cells()), 3))


def held(place: Place, name: str) -> dict[str, Any]:
    """What a run took (s), and a step under what was chosen after three decisions and at the end (s)."""
    made = make_tuner(name, place.space, job=place.job, seed=1, budget=BUDGET)
    began = time.process_time()
    decisions = tune(made, place.enter(), place.space, budget=BUDGET)
    took_s = round(time.process_time() - began, 3)
    windows = [decision.measurement for decision in decisions]
    row = {"run_s": sum(sum(window.step_s) for window in windows), "early_s": "", "last_s": ""}
    if place.true_s is not None:
        row |= {"early_s": place.true_s(decisions[EARLY - 1].config), "last_s": place.true_s(decisions[-1].config)}
    if place.true_s is not None and place.kind == "replayed":
        row["run_s"] = sum(len(window.step_s) * place.true_s(window.config) for window in windows)
    return row | {"failed": any(decision.failure for decision in decisions), "took_s": took_s}


def run(path: Path, rounds: int) -> None:
    """Do what the file does not hold yet."""
    there = {(row["kind"], row["world"], row["tuner"], row["rule"]) for row in judge_tables.read(path)}
    for enter in places(rounds):
        place, rows = enter(), []
        for name in TUNERS:
            for rule, (_, patch) in {"": (0, several()), **RULES}.items():
                if (place.kind, place.name, name, rule) in there:
                    continue
                with ExitStack() as stack:
                    patch(stack)
                    head = {"kind": place.kind, "world": place.name, "tuner": name, "rule": rule}
                    rows.append(head | held(place, name))
        if rows:
            judge_tables.append(path, rows)
            print(place.kind, place.name, flush=True)


def changes(rows: judge_tables.Rows, rule: str, name: str, figure: str) -> list[float]:
    """By how much a figure is larger without a rule (%), world by world."""
    whole = {(row["kind"], row["world"]): row[figure] for row in rows if (row["rule"], row["tuner"]) == ("", name)}
    without = [row for row in rows if (row["rule"], row["tuner"]) == (rule, name) and row[figure]]
    return [100 * float(np.log(float(row[figure]) / float(whole[row["kind"], row["world"]]))) for row in without]


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, and its 95 % interval by the percentile bootstrap."""
    drawn = np.random.default_rng(0).choice(values, (RESAMPLED, len(values))).mean(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(np.mean(values)), float(low), float(high)


def table(rows: judge_tables.Rows) -> str:
    """One row per rule: its lines, what a run and a step cost without it, and what became of it."""
    figures = ("run_s", "early_s", "last_s")
    head = ["rule", "lines", *(f"{name}, {figure}" for name in TUNERS for figure in ("run", "after 3", "at the end"))]
    made = [[*head, "worst run", "verdict"], ["---"] * (len(head) + 2)]
    for rule in dict.fromkeys(row["rule"] for row in rows if row["rule"]):
        cells = []
        for name in TUNERS:
            for figure in figures:
                mean, low, high = interval(changes(rows, rule, name, figure))
                cells.append(f"{mean:+.2f} ({low:+.2f} … {high:+.2f})")
        worst = max(max(changes(rows, rule, name, "run_s")) for name in TUNERS)
        lines = GONE[rule] if rule in GONE else RULES[rule][0]
        made.append([rule, str(lines), *cells, f"{worst:+.1f}", "deleted" if rule in GONE else "kept"])
    return "\n".join("| " + " | ".join(row) + " |" for row in made)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--out", type=Path, default=DATA)
    parser.add_argument("--rounds", type=int, default=3, help="of about 23 worlds each")
    given = parser.parse_args()
    if given.what == "run":
        run(given.out, given.rounds)
        return
    judge_tables.fill(PAGE, {"ablation": table(judge_tables.read(given.out))})


if __name__ == "__main__":
    main()
