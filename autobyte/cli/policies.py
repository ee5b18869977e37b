"""`autobyte compare --policies`: policies on one job, side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autobyte.job import Job

FILE = "policies.json"


def compare(
    job: "Job", names: str, *, tuner: str, budget: int, seeds: int, jitter: float, out: Path | None, json: bool
) -> None:
    """Tune every policy with the same budget, and print them."""
    from autobyte.cli.console import print_json, print_line, progress
    from autobyte.cli.files import open_folder, write_json
    from autobyte.comparison.compare import compare as run
    from autobyte.simulator.effects import Effects

    folder = open_folder(out) if out else None
    outcome = run(
        job,
        policies=[name.strip() for name in names.split(",") if name.strip()],
        tune_with=tuner,
        budget=budget,
        seeds=seeds,
        effects=Effects(jitter=jitter),
        progress=progress,
    ).outcome
    if folder is not None:
        write_json(folder / FILE, outcome)
    if json:
        print_json(outcome)
        return
    show(outcome)
    if folder is not None:
        print_line(f"written to {folder}: {FILE}; next: autobyte report {folder}")


def kept(folder: Path) -> dict[str, dict[str, Any]]:
    """Comparisons of policies that a folder holds, or the folders in it, by name.

    Raises:
        FileError: one cannot be read, or is something else.
    """
    import json

    from autobyte.errors import FileError

    outcomes = {}
    for path in sorted({*folder.glob(FILE), *folder.glob(f"*/{FILE}")}):
        try:
            outcome = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FileError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
        if not isinstance(outcome, dict) or not {"job", "bound_s", "policies"} <= outcome.keys():
            raise FileError(f"{path} is not what `autobyte compare --policies --out` writes")
        outcomes[path.parent.name] = outcome
    return outcomes


def show(outcome: dict[str, Any]) -> None:
    """Print a comparison of policies as a table."""
    from autobyte.cli.console import print_line, print_note, print_table
    from autobyte.comparison.title import count
    from autobyte.config import Config
    from autobyte.scheduler.policies import label_of
    from autobyte.units import format_percent, format_rate, format_seconds

    job, rate = outcome["job"], outcome["job"]["up_bytes_per_s"]
    rates = format_rate(float(rate)) if not isinstance(rate, list) else "mixed rates"
    print_line(f"{job['model']} · {job['architecture']} · {count(job['workers'], 'worker')} · {rates} · simulated")
    print_line(f"step: bound {format_seconds(outcome['bound_s'])}")
    rows = []
    for row in outcome["policies"]:
        config = Config.from_json(row["config"])
        rows.append(
            (
                row["name"] if row["name"] != "auto" else f"auto: {config.policy}",
                label_of(config) or "–",
                format_seconds(row["step_s"]),
                f"{row['samples_per_s']:,.1f}",
                f"{row['over_bound']:.3f}",
                format_percent(row["gap_closed"]),
            )
        )
    columns = ("policy", "⟨S_p, S_c⟩", "step", "samples/s", "over bound", "gap closed")
    print_table(columns, rows, spare=("step",))
    tuned = (
        f"Each policy was tuned by '{outcome['tuner']}': {count(outcome['budget'], 'window')} of 10 "
        f"iterations, the median of {count(outcome['seeds'], 'seed')}. "
        if "tuner" in outcome
        else ""
    )
    print_note(f"{tuned}gap closed: 0 % is DDP at its best, 100 % the bound; – where they are within 5 %.")
