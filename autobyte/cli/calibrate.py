"""`autobyte calibrate`: the simulator's costs, from a few measurements of the running engines."""

from pathlib import Path
from typing import Annotated

import typer

from autobyte.cli.options import JsonOption
from autobyte.cli.rig import GpuOption


def calibrate(
    *,
    out: Annotated[Path, typer.Option("--out", help="file to write")] = Path("calibration.json"),
    hosts: Annotated[int, typer.Option("--hosts", help="emulated hosts (network namespaces), one rank on each")] = 4,
    rate: Annotated[str, typer.Option("--rate", help="nominal rate of every link in both directions")] = "700Mbit",
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            help="ps, an all-reduce (allreduce, nccl, ordered), or both, separated by a comma; default: "
            "allreduce,ps, and nccl with --gpu",
        ),
    ] = "",
    steps: Annotated[int, typer.Option("--steps", help="measured steps of each of 20 configs")] = 5,
    gpu: GpuOption = False,
    force: Annotated[bool, typer.Option("--force", help="replace the file if it exists")] = False,
    json: JsonOption = False,
) -> None:
    """Fit the simulator's costs to the engines on this machine.

    Sends one tensor of 4 MiB between emulated hosts in blocks of several sizes, one at a time and several in flight.
    From the step times it fits overhead, latency and rate, and a table for block sizes whose cost is not affine.
    Needs Linux and root. `simulate`, `validate` and `doctor` take the file as --calibration. With --gpu gradients are
    in the GPU's memory, and the engine nccl moves them.

    \b
    autobyte calibrate --rate 700Mbit --out calibration.json
    autobyte calibrate --gpu --rate 5Gbit --out nccl.json
    """
    from typing import get_args

    from autobyte.bench.calibration import ON_GPU, Engine
    from autobyte.bench.calibration import calibrate as run
    from autobyte.cli.console import print_json, print_line, print_table, progress
    from autobyte.errors import FileError, InputError, unknown
    from autobyte.units import format_bytes, parse_rate

    if out.exists() and not force:  # before a minute is spent
        raise FileError(f"{out} exists already; choose another name or say --force")
    if steps < 1:
        raise InputError(f"steps must be at least 1, got {steps}")
    engines: list[Engine] = []
    for name in (engine or ("nccl" if gpu else "allreduce,ps")).split(","):
        if name not in get_args(Engine):
            raise unknown("engine", name, get_args(Engine))
        engines += [known for known in get_args(Engine) if known == name]
    if gpu != bool(ON_GPU & {*engines}):
        raise InputError(f"the engine {'nccl needs --gpu' if not gpu else 'of --gpu is nccl'}, got --engine {engine}")
    with progress("calibrating") as step:
        calibrated = run(
            hosts=hosts,
            rate=parse_rate(rate, what="rate"),
            engines=engines,
            steps=steps,
            progress=lambda what: lambda done, total, part: step(done, total, what),
        )
    calibrated.save(out, force=force)
    if json:
        print_json(calibrated.model_dump(by_alias=True))
        return
    rows = [
        (
            name,
            f"{100 * costs.rate_share:.1f} %",
            f"{costs.overhead_s * 1e6:.0f} us",
            f"{costs.latency_s * 1e6:.0f} us",
            f"{costs.step_s * 1e3:.2f} ms",
            f"{costs.tensor_s * 1e6:.0f} us",
            str(costs.sharing),
            ", ".join(f"{format_bytes(int(s))} +{t * 1e3:.2f} ms" for s, t in costs.size_overhead_s if t) or "–",
            f"{100 * costs.error:.1f} %",
        )
        for name, costs in calibrated.engines.items()
    ]
    columns = (
        "engine",
        "of the payload rate",
        "per block",
        "latency",
        "per step",
        "per tensor",
        "share the wire",
        "sizes",
        "error",
    )
    print_table(columns, rows)
    print_line(f"written to {out}; next: autobyte validate --calibration {out}")
