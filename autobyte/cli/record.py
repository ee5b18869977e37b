"""`autobyte record`: grids of configs measured on the testbed, kept as CSV."""

from pathlib import Path
from typing import Annotated

import typer

from autobyte.cli.options import JsonOption

ModelsOption = Annotated[str, typer.Option("--models", help="built-in models or profiles, separated by commas")]
RatesOption = Annotated[str, typer.Option("--rates", help="nominal rates of the links, separated by commas")]
HostsOption = Annotated[int, typer.Option("--hosts", help="emulated hosts (network namespaces), one rank on each")]
MODELS, RATES = "vgg16,resnet50,gpt2", "500Mbit,1Gbit"


def record(
    *,
    out: Annotated[Path, typer.Argument(help="the CSV file; what it already holds is not measured again")],
    models: ModelsOption = MODELS,
    rates: RatesOption = RATES,
    hosts: HostsOption = 4,
    recordings: Annotated[
        int, typer.Option("--recordings", help="recordings of every cell, each in its own launch")
    ] = 2,
    most: Annotated[
        int | None, typer.Option("--most", help="stop after this many launches; the same command continues later")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Measure a grid of configs for every model, rate and engine.

    A cell has 6 partition sizes × 4 credits, DDP's buckets, and compute alone; 24 launches take a minute each. Models
    are emulated: they sleep for their compute, and their sizes are scaled so that communication takes 1.2 × compute
    at the first rate. Needs Linux and root. Run it again to continue where it stopped.

    Example: autobyte record grid.csv --most 4
    """
    from autobyte.bench.grid import COMPUTE_S, WIRE, cells
    from autobyte.bench.grid import record as run
    from autobyte.cli.console import print_json, print_line, progress
    from autobyte.errors import InputError
    from autobyte.units import parse_rate

    if recordings < 1 or (most is not None and most < 1):
        raise InputError("recordings and most must be at least 1")
    numbers = [parse_rate(part, what="rate") for part in rates.split(",")]
    wanted = cells(models.split(","), numbers, hosts=hosts, compute_s=COMPUTE_S, wire=WIRE)
    with progress("recording") as step:
        left = run(
            out,
            wanted,
            recordings=recordings,
            most=most,
            progress=lambda what: lambda done, total, part: step(done, total, what),
        )
    if json:
        print_json({"file": str(out), "what": "emulated", "launches_left": left})
        return
    print_line(f"{out}: {left} launches left" if left else f"{out}: complete")
