"""What the network adds to the tuner `metanet`: the same worlds with it, with less of it, and without it. Simulated.

    python tools/ablate_metanet.py run       # docs/data/ablate_metanet.csv: what is missing
    python tools/ablate_metanet.py table     # reads it, writes the table of docs/research/metanet-ablation.md

Without the network, the closed form, the memory of windows and the Gaussian processes are left, and nothing is
learned from the job. All variants run in the same worlds with the same random numbers, so differences are paired. No
tuner was made with these worlds: their seeds lie above those of `judge_tuners.py`. Only the recorded grids are the
same, with other seeds.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import judge_tables
import judge_tuners as judge
import numpy as np
import pandas as pd
from ablate_twin import BUDGET, EARLY, Patch, interval, put, several
from scipy.stats import t

from autobyte.cli.options import make_job
from autobyte.comparison.replay import GridReplay, nearest, space_of
from autobyte.comparison.worlds import draw
from autobyte.config import Config, Space
from autobyte.features.vector import Candidates
from autobyte.job import Floats, Job
from autobyte.nets.forward import Forward
from autobyte.nets.metanet import Array
from autobyte.scenario import STEADY, Scenario
from autobyte.simulator.calibrate import EngineCalibration
from autobyte.simulator.effects import Effects
from autobyte.simulator.landscape import contenders
from autobyte.simulator.steady import step_s
from autobyte.simulator.world import World
from autobyte.tuners.metanet.predictor import Learned
from autobyte.tuning import Trainer, make_tuner, tune

ROOT = Path(__file__).parent.parent
DATA, PAGE = ROOT / "docs" / "data" / "ablate_metanet.csv", ROOT / "docs" / "research" / "metanet-ablation.md"
FIRST = 400_000  # where seeds begin
#: The word in the names of a kind of worlds that tells which share a draw: a world, a seed's effects, a grid.
SHARED = {"static": 0, "changing": -1, "replayed": 0}
RESAMPLED_FROM = 10  # differences on: fewer are too few for the bootstrap
RATE = Forward.rate


def part(factor: float) -> Patch:
    """So much of the network's correction of the closed form."""
    return put(Forward, "rate", lambda self, state, asked: factor * RATE(self, state, asked))


def nothing(self: Forward, state: Array, asked: Candidates) -> Floats:
    """The closed form as it is."""
    return np.zeros(len(asked.floor_s))


NO_LESSONS = put(Learned, "learn", lambda self, past: None)
#: What each variant is called, and how to get it.
VARIANTS: dict[str, Patch] = {
    "as it ships": several(),
    "without lessons": NO_LESSONS,
    "half of its correction": part(0.5),
    "without the network": several(put(Forward, "rate", nothing), NO_LESSONS),
}


@dataclass
class Ground:
    """A world that can be entered again and again, and what is true in it."""

    kind: str
    name: str
    job: Job
    enter: Callable[[], Trainer]
    space: Space = field(default_factory=Space)

    def regret(self, config: Config, iteration: int) -> float:
        """What a config lacks of the best speed of the grid in the state that an iteration has."""
        raise NotImplementedError


class Drawn(Ground):
    """A simulated world, in which something changes or not; it is named by its seed, too."""

    def __init__(self, name: str, job: Job, effects: Effects, seed: int, scenario: Scenario = STEADY) -> None:
        kind = "static" if scenario is STEADY else "changing"
        super().__init__(
            kind, f"{name} {seed}".strip(), job, partial(World, job, scenario=scenario, effects=effects, seed=seed)
        )
        self._effects = effects
        self._world = World(job, scenario=scenario)
        self._best_s: dict[Job, float] = {}

    def regret(self, config: Config, iteration: int) -> float:
        """What a config lacks of the best speed of the grid; one that is better lacks nothing."""
        job = self._world.job_at(iteration)
        if job not in self._best_s:
            self._best_s[job] = contenders(job, Space().grid(), effects=self._effects).best_s
        return max(0.0, 1 - self._best_s[job] / step_s(job, config, effects=self._effects))


class OnGrid(Ground):
    """A recorded grid, judged by its other recording."""

    def __init__(self, cell: int, number: int) -> None:
        place, recordings = judge._cells()[cell]
        seed = FIRST + number
        shown, self._judge_by = recordings[seed % len(recordings)], recordings[(seed + 1) % len(recordings)]
        job = place.cell.job(servers=place.engine == "ps", wire_dtype=None)
        costs = EngineCalibration.load(judge.CALIBRATION).of(job)
        space = space_of(shown, Config(4_000_000, 16_000_000, knobs={"fusion": 1.0}))
        enter = partial(GridReplay, job, shown, costs=costs, seed=seed)
        super().__init__("replayed", f"{judge._cell_name(place)} {seed}", job, enter, space)
        self._best_s = self._judge_by[min(shown, key=lambda config: shown[config].step_s)].step_s

    def regret(self, config: Config, iteration: int) -> float:
        """What a config lacks of the speed of the one that was the fastest in the recording that is shown."""
        return 1 - self._best_s / self._judge_by[nearest(config, self._judge_by)].step_s


def static(number: int) -> Ground:
    """A drawn world in which nothing changes."""
    drawn = draw(FIRST + number)
    return Drawn("", drawn.job, drawn.effects, FIRST + number)


def changing(path: Path, number: int) -> Ground:
    """A scenario with the job that its file names, in a world with effects."""
    command = next(line for line in path.read_text().splitlines() if "autobyte compare" in line).split()
    given = dict(zip(command[3::2], command[4::2], strict=True))
    workers, rate = int(given.get("--workers", 8)), given.get("--bandwidth", "10Gbit")
    job = make_job(given["--model"], arch=given.get("--arch", "allreduce"), workers=workers, bandwidth=rate)
    seed = FIRST + number
    scenario = Scenario.load(path).shifted(int(np.random.default_rng([12, seed]).integers(10)))
    return Drawn(path.stem, job, draw(seed).effects, seed, scenario)


def grounds() -> Iterator[Callable[[], Ground]]:
    """Worlds in rounds of 43, so that a run that is stopped has some of every kind."""
    files = [path for path in sorted(judge.SCENARIOS.glob("*.toml")) if "autobyte compare" in path.read_text()]
    for number in count():
        yield from (partial(static, 16 * number + each) for each in range(16))
        yield from (partial(changing, path, number) for path in files)
        yield from (partial(OnGrid, cell, number) for cell in range(len(judge._cells())))


def held(ground: Ground) -> dict[str, Any]:
    """Time of a run (s); what is lacking under what was chosen after three decisions, and at the end, just then."""
    searching = make_tuner("metanet", ground.space, job=ground.job, seed=1, budget=BUDGET)
    decisions = tune(searching, ground.enter(), ground.space, budget=BUDGET)
    early, last = decisions[EARLY - 1], decisions[-1]
    return {
        "run_s": sum(sum(decision.measurement.step_s) for decision in decisions),
        "early": ground.regret(early.config, early.measurement.iteration + len(early.measurement.step_s)),
        "last": ground.regret(last.config, last.measurement.iteration),
    }


def run(path: Path, worlds: int) -> None:
    """Do what the file does not hold yet."""
    kept = judge_tables.read(path).reindex(columns=["kind", "world", "variant"]).astype(str)
    there = set(kept.itertuples(index=False, name=None))
    for enter in islice(grounds(), worlds):
        ground, rows = enter(), []
        for name, patch in VARIANTS.items():
            if (ground.kind, ground.name, name) in there:
                continue
            with ExitStack() as stack:
                patch(stack)
                rows.append({"kind": ground.kind, "world": ground.name, "variant": name} | held(ground))
        if rows:
            judge_tables.append(path, rows)
            print(ground.kind, ground.name, flush=True)


def difference(values: pd.Series, kind: str) -> str:
    """Mean of paired differences (%), and its 95 % interval; worlds that share a draw count as one."""
    values = 100 * values.groupby(values.index.str.rsplit(" ", n=1).str[SHARED[kind]]).mean()
    found = interval(values.tolist()) if len(values) >= RESAMPLED_FROM else of_few(values)
    return "{:+.2f} ({:+.2f} … {:+.2f})".format(*found).replace("-", "−")


def of_few(values: pd.Series) -> tuple[float, float, float]:
    """Mean, and its 95 % interval by Student's t: resamples of a few values are too much alike."""
    middle, half = values.mean(), t.ppf(0.975, len(values) - 1) * values.sem()
    return float(middle), float(middle - half), float(middle + half)


def table(rows: pd.DataFrame) -> str:
    """A row for each kind of worlds and variant: mean regrets, and differences to the tuner as it ships."""
    heads = ["worlds", "variant", "after 3 decisions", "at the end", "more after 3", "more at the end", "longer run"]
    lines = [heads, ["---"] * len(heads)]
    for kind, of_kind in rows.groupby("kind", sort=False):
        runs = of_kind.set_index(["variant", "world"])
        first, *others = of_kind["variant"].unique()
        base = runs.loc[first]
        lines.append([f"{kind}, {len(base)}", first, *means(base), "", "", ""])
        for name in others:
            own = runs.loc[name].reindex(base.index)
            more = [own["early"] - base["early"], own["last"] - base["last"], np.log(own["run_s"] / base["run_s"])]
            cells = [difference(values, kind) for values in more]
            lines.append([f"{kind}, {len(base)}", name, *means(own), *cells])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def means(runs: pd.DataFrame) -> list[str]:
    """Mean regrets, as a table has them."""
    return [f"{100 * runs[figure].mean():.2f} %" for figure in ("early", "last")]


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--file", type=Path, default=DATA, help="of rows, if it is another")
    parser.add_argument("--worlds", type=int, default=172, help="how many")
    given = parser.parse_args()
    if given.what == "run":
        given.file.parent.mkdir(exist_ok=True)
        run(given.file, given.worlds)
        return
    judge_tables.fill(PAGE, {"network": table(judge_tables.read(given.file).astype({"world": str}))})


if __name__ == "__main__":
    main()
