"""`autobyte.compare`: tuners or policies on one job, side by side; what the command of that name calls."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from autobyte.comparison.contest import Contest, hold
from autobyte.comparison.policies import compare_policies
from autobyte.comparison.preference import Preference
from autobyte.comparison.title import count
from autobyte.comparison.verdict import verdict
from autobyte.config import Config, Space
from autobyte.errors import InputError, require
from autobyte.job import Job
from autobyte.models import load, names
from autobyte.notebooks import html_table
from autobyte.results import DATABASE, Results
from autobyte.scenario import STEADY, Scenario
from autobyte.scheduler.policies import check_ranges, space_of
from autobyte.simulator.effects import PLAIN, Effects
from autobyte.units import format_percent

if TYPE_CHECKING:
    import pandas as pd

TUNERS = ("default", "p3", "grid", "random")
Progress = Callable[[str], AbstractContextManager[Callable[[int, int, str], None]]]


@contextmanager
def quiet(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show no progress."""
    yield lambda done, total, what: None


@dataclass(frozen=True, repr=False)
class Comparison:
    """What a comparison found.

    Args:
        outcome: what `autobyte compare --json` prints; with `policies=`, what `--policies --json` prints.
    """

    outcome: dict[str, Any]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One for each tuner or policy, in the order in which they were named."""
        return list(self.outcome["policies" if "policies" in self.outcome else "tuners"])

    def to_json(self) -> dict[str, Any]:
        """The outcome, as plain JSON."""
        return self.outcome

    def to_frame(self) -> "pd.DataFrame":
        """Return a pandas DataFrame: a row for each tuner or policy, by name.

        Columns of both:

        - `policy`, `partition_bytes`, `credit_bytes`, and one for each knob: the config that was found; sizes in
          bytes; NaN where the policy does not have the knob.
        - `samples_per_s`: speed under it, without noise (samples/s).
        - `gap_closed`: 0 is DDP at its best bucket size, 1 the bound; a fraction, below 0 where DDP is faster. NaN
          where the two are within 5 %, which tables show as "–".

        Of tuners, medians over seeds:

        - `failed_runs`: runs in which the tuner failed (a count).
        - `speedup_over_fifo`: speed over that of `fifo` (a ratio).
        - `regret`: what the config lacks of the speed of the best one of the space (a fraction).
        - `iterations`: steps after which the regret stays at 3 % or less (a count).
        - `search_cost_s`: training time beyond what the best config would have taken (s).
        - `tuner_cpu_s`: CPU time of the tuner (s).
        - `switches`: changes of the config (a count).
        - `oracle_gap_closed`: 0 is the best constant config, 1 the best at any time of a scenario; a fraction, NaN
          where the two are within 5 %.
        - `before_cost_s`: as `search_cost_s`, of a search before the scenario (s); NaN without one.
        - `score`, `reward_throughput`, `reward_latency`, `reward_cost`: with `objective=`, the weighted sum, and what
          it weighs; each from 0 to 1.

        Of policies, the run of the median seed:

        - `step_s`: a step (s).
        - `over_bound`: the step over the bound (a ratio).

        Raises:
            MissingExtra: pandas is not installed.
        """
        pandas = require("pandas", extra="pandas", what="a DataFrame")
        frame = pandas.DataFrame([_flat(row) for row in self.rows]).set_index("name")
        unknown = [column for column in frame if frame[column].isna().all()]
        return frame.astype(dict.fromkeys(unknown, float))  # None, where nothing is known, is not a number

    def __repr__(self) -> str:
        best = max(self.rows, key=lambda row: float(row["samples_per_s"]))
        found = f"{best['name']!r} is fastest with {best['samples_per_s']:,.1f} samples/s"
        return f"Comparison({self._title}: {found})"

    def _repr_html_(self) -> str:
        rows = []
        for row in self.rows:
            config, closed = Config.from_json(row["config"]), format_percent(row["gap_closed"])
            rows.append((row["name"], config.policy, config.label, f"{row['samples_per_s']:,.1f}", closed))
        return html_table(self._title, rows, columns=("", "policy", "⟨S_p, S_c⟩", "samples/s", "gap closed"))

    @property
    def _title(self) -> str:
        job, what = self.outcome["job"], "policies" if "policies" in self.outcome else "tuners"
        return f"{len(self.rows)} {what} on {job['model']}, {job['architecture']}, {count(job['workers'], 'worker')}"


def compare(
    job: Job,
    tuners: Sequence[str] = (),
    *,
    policies: Sequence[str] | None = None,
    tune_with: str = "random",
    budget: int = 30,
    seeds: int = 5,
    space: Space | None = None,
    scenario: Scenario = STEADY,
    effects: Effects = PLAIN,
    retune: str = "never",
    before: str = "once",
    storage: str | None = None,
    objective: str | Mapping[str, float] | None = None,
    results: Path | str | None = None,
    progress: Progress = quiet,
) -> Comparison:
    """Compare tuners on one simulated job, or policies.

    >>> compare(job, ["default", "random"], budget=10, seeds=1).to_frame()
    >>> compare(job, policies=["ddp", "usbyte", "auto"], budget=10, seeds=1).to_frame()

    Args:
        job: what is trained, and on what.
        tuners: their names; by default `default`, `p3`, `grid` and `random`.
        policies: compare these instead, each tuned with the same budget; `usbyte:fusion=0` fixes a knob.
        tune_with: the tuner of the policies.
        budget: windows of 10 iterations for each search.
        seeds: searches of each tuner or policy; medians count.
        space: where tuners search; by default ByteScheduler's.
        scenario: what changes meanwhile; for tuners.
        effects: second-order effects of the simulated world.
        retune: where something changes, whether tuners that search once search again: `never` or on `drift`.
        before: which tuners may search before the scenario begins: `once` (those that search once) or `all`.
        storage: a URL, for tuners that keep what they find.
        objective: weights that tuners search by, and that score them: "throughput=0.7,latency=0.2,cost=0.1", or the
            same as a dict; `autobyte.comparison.preference` says what they weigh. By default speed is all.
        results: a file that keeps trials of tuners, so that an unfinished comparison goes on; None keeps none.
        progress: makes a context with a title, in which it is called with how many are done, of how many, and what.

    Returns:
        what was found; the same arguments find the same.

    Raises:
        InputError: no job, an unknown name, a count below 1, weights that do not sum to 1, a space of sizes that the
            policy does not have, or arguments that do not go together.
        FileError: `results` holds another comparison.
    """
    if not isinstance(job, Job):
        raise InputError(f"job must be a Job, got {job!r}: say Job(load('vgg16'), Cluster.uniform(8, 1.25e9))")
    for name, given_names in (("tuners", tuners), ("policies", policies)):
        if isinstance(given_names, str):
            raise InputError(f"{name} must be a list of names, got '{given_names}': say ['{given_names}']")
    if policies is not None:
        given = {
            "tuners": tuners,
            "space": space,
            "results": results,
            "storage": storage,
            "objective": objective,
        }
        wrong = [name for name, value in given.items() if value]
        if wrong or scenario != STEADY or (retune, before) != ("never", "once"):
            raise InputError(f"policies are compared on a steady job: leave {(wrong or ['scenario'])[0]}= out")
        with progress("comparing") as step:
            return Comparison(
                compare_policies(
                    job, list(policies), tuner=tune_with, budget=budget, seeds=seeds, effects=effects, progress=step
                )
            )
    within = space or space_of("bytescheduler", job)
    check_ranges(within.default.policy, within)
    contest = Contest(
        job, tuple(tuners or TUNERS), budget, seeds, within, scenario, effects,
        retune=retune, before=before, storage=storage,
        objective=None if objective is None else Preference.of(objective),
    )  # fmt: skip
    with TemporaryDirectory() as nowhere:
        return Comparison(judged(contest, Path(results or Path(nowhere) / DATABASE), progress))


def judged(contest: Contest, database: Path, progress: Progress = quiet) -> dict[str, Any]:
    """Hold a contest, keep its trials in a file, and judge it: what `autobyte compare --json` prints.

    Raises:
        FileError: the file holds another contest.
    """
    runs = len(contest.tuners) * contest.seeds
    with Results.open(database, run=contest.to_json()) as results, progress("comparing") as step:

        def window(tuner: str, seed: int, number: int) -> None:
            done = contest.tuners.index(tuner) * contest.seeds + seed
            step(done * contest.budget + number, runs * contest.budget, f"{tuner}, seed {seed}")

        held = hold(contest, results, progress=window)
    with progress("judging") as step:
        return verdict(
            contest, held, [load(name) for name in names()], progress=lambda done, total: step(done, total, "")
        )


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its config in columns, without what is itself a table."""
    config = Config.from_json(row["config"])
    placed = {"policy": config.policy, "partition_bytes": config.partition_bytes, "credit_bytes": config.credit_bytes}
    rest = {key: value for key, value in row.items() if key not in ("name", "config")}
    plain = {key: value for key, value in rest.items() if not isinstance(value, dict | list)}
    return {"name": row["name"], **placed, **config.knobs, **plain}
