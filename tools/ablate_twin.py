"""Switch each rule of the twin off in turn, in development worlds, and keep what that costs. Simulated, or replayed.

    python tools/ablate_twin.py run       # out/ablate_twin.csv: about half a minute a world; goes on
    python tools/ablate_twin.py table     # docs/data/ablate_twin.csv as the table of docs/research/twin-ablation.md

A rule is switched off by a patch of the code, for the twin and for the meta-network, which shares it. All variants run
in the same worlds with the same random numbers, so differences are paired. No tuner is judged in these worlds: their
seeds lie below those of `judge_tuners.py`. Only the recorded grids are the same, with other seeds.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial, partialmethod
from itertools import count, islice
from pathlib import Path
from typing import Any
from unittest import mock

import judge_tables
import judge_tuners as judge
import numpy as np
import pandas as pd

from autobyte.cli.options import make_job
from autobyte.comparison.replay import GridReplay, nearest, space_of
from autobyte.comparison.worlds import draw
from autobyte.config import Config, Space
from autobyte.job import Floats, Job
from autobyte.scenario import Scenario
from autobyte.simulator.calibrate import EngineCalibration
from autobyte.simulator.steady import step_s
from autobyte.simulator.world import World
from autobyte.trace import Measurement
from autobyte.tuners import trigger
from autobyte.tuners.twin import calibration, choosing, expectations, noise, tuner
from autobyte.tuners.twin.calibration import JobCalibration
from autobyte.tuners.twin.expectations import Expectations
from autobyte.tuners.twin.process import Posterior, Process, Processes
from autobyte.tuners.twin.tuner import Twin
from autobyte.tuners.twin.windows import JobWindow, broken
from autobyte.tuning import Trainer, make_tuner, tune

ROOT = Path(__file__).parent.parent
DATA, PAGE = ROOT / "docs" / "data" / "ablate_twin.csv", ROOT / "docs" / "research" / "twin-ablation.md"
MADE = ROOT / "out" / "ablate_twin.csv"
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
        put(calibration, "RESTING", np.array([kind.drift <= calibration.RESTS for kind in usual])),
    )


REST, FADE, BLOCKS = (0.03, 0.0), (0.05, 1.2), (0.02, 0.15)
NO_SENDS = put(calibration, "light_of", lambda sends, window: None)
FIT, LIKELY, REGIME_OF = JobCalibration._fit, JobCalibration._likely, JobCalibration._regime_of
STRETCH, BELIEVED = JobCalibration.stretch, Expectations.believed


def nominal_cost(self: JobCalibration) -> None:
    """Fit, and keep the nominal cost of a block."""
    FIT(self)
    self.overhead = 1.0


def links_alike(self: JobCalibration) -> None:
    """Fit, and keep all kinds of links equally likely."""
    FIT(self)
    self._links = np.full(len(calibration.LINKS), 1 / len(calibration.LINKS))


def stretch(self: JobCalibration, rows: Floats, *, wander: bool, surprise: bool) -> Posterior:
    """`JobCalibration.stretch` without one of its two additions."""
    full, bare = STRETCH(self, rows), self._paces(rows)
    bare = replace(bare, mean=bare.mean - self.windows[-1].pace(self.overhead))
    return replace(
        full, mean=full.mean if surprise else bare.mean, variance=full.variance if wander else bare.variance
    )


def break_always(self: JobCalibration, measurement: Measurement, expected_s: float) -> int:
    """A break in the warm-up counts, whatever was expected."""
    return self.noise.broken(measurement.step_s) if self.windows else 0


def regime_of(
    self: JobCalibration, window: JobWindow, *, changed: bool, larger: bool = True, surprised: bool = True
) -> float:
    """`JobCalibration._regime_of` without one of two rules."""
    if not self.windows:
        return 0.0
    likely = self.regime if self._doubt is None else self._doubt[1]
    known = sorted({float(w.row[0]) for w in self.windows}, key=lambda regime: (regime != likely, -regime))
    for regime in known:
        if not self._alike(window, [w for w in self.windows if w.row[0] == regime]):
            continue
        if surprised and self._first.get((regime, window.config), window).surprise:
            return regime
        beyond, surprises = self._beyond(window, regime, self.windows, rest=regime != likely)
        if not surprises:
            return regime
        more = window.config != self.windows[-1].config and window.row[3] >= self.windows[-1].row[3]
        if larger and regime == self.regime and beyond > 0 and more and not changed:
            return regime
    self._regimes += 1
    return float(self._regimes - 1)


def current_or_new(self: JobCalibration, window: JobWindow, *, changed: bool) -> float:
    """No regime comes back."""
    every = self.windows
    self.windows = [each for each in every if each.row[0] == self.regime]
    try:
        return REGIME_OF(self, window, changed=changed)
    finally:
        self.windows = every


def of_workers(self: JobCalibration, window: JobWindow, *, changed: bool) -> float:
    """A regime ends with other workers or a torn window, and with nothing else."""
    if not self.windows:
        return 0.0
    others = [other for other in self.windows if other.row[0] == self.regime]
    if self._workers_alike(window, others) and not changed:
        return self.regime
    self._regimes += 1
    return float(self._regimes - 1)


def alike(self: JobCalibration, window: JobWindow, others: list[JobWindow]) -> bool:
    """`JobCalibration._alike` where links never fade on."""
    if not self._workers_alike(window, others):
        return False
    first = self._first.get((float(others[-1].row[0]), window.config))
    return first is None or abs(first.pace(self.overhead) - window.pace(self.overhead)) <= calibration.SAME_LINK


def remember_latest(self: JobCalibration, window: JobWindow) -> None:
    """The latest windows, whatever they are like."""
    self.windows = [*self.windows[-calibration.KEEP + 1 :], window]
    regimes = {float(other.row[0]) for other in self.windows}
    self._first = {key: first for key, first in self._first.items() if key[0] in regimes}


class Undoubted:
    """An attribute that is None, whatever it is set to."""

    def __get__(self, owner: Any, kind: type) -> None:
        return None

    def __set__(self, owner: Any, value: Any) -> None:
        pass


class NoMisses(trigger.Misses):
    """Never off."""

    @property
    def error(self) -> float:
        return 0.0


class Always(trigger.Backoff):
    """Decides after every window."""

    def due(self, *, changed: bool = False) -> bool:
        return True


def error_of(self: noise.Noise, some_s: Sequence[float], *, otherwise: float) -> float:
    """Standard error of some steps by themselves."""
    if len(some_s) < 2:
        return otherwise
    return float(np.std(some_s, ddof=1) / max(np.mean(some_s), 1e-12) / np.sqrt(len(some_s)))


#: What each rule is called, the lines of code that it takes, and how to do without it.
RULES: dict[str, tuple[int, Patch]] = {
    "sends tell whether links crowd": (68, NO_SENDS),
    "links are expected to crowd": (85, several(links((REST, FADE), BLOCKS, crowd=False), NO_SENDS)),
    "links that fade, fade on": (7, links((REST, (0.1, 0.0)), BLOCKS)),
    "links may wander": (25, links((REST,), BLOCKS)),
    "evidence weighs how far blocks matter": (1, links((REST, FADE), (0.15,))),
    "only links that rest come back": (9, put(JobCalibration, "_likely", lambda self, *, rest=False: LIKELY(self))),
    "evidence weighs what links are like": (3, put(JobCalibration, "_fit", links_alike)),
    "evidence weighs what a block costs": (14, put(JobCalibration, "_fit", nominal_cost)),
    "torn windows are taken apart": (75, put(calibration, "ENOUGH", 2.0)),
    "torn windows are seen at all": (175, put(noise.Noise, "broken", lambda self, step_s: 0)),
    "the step of both states is left out": (5, put(calibration, "rest_of", lambda step_s, at: step_s[at:])),
    "steps explain torn windows": (40, put(calibration, "explained", lambda window, *_: window)),
    "a warm-up that differs is explained": (9, put(calibration, "apart", lambda step_s, mean_s: 0.0)),
    "a torn warm-up after a switch": (5, put(JobCalibration, "_break", break_always)),
    "a trial that fits nothing is undone": (25, put(JobCalibration, "_doubt", Undoubted())),
    "a trial is blamed": (9, put(JobCalibration, "_blame", lambda self, window, regime: None)),
    "a surprise joins the regime after it": (12, put(JobCalibration, "_joined", lambda self, last, window: False)),
    "surprises say less": (24, put(JobCalibration, "_weigh", lambda self, window: None)),
    "it surprises as it did before": (2, put(JobCalibration, "_regime_of", lambda *a, **k: regime_of(*a, surprised=False, **k))),
    "a surprise stands for its own config": (5, put(JobCalibration, "stretch", partialmethod(stretch, wander=True, surprise=False))),
    "slower with more in flight is the config": (4, put(JobCalibration, "_regime_of", lambda *a, **k: regime_of(*a, larger=False, **k))),
    "a fading regime goes on": (3, put(JobCalibration, "_alike", alike)),
    "links under the same config are compared": (11, put(JobCalibration, "_alike", JobCalibration._workers_alike)),
    "regimes come back": (12, put(JobCalibration, "_regime_of", current_or_new)),
    "a new regime where nothing fits": (30, put(JobCalibration, "_regime_of", of_workers)),
    "a long rest drives nothing out": (4, put(JobCalibration, "_remember", remember_latest)),
    "compute is the mean of four windows": (5, put(JobCalibration, "now", lambda self: self.of(self.windows[-1]))),
    "links wander until the next window": (3, put(JobCalibration, "stretch", partialmethod(stretch, wander=False, surprise=True))),
    "what is usual is mixed into noise": (
        45,
        several(
            put(noise.Noise, "error", lambda self, measurement: measurement.error),
            put(noise.Noise, "error_of", error_of),
            put(noise.Noise, "broken", lambda self, step_s: broken(step_s)),
        ),
    ),
    "evidence narrows the doubt": (15, put(Process, "scale", lambda self, rows, values, spread: 1.0)),
    "misses widen the doubt": (8, put(tuner, "Misses", NoMisses)),
    "doubt is bounded by compute": (6, put(expectations, "_compute_s", lambda state: 1e-9)),
    "more in flight: expect the worse": (19, put(expectations, "beyond", lambda flight, seen: np.zeros(len(flight)))),
    "early: all of the worse, and no hope": (4, put(Expectations, "believed", lambda self, *, error, early: BELIEVED(self, error=error, early=False))),
    "early: a trial must pay off at once": (3, put(tuner, "ahead", lambda lasted, *, least=2.0: choosing.ahead(lasted))),
    "early: one that ran": (6, put(tuner, "choice", lambda *a, ran, **k: choosing.choice(*a, **k))),
    "early, all": (20, put(Twin, "_early", False)),
    "two octaves at most": (1, put(expectations, "OCTAVES", 99.0)),
    "of about as much, the fastest": (8, put(tuner, "choice", lambda *a, ran, mean: choosing.choice(*a))),
    "knowledge gradient": (35, put(tuner, "worth_together", lambda belief, *, windows: choosing.worth(belief.mean, belief.deviation, windows=windows))),
    "longer horizon with time": (4, put(tuner, "ahead", lambda lasted, *, least=2.0: least)),
    "rarer decisions": (40, put(tuner, "Backoff", Always)),
    "five decisions without a pause": (2, put(tuner, "Backoff", partial(trigger.Backoff, first=0))),
    "half windows": (6, put(Twin, "brief", property(lambda self: False, lambda self, value: None))),
    "two-stage pruning": (10, put(expectations, "_is_coarse", lambda config: True)),
}  # fmt: skip

# Rules that were left out together for a while, with their lines; they are back (see the page)
UNDONE: dict[str, int] = {
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
    costs = EngineCalibration.load(judge.CALIBRATION).of(job)
    space = space_of(recorded, Config(4_000_000, 16_000_000, knobs={"fusion": 1.0}))
    enter = partial(GridReplay, job, recorded, costs=costs, seed=seed)
    name = f"{judge._cell_name(place)} {seed}"
    return Place("replayed", name, job, enter, lambda config: judge_by[nearest(config, judge_by)].step_s, space)


def places() -> Iterator[Callable[[], Place]]:
    """Worlds in rounds of about 23, so that a run that is stopped has some of every kind."""
    files = [path for path in sorted(judge.SCENARIOS.glob("*.toml")) if "autobyte compare" in path.read_text()]
    for number in count():
        yield from (partial(changing, path, number // 2) for path in files[number % 2 :: 2])
        yield from (partial(static, 8 * number + each) for each in range(8))
        yield from (partial(static, 4 * number + each, disturbed=True) for each in range(4))
        yield from (partial(replayed, cell, number // 3) for cell in range(number % 3, len(judge._cells()), 3))


def held(place: Place, name: str) -> dict[str, Any]:
    """What a run took (s), and a step under what was chosen after three decisions and at the end (s)."""
    tuner = make_tuner(name, place.space, job=place.job, seed=1, budget=BUDGET)
    began = time.process_time()
    decisions = tune(tuner, place.enter(), place.space, budget=BUDGET)
    took_s = round(time.process_time() - began, 3)
    windows = [decision.measurement for decision in decisions]
    row = {"run_s": sum(sum(window.step_s) for window in windows), "early_s": math.nan, "last_s": math.nan}
    if place.true_s is not None:
        row |= {"early_s": place.true_s(decisions[EARLY - 1].config), "last_s": place.true_s(decisions[-1].config)}
    if place.true_s is not None and place.kind == "replayed":
        row["run_s"] = sum(len(window.step_s) * place.true_s(window.config) for window in windows)
    return row | {"failed": any(decision.failure for decision in decisions), "took_s": took_s}


def read(path: Path) -> pd.DataFrame:
    """Rows of a file; none where there is no file."""
    rows = judge_tables.read(path).reindex(columns=["kind", "world", "tuner", "rule", "run_s", "early_s", "last_s"])
    return rows.fillna({"rule": ""}).astype({"world": str})


def run(path: Path, worlds: int) -> None:
    """Do what the file does not hold yet."""
    there = set(read(path)[["kind", "world", "tuner", "rule"]].itertuples(index=False, name=None))
    for enter in islice(places(), worlds):
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


def changes(rows: pd.DataFrame, rule: str, name: str, figure: str) -> list[float]:
    """By how much a figure is larger without a rule (%), world by world."""
    runs = rows[rows["tuner"] == name].set_index(["kind", "world"])
    whole, without = (runs.loc[runs["rule"] == which, figure] for which in ("", rule))
    ratios = (without / whole.reindex(without.index)).dropna()
    return (100 * np.log(ratios)).tolist()


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, and its 95 % interval by the percentile bootstrap."""
    drawn = np.random.default_rng(0).choice(values, (RESAMPLED, len(values))).mean(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(np.mean(values)), float(low), float(high)


def table(rows: pd.DataFrame) -> str:
    """One row per rule: its lines, what a run and a step cost without it, and what became of it."""
    figures = ("run_s", "early_s", "last_s")
    head = ["rule", "lines", *(f"{name}, {figure}" for name in TUNERS for figure in ("run", "after 3", "at the end"))]
    table_rows = [[*head, "worst run", "verdict"], ["---"] * (len(head) + 2)]
    for rule in filter(None, rows["rule"].unique()):
        cells = []
        for name in TUNERS:
            for figure in figures:
                differences = changes(rows, rule, name, figure)
                cells.append("{:+.2f} ({:+.2f} … {:+.2f})".format(*interval(differences)) if differences else "–")
        worst = max(max(changes(rows, rule, name, "run_s")) for name in TUNERS)
        lines = UNDONE[rule] if rule in UNDONE else RULES[rule][0]
        table_rows.append(
            [rule, str(lines), *cells, f"{worst:+.1f}", "left out, then back" if rule in UNDONE else "kept"]
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in table_rows)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--file", type=Path, help="of rows, if it is another")
    parser.add_argument("--worlds", type=int, default=69, help="how many")
    given = parser.parse_args()
    if given.what == "run":
        MADE.parent.mkdir(exist_ok=True)
        run(given.file or MADE, given.worlds)
        return
    judge_tables.fill(PAGE, {"ablation": table(read(given.file or DATA))})


if __name__ == "__main__":
    main()
