"""`autobyte validate`: the simulator beside the testbed."""

from pathlib import Path
from typing import Annotated

import typer

from autobyte.cli.options import JsonOption
from autobyte.cli.record import MODELS, RATES, HostsOption, ModelsOption, RatesOption


def validate(
    *,
    calibration: Annotated[
        Path | None,
        typer.Option(
            "--calibration", help="a file from `autobyte calibrate`; default: calibrate now, at another rate"
        ),
    ] = None,
    grid: Annotated[
        Path | None, typer.Option("--grid", help="a file from `autobyte record`; default: record a small grid now")
    ] = None,
    models: ModelsOption = MODELS,
    rates: RatesOption = RATES,
    hosts: HostsOption = 4,
    plot: Annotated[Path | None, typer.Option("--plot", help="draw every config into this PNG")] = None,
    json: JsonOption = False,
) -> None:
    """Compare simulated with measured step times.

    Covers several configs, models, rates and architectures. The calibration was made with other models and other
    rates. Without --grid and --calibration, both are measured first: that needs Linux and root, and takes about ten
    minutes.

    Example: autobyte validate --calibration calibration.json --grid grid.csv
    """
    from tempfile import TemporaryDirectory

    from autobyte.bench.calibration import calibrate
    from autobyte.bench.grid import COMPUTE_S, WIRE, cells, read, record, sample
    from autobyte.bench.validation import by_cell, compare, summary
    from autobyte.cli.console import print_json, print_line, print_table, progress
    from autobyte.errors import require
    from autobyte.simulator.calibrate import EngineCalibration
    from autobyte.units import parse_rate

    if plot is not None:
        require("matplotlib", extra="plot", what="the picture that --plot writes")
    if calibration is None:
        with progress("calibrating") as step:
            known = calibrate(
                hosts=hosts,
                rate=0.7 * min(parse_rate(part, what="rate") for part in rates.split(",")),
                progress=lambda what: lambda done, total, part: step(done, total, what),
            )
    else:
        known = EngineCalibration.load(calibration)
    if grid is None:
        numbers = [parse_rate(part, what="rate") for part in rates.split(",")]
        wanted = cells(models.split(","), numbers, hosts=hosts, compute_s=COMPUTE_S, wire=WIRE)
        with TemporaryDirectory() as folder, progress("measuring") as step:
            path = Path(folder) / "grid.csv"
            record(
                path,
                wanted,
                recordings=1,
                configs=sample(),
                progress=lambda what: lambda done, total, part: step(done, total, what),
            )
            measured = read(path)
    else:
        measured = read(grid)
    rows = compare(known, measured)
    errors = summary(rows)
    if plot is not None:
        from autobyte.bench.plot import draw_validation

        draw_validation(rows, plot)
    if json:
        print_json({"what": "emulated", **errors, "rows": rows})
        return
    table = []
    for (model, rate, engine), members in by_cell(rows).items():
        of_cell = summary(members)
        worst = max(members, key=lambda row: abs(row["error"]))
        table.append(
            (
                model, f"{rate * 8e-9:g} Gbit/s", engine, str(len(members)),
                f"{100 * of_cell['median_error']:.1f} %", f"{100 * of_cell['p95_error']:.1f} %",
                f"{100 * worst['error']:+.1f} %".replace("-", "−"),
            )
        )  # fmt: skip
    print_table(("model", "rate", "engine", "configs", "median error", "95th percentile", "worst"), table)
    print_line(
        f"simulated against measured, {len(rows)} configs (emulated models): median error "
        f"{100 * errors['median_error']:.1f} %, 95th percentile {100 * errors['p95_error']:.1f} %"
    )
