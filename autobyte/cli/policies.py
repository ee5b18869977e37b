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
    from autobyte.comparison.policies import compare_policies
    from autobyte.simulator.effects import Effects

    folder = open_folder(out) if out else None
    with progress("comparing") as step:
        outcome = compare_policies(
            job,
            [name.strip() for name in names.split(",") if name.strip()],
            tuner=tuner,
            budget=budget,
            seeds=seeds,
            effects=Effects(jitter=jitter),
            progress=step,
        )
    if folder is not None:
        write_json(folder / FILE, outcome)
    if json:
        print_json(outcome)
        return
    _show(outcome, tuner=tuner, budget=budget, seeds=seeds)
    if folder is not None:
        print_line(f"written to {folder}: {FILE}")


def _show(outcome: dict[str, Any], *, tuner: str, budget: int, seeds: int) -> None:
    from autobyte.cli.console import percent, print_line, print_note, print_table
    from autobyte.comparison.title import count
    from autobyte.config import Config
    from autobyte.units import format_rate, format_seconds

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
                config.label,
                format_seconds(row["step_s"]),
                f"{row['samples_per_s']:,.1f}",
                f"{row['over_bound']:.3f}",
                percent(row["gap_closed"]),
            )
        )
    columns = ("policy", "⟨S_p, S_c⟩", "step", "samples/s", "over bound", "gap closed")
    print_table(columns, rows, spare=("step",))
    print_note(
        f"Each policy's own knobs were tuned by '{tuner}': {count(budget, 'window')} of 10 iterations, the median of "
        f"{count(seeds, 'seed')}. gap closed: 0 is DDP at its best, 1 the bound; – where they are within 5 %."
    )
