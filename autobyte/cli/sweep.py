"""`autobyte compare --sweep`: tuners on many jobs from one file, on all cores or on a Dask cluster."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

if TYPE_CHECKING:
    import pandas as pd

    from autobyte.comparison.contest import Contest

TABLE = "sweep.parquet"
SPEC = "sweep.json"  # what a comparison's folder is about

FIXED = ("tuners", "budget", "seeds", "retune", "before")  # alike in every comparison


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


Texts = Annotated[list[str], Field(min_length=1), BeforeValidator(_listed)]
Counts = Annotated[list[int], Field(min_length=1), BeforeValidator(_listed)]
Numbers = Annotated[list[float], Field(min_length=1), BeforeValidator(_listed)]
Switches = Annotated[list[bool], Field(min_length=1), BeforeValidator(_listed)]


class SweepFile(BaseModel):
    """What a sweep's TOML file says: names and values of the options of `autobyte compare`.

    A list is swept: every combination of values is a comparison of its own. `tuners` take part in every one.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Texts
    arch: Texts = ["allreduce"]
    workers: Counts = [8]
    bandwidth: Texts = ["10Gbit"]
    slowdown: Texts = ["1"]
    latency: Texts = ["30us"]
    overhead: Texts = ["500us,30us"]
    gpus_per_node: Counts = [1]
    accumulation: Counts = [1]
    wire_dtype: Texts = [""]
    clip: Switches = [False]
    policy: Texts = ["bytescheduler"]
    jitter: Numbers = [0.0]
    scenario: Texts = [""]
    objective: Texts = [""]
    tuners: Annotated[list[str], Field(min_length=1)] = ["default", "p3", "grid", "random"]
    budget: int = 30
    seeds: int = 5
    retune: str = "never"
    before: str = "once"

    @classmethod
    def load(cls, path: Path) -> "SweepFile":
        """Read a file.

        Raises:
            FileError: it is not there, is not TOML, or says something that `compare` does not have.
        """
        import tomllib

        from autobyte.errors import FileError

        try:
            return cls(**tomllib.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise FileError(f"cannot read {path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise FileError(f"{path} is not TOML: {error}") from None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            if first["type"] == "extra_forbidden":
                raise FileError(f"{path}: '{place}' is unknown; a sweep has {', '.join(cls.model_fields)}") from None
            raise FileError(f"{path}: {place}: {first['msg']} (got {first['input']!r:.60})") from None

    def specs(self) -> dict[str, dict[str, Any]]:
        """What every comparison has of each option, by a name made of what differs."""
        fields = {name: value for name, value in self if name not in FIXED}
        swept = [name for name, values in fields.items() if len(values) > 1] or ["model"]
        found = dict[str, dict[str, Any]]()
        for values in itertools.product(*fields.values()):
            spec = dict(zip(fields, values, strict=True))
            name = "-".join(_part(key, spec[key]) for key in swept)
            while name in found:  # of values that read alike
                name += "+"
            found[name] = spec
        return found

    def contest(self, spec: dict[str, Any], folder: Path) -> "Contest":
        """What one comparison is.

        Args:
            spec: of one comparison.
            folder: from which paths of scenarios and models start.

        Raises:
            InputError: it cannot be.
        """
        from autobyte.cli.options import make_job, make_scenario, make_space
        from autobyte.comparison.contest import Contest
        from autobyte.comparison.preference import Preference
        from autobyte.simulator.effects import Effects

        rest = dict(spec)
        policy, jitter, scenario = rest.pop("policy"), rest.pop("jitter"), rest.pop("scenario")
        model, objective = rest.pop("model"), rest.pop("objective")
        job = make_job(str(folder / model) if "/" in model or model.endswith(".json") else model, **rest)
        return Contest(
            job, tuple(self.tuners), self.budget, self.seeds, make_space(job, policy),
            make_scenario(folder / scenario if scenario else None), Effects(jitter=jitter),
            retune=self.retune, before=self.before, objective=Preference.of(objective) if objective else None,
        )  # fmt: skip


def sweep(file: Path, *, out: Path | None, jobs: int, dask: str, plugins: Sequence[Path], json: bool) -> None:
    """Compare tuners on every job of a file; what an earlier run of the same sweep has finished is kept.

    Raises:
        InputError: a job that cannot be, or no folder for the results.
        FileError: the file cannot be read, or a folder holds another comparison.
        MissingExtra: pandas, PyArrow or Matplotlib is not installed.
    """
    from autobyte.cli.console import print_json, print_line, progress
    from autobyte.cli.files import write_json
    from autobyte.cli.workers import workers
    from autobyte.comparison.overview import write_overview
    from autobyte.drafts import draft_of
    from autobyte.errors import InputError, require

    if out is None:
        raise InputError("a sweep writes a folder for every comparison: name one for all of them with --out")
    for module, extra in (("pandas", "pandas"), ("pyarrow", "pandas"), ("jinja2", "plot"), ("matplotlib", "plot")):
        require(module, extra=extra, what="--sweep")
    read = SweepFile.load(file)
    specs = read.specs()
    contests = {name: read.contest(spec, file.parent) for name, spec in specs.items()}  # all, before any begins
    told = {
        name: spec | {key: getattr(read, key) for key in FIXED} | {"contest": contests[name].to_json()}
        for name, spec in specs.items()
    }  # options as they are written, and what they stand for: a profile may have changed since
    missing = [name for name in specs if not (_begun(out / name, told[name]) / "compare.json").exists()]
    with progress("comparing") as step, workers(jobs, dask) as (submit, completed):
        step(len(specs) - len(missing), len(specs), "")
        here = None if dask else out
        work = {submit(compare_in, contests[name], here and here / name, list(plugins)): name for name in missing}
        for done, future in enumerate(completed(list(work)), start=len(specs) - len(missing) + 1):
            outcome, database = future.result()
            _keep(out / work[future], outcome, database)
            step(done, len(specs), work[future])
    frame = _frame(out, specs)
    with draft_of(out / TABLE) as draft:
        frame.to_parquet(draft, index=False)
    page = write_overview(out, names=specs)
    write_json(out / SPEC, read.model_dump())
    if json:
        rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
        print_json({"table": str(out / TABLE), "page": str(page), "rows": rows})
        return
    _show(frame, read.tuners)
    print_line(f"written to {out}: {TABLE}, {page.name}, and a folder for each of {len(specs)} comparisons")


def compare_in(contest: "Contest", folder: Path | None, plugins: list[Path]) -> tuple[dict[str, Any], bytes]:
    """Hold one comparison, in whatever process this runs.

    Args:
        contest: what is compared.
        folder: keeps its trials, so that an unfinished one goes on; None where this machine's folders are not the
            caller's.
        plugins: files that register tuners or policies.

    Returns:
        what `autobyte compare --json` prints, and the file of trials where `folder` is None.
    """
    from tempfile import TemporaryDirectory

    from autobyte.comparison.compare import judged
    from autobyte.registry import load_plugins
    from autobyte.results import DATABASE

    load_plugins(plugins)
    if folder is not None:
        return judged(contest, folder / DATABASE), b""
    with TemporaryDirectory() as nowhere:
        database = Path(nowhere) / DATABASE
        return judged(contest, database), database.read_bytes()


def _part(key: str, value: Any) -> str:
    """An option's value as a part of a folder's name."""
    if key in ("model", "scenario"):
        value = Path(value).stem or "steady"
    if key == "clip":
        return "clip" if value else "noclip"
    text = re.sub(r"[^\w.]+", "_", str(value)) or "none"
    return text if isinstance(value, str) else f"{key}{text}"


def _begun(folder: Path, told: dict[str, Any]) -> Path:
    """A comparison's folder, made or taken up.

    Raises:
        FileError: it holds something else, or cannot be made.
    """
    import json

    from autobyte.cli.files import write_json
    from autobyte.errors import FileError

    spec = folder / SPEC
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = json.loads(spec.read_text(encoding="utf-8")) if spec.exists() else None
        strange = before is None and next(folder.iterdir(), None)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot use {folder}: {getattr(error, 'strerror', None) or error}") from None
    if strange:
        raise FileError(f"{folder} holds something else ({strange.name}); choose another folder with --out")
    if before is None:
        write_json(spec, told)
    elif before != told:
        differs = next(key for key in told if before.get(key) != told[key])
        raise FileError(
            f"{folder} holds a comparison with {differs} = {before.get(differs)!r:.60}, not {told[differs]!r:.60}: "
            "choose another folder with --out"
        )
    return folder


def _keep(folder: Path, outcome: dict[str, Any], database: bytes) -> None:
    """Write what a comparison found."""
    from autobyte.cli.files import write_outcome
    from autobyte.drafts import draft_of
    from autobyte.results import DATABASE

    if database:
        for left in ("-wal", "-shm"):  # of a run on this machine that was killed
            (folder / f"{DATABASE}{left}").unlink(missing_ok=True)
        with draft_of(folder / DATABASE) as draft:
            draft.write_bytes(database)
    write_outcome(outcome, folder)


def _frame(out: Path, specs: dict[str, dict[str, Any]]) -> "pd.DataFrame":
    """A row for every tuner of every comparison."""
    import pandas as pd

    from autobyte.comparison.compare import Comparison
    from autobyte.comparison.outcome import read_outcome

    frames = []
    for name, spec in specs.items():
        found = Comparison(read_outcome(out / name / "compare.json")).to_frame().reset_index(names="tuner")
        place = {"comparison": name} | {f"job_{key}": value for key, value in spec.items()}
        frames.append(pd.concat([pd.DataFrame([place] * len(found)), found], axis=1))
    return pd.concat(frames, ignore_index=True)


def _show(frame: "pd.DataFrame", tuners: list[str]) -> None:
    """Print what each tuner's last config loses against the best one, or the scores, comparison by comparison."""
    from autobyte.cli.console import print_note, print_table
    from autobyte.units import format_percent

    scored = "score" in frame and bool(frame["score"].notna().all())  # every comparison has an objective

    def written(value: float) -> str:
        return f"{value:.3f}" if scored else format_percent(value)

    table = frame.pivot(index="comparison", columns="tuner", values="score" if scored else "regret")
    rows = [
        (str(name), *(written(row[tuner]) for tuner in tuners))
        for name, row in table.loc[frame["comparison"].unique()].iterrows()
    ]
    rows.append(("mean", *(written(table[tuner].mean()) for tuner in tuners)))
    print_table(("comparison", *tuners), rows)
    if scored:
        print_note("scores by each comparison's weights, from 0 to 1; medians over seeds.")
        return
    print_note("regret: what the config that was left in force loses against the optimum; medians over seeds.")
