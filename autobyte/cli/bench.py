"""`autobyte bench`: schedulers beside DDP, on real sockets between shaped hosts."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autobyte.cli.options import JsonOption, PluginOption
from autobyte.cli.rig import GpuOption, RehearseOption

if TYPE_CHECKING:
    from autobyte.bench.bench import Cell
    from autobyte.simulator.calibrate import EngineCosts

MOST_DILATION = 100
SIZE_SCALE, COMPUTE, RATIOS = "auto", "0.6s", "0.5,1,2"  # unless another is given
WIRE, ENGINE = "fp32,bf16", "allreduce"  # likewise
AUTO_RATIO = 1.1  # wire time over compute that `--size-scale auto` aims at, on the fastest link


def bench(
    *,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="built-in models or profiles, separated by commas; default: vgg16. With --gpu torchvision:resnet50, "
            "transformers:gpt2, … with random weights, or FILE.py:make_model",
        ),
    ] = "",
    hosts: Annotated[int, typer.Option("--hosts", help="emulated hosts (network namespaces), one rank on each")] = 4,
    rate: Annotated[
        str,
        typer.Option(
            "--rate", help="nominal rate of every link in both directions; several rates separated by commas"
        ),
    ] = "1Gbit",
    size_scale: Annotated[
        str,
        typer.Option(
            "--size-scale",
            help=f"factor on gradient sizes; auto: sending takes {AUTO_RATIO} × compute at the first rate",
        ),
    ] = SIZE_SCALE,
    compute: Annotated[
        str, typer.Option("--compute", help="time of a forward and backward pass, emulated by sleeping")
    ] = COMPUTE,
    dilate: Annotated[
        float,
        typer.Option(
            "--dilate",
            help="slow time down: this factor on compute, and links slower by it; for machines too slow for --rate",
        ),
    ] = 1.0,
    tuner: Annotated[
        str,
        typer.Option(
            "--tuner", help="the tuner that finds the config of autobyte-tuned; with --gpu several: twin,metanet"
        ),
    ] = "",
    windows: Annotated[int, typer.Option("--windows", help="windows of ten steps that the tuner has")] = 8,
    steps: Annotated[int, typer.Option("--steps", help="measured steps of every scheduler in every repeat")] = 10,
    repeats: Annotated[
        int, typer.Option("--repeats", help="repeats of everything; the tuner searches in the first one")
    ] = 3,
    policies: Annotated[
        str, typer.Option("--policies", help="compare these policies instead, each tuned: wfbp,horovod,usbyte,auto")
    ] = "",
    plugin: PluginOption = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            "--calibration", help="a file from `autobyte calibrate`, for --policies; default: calibrate now"
        ),
    ] = None,
    wire: Annotated[str, typer.Option("--wire", help="dtypes of gradients on the wire: fp32, bf16, fp16")] = WIRE,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="folder for JSON and pictures; what it already holds is not measured again"),
    ] = None,
    clip: Annotated[
        float | None,
        typer.Option("--clip", help="clip gradients to this norm, as torch does with DDP; default: not at all"),
    ] = None,
    real_time: Annotated[
        bool,
        typer.Option(
            "--real-time",
            help="real-time priority for ranks: they wake at once, as on hosts of their own; for idle machines",
        ),
    ] = False,
    frontend: Annotated[
        str,
        typer.Option(
            "--frontend",
            help="train with this framework, and compare with its own ways: torch, keras-tf, mxnet, byteps",
        ),
    ] = "",
    engine: Annotated[
        str, typer.Option("--engine", help="with --frontend: what moves blocks: allreduce, ps, kvstore, byteps")
    ] = ENGINE,
    gpu: GpuOption = False,
    rehearse: RehearseOption = False,
    batch: Annotated[
        int, typer.Option("--batch", help="with --gpu: samples of a step on each rank; 0: as --ratio chooses")
    ] = 0,
    ratio: Annotated[
        str,
        typer.Option(
            "--ratio", help="with --gpu: choose batch sizes for which communication takes this many times compute"
        ),
    ] = RATIOS,
    inputs: Annotated[
        str, typer.Option("--input", help="with --gpu: shape of the input, where FILE.py:make_model returns none")
    ] = "",
    json: JsonOption = False,
) -> int:
    """Measure FIFO, DDP and AutoByte on the same model and links.

    DDP runs with its default and with its best bucket size. Needs Linux and root. Every rank runs in its own network
    namespace, behind a link that is shaped to --rate, and communicates over real sockets. Compute is emulated by
    sleeping, so no GPU is needed; the output says so.

    With --gpu, real models compute on this machine's GPU, and DDP and AutoByte send over NCCL. Rows are compute
    alone, DDP with each bucket size and with what else it offers, and AutoByte with each way to choose its config, on
    each engine. Ranks share the GPU, so they are slower than on GPUs of their own. --out keeps all records as JSON
    lines. --rehearse does the same on CPUs, with a small model.

    With --frontend, the emulated model is trained by another framework. Rows are the framework's own ways to average
    gradients, and AutoByte on --engine.

    \b
    autobyte bench --hosts 4 --rate 1Gbit --model vgg16 --size-scale 0.1
    autobyte bench --model vgg16,gpt2 --policies wfbp,horovod,mgwfbp,p3,bytescheduler,usbyte,dear,auto
    autobyte bench --frontend keras-tf --model vgg16,resnet50 --compute 0.3s
    autobyte bench --gpu --model torchvision:resnet50 --batch 64 --rate 5Gbit --json
    autobyte bench --rehearse --hosts 2 --model examples/small_vgg.py:make_model --input 4,3,64,64 --batch 4
    """
    from autobyte.bench.bench import Cell
    from autobyte.bench.networks import SMALL, SPECS
    from autobyte.bench.real import RealCell
    from autobyte.cli.console import print_json
    from autobyte.cli.frontends import bench_front_end
    from autobyte.cli.rig import bench_real
    from autobyte.comparison.policies import Entrant
    from autobyte.errors import InputError, require
    from autobyte.registry import load_plugins
    from autobyte.testbed.rig import Rig
    from autobyte.tuners.base import TUNERS
    from autobyte.units import parse_rate, parse_seconds

    load_plugins(plugin or [])
    tuners = [name for name in tuner.split(",") if name] or (["twin", "metanet"] if gpu or rehearse else ["twin"])
    for name in tuners:
        TUNERS[name]  # known?
    rates = [parse_rate(part, what="rate") for part in rate.split(",")]
    wires = _wires(wire)
    real = gpu or rehearse
    for_other = {
        "--clip": real and clip is not None, "--policies": real and bool(policies), "--dilate": real and dilate != 1,
        "--calibration": real and calibration is not None, "--real-time": real and real_time,
        "--size-scale": real and size_scale != SIZE_SCALE, "--compute": real and compute != COMPUTE,
        "--ratio": not real and ratio != RATIOS,
        "--batch": not real and batch != 0, "--input": not real and bool(inputs),
    }  # fmt: skip
    _check_front_end(
        frontend,
        {
            "--gpu and --rehearse": real, "--clip": clip is not None, "--policies": bool(policies),
            "--dilate": dilate != 1, "--calibration": calibration is not None, "--wire": wire != WIRE,
            "--plugin": bool(plugin),
        },
        engine=engine,
    )  # fmt: skip
    _check(
        windows, steps, repeats, clip, for_other=[name for name, is_given in for_other.items() if is_given], real=real
    )
    if real:
        cells = [
            RealCell(
                SPECS.get(name, name),
                batch,
                () if batch else _ratios(ratio),
                input=inputs,
                wires=tuple(wires),
                tuners=tuple(tuners),
                windows=windows,
                steps=steps,
                repeats=repeats,
            )
            for name in (model or (SMALL[0] if rehearse else SPECS["vgg16"])).split(",")
        ]
        return bench_real(cells, [Rig(hosts, each, rehearse) for each in rates], out=out, json=json)
    if len(tuners) > 1:
        raise InputError(f"one tuner finds the config of autobyte-tuned, not {len(tuners)}: {','.join(tuners)}")
    if not 1 <= dilate <= MOST_DILATION:
        raise InputError(f"dilate is a factor from 1 to {MOST_DILATION}, not {dilate:g}")
    compute_s = parse_seconds(compute, what="compute")
    if frontend:
        cells_of_it = [
            Cell(
                name,
                hosts,
                each,
                compute_s,
                _scale(name, size_scale, hosts=hosts, rate=rates[0], compute_s=compute_s),
            )
            for name in (model or "vgg16").split(",")
            for each in rates
        ]
        how = {"tuner": tuners[0], "windows": windows, "steps": steps, "repeats": repeats}
        return bench_front_end(cells_of_it, frontend, engine, settings=how, out=out, real_time=real_time, json=json)
    names = [part.strip() for part in policies.split(",") if part.strip()]
    for name in names:
        Entrant(name)  # known?
    if out is not None:
        require("matplotlib", extra="plot", what="the picture that --out writes")
    known = _calibrated(calibration, hosts=hosts, rate=rates[0] / dilate) if names else None
    outcomes = []
    for name in (model or "vgg16").split(","):
        scale = _scale(name, size_scale, hosts=hosts, rate=rates[0], compute_s=compute_s)
        for each in rates:
            cell = Cell(name, hosts, each / dilate, compute_s * dilate, scale, dilate, clip)
            settings: dict[str, Any] = {"steps": steps, "repeats": repeats}
            settings |= {"policies": names} if names else {"tuner": tuners[0], "windows": windows, "wire": wires}
            outcomes.append(_cell(cell, settings, known, out, real_time=real_time, plugins=plugin or []))
            if not json:
                _show(outcomes[-1])
    if len(outcomes) > 1 and not json and not names:
        _show_all(outcomes)
    if json:
        single = outcomes[0]
        print_json(
            single if len(outcomes) == 1 else {"cells": outcomes, "rows": [r for o in outcomes for r in o["rows"]]}
        )
    return 0


def _wires(text: str) -> list[str | None]:
    """Dtypes of gradients on the wire; None as they are."""
    from autobyte.errors import InputError

    wires = [None if part == "fp32" else part for part in text.split(",")]
    unknown = [part for part in wires if part not in (None, "bf16", "fp16")]
    if unknown:
        raise InputError(f"gradients travel as fp32, bf16 or fp16, not as {unknown[0]}")
    return wires


def _ratios(text: str) -> tuple[float, ...]:
    """What communication takes, over compute."""
    from autobyte.errors import InputError

    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"cannot read ratio '{text}'; write it like 0.5,1,2") from None


def _check(
    windows: int, steps: int, repeats: int, clip: float | None, *, for_other: Sequence[str], real: bool
) -> None:
    """Refuse what cannot be measured."""
    from autobyte.errors import InputError

    if min(windows, steps, repeats) < 1:
        raise InputError("windows, steps and repeats must be at least 1")
    if for_other and real:
        raise InputError(f"{for_other[0]} is for emulated models: leave it out, or leave out --gpu and --rehearse")
    if for_other:
        raise InputError(f"{for_other[0]} is for real models: leave it out, or say --gpu or --rehearse")
    if clip is not None and not clip > 0:
        raise InputError(f"clip is a norm above 0, not {clip:g}")


def _check_front_end(frontend: str, others: dict[str, bool], *, engine: str) -> None:
    """Refuse what a front end's measurement does not know, and what is for it alone."""
    from autobyte.errors import InputError

    given = [name for name, is_given in others.items() if is_given]
    if frontend and given:
        raise InputError(f"{given[0]} cannot be measured with --frontend: leave out one of them")
    if not frontend and engine != ENGINE:
        raise InputError("--engine is for --frontend: leave it out, or say --frontend torch")


def _scale(name: str, text: str, *, hosts: int, rate: float, compute_s: float) -> float:
    """The size scale that the user gives, or the one that makes communication and compute meet."""
    from autobyte.bench.bench import Cell
    from autobyte.bound import wire_s
    from autobyte.errors import InputError

    if text == "auto":
        plain = wire_s(Cell(name, hosts, rate, compute_s, 1.0).job(servers=False, wire_dtype=None))
        return min(1.0, float(f"{AUTO_RATIO * compute_s / plain:.2g}"))
    try:
        scale = float(text)
    except ValueError:
        raise InputError(f"size-scale is a number like 0.1, or auto, not '{text}'") from None
    if not 0 < scale <= 1:
        raise InputError(f"size-scale must be above 0 and at most 1, got {text}")
    return scale


def _calibrated(path: Path | None, *, hosts: int, rate: float) -> "EngineCosts":
    """What a block costs on the all-reduce engine: as it was kept, or measured now at another rate."""
    from autobyte.bench.calibration import calibrate
    from autobyte.cli.console import progress
    from autobyte.simulator.calibrate import EngineCalibration

    if path is not None:
        return EngineCalibration.load(path).engines["allreduce"]
    with progress("calibrating") as step:
        calibrated = calibrate(
            hosts=hosts,
            rate=0.7 * rate,
            engines=("allreduce",),
            progress=lambda what: lambda done, total, part: step(done, total, what),
        )
    return calibrated.engines["allreduce"]


def _cell(
    cell: "Cell",
    settings: dict[str, Any],
    costs: "EngineCosts | None",
    out: Path | None,
    *,
    real_time: bool,
    plugins: Sequence[Path],
) -> dict[str, Any]:
    """One model on links of one rate: measured, or read where it was. With costs, policies are compared."""
    import json
    from contextlib import nullcontext

    from autobyte.bench.bench import repeated, to_json
    from autobyte.bench.policies import compared
    from autobyte.bench.priority import undisturbed
    from autobyte.cli.console import progress
    from autobyte.cli.files import write_json
    from autobyte.errors import FileError, InputError

    name = f"{Path(cell.model).stem}-{cell.stands_for * 8e-6:g}Mbit"
    name += f"-dilated{cell.dilation:g}" if cell.dilation != 1 else ""
    name += "-clipped" if cell.clip is not None else ""
    path = out / f"{name}.json" if out is not None else None
    if path is not None and path.exists():
        try:
            kept: dict[str, Any] = json.loads(path.read_text())
        except ValueError:
            kept = {}
        if kept.get("settings") != settings or kept.get("emulated") != cell.describe():
            raise FileError(f"{path} holds another measurement: name another folder, or remove it")
        return kept
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    with progress(name) as step, undisturbed() if real_time else nullcontext(enter_result=True) as granted:
        if not granted:
            raise InputError("--real-time needs root, and sight of the kernel's threads: leave it out in containers")
        how = {"steps": settings["steps"], "repeats": settings["repeats"], "progress": step, "plugins": plugins}
        if costs is not None:
            rows = compared(cell, settings["policies"], costs, **how)
        else:
            rows = repeated(
                cell, tuner=settings["tuner"], windows=settings["windows"], wire_dtypes=settings["wire"], **how
            )
    outcome = to_json(cell, rows) | {"settings": settings, "real_time": real_time}
    if path is not None:
        from autobyte.bench.plot import draw_bench

        write_json(path, outcome)
        draw_bench(outcome, path.with_suffix(".png"))
    return outcome


def _show(outcome: dict[str, Any]) -> None:
    from autobyte.bench.bench import label
    from autobyte.cli.console import print_line, print_table
    from autobyte.units import format_percent

    print_line(outcome["emulated"])
    rows = [
        (
            row["scheduler"],
            {"allreduce": "all-reduce", "ps": "PS"}[row["architecture"]],
            row["wire_dtype"] or "fp32",
            label(row["config"]),
            f"{row['step_s'] * 1e3:.0f} ms",
            f"{(row['step_high_s'] - row['step_low_s']) / 2 * 1e3:.0f}",
            f"{row['samples_per_s']:.1f}",
            f"{row['speedup_over_ddp']:.2f}x",
            f"{row['over_bound']:.3f}x",
            format_percent(row["gap_closed"]),
        )
        for row in sorted(outcome["rows"], key=lambda row: (row["wire_dtype"] or "", -row["step_s"]))
    ]
    columns = ("scheduler", "engine", "wire", "config", "step", "±", "samples/s", "over DDP", "bound", "gap closed")
    print_table(columns, rows, spare=("±", "samples/s"))
    if outcome["warning"]:
        print_line(outcome["warning"])
    print_line("over DDP: at its best bucket, same dtype on the wire. bound: step over the least that is possible.")


def _show_all(outcomes: list[dict[str, Any]]) -> None:
    """Every cell on a line: what AutoByte comes to beside DDP at its best, fp32 on the wire."""
    from autobyte.cli.console import print_line, print_table
    from autobyte.units import format_percent

    columns = {
        "autobyte-tuned allreduce": "tuned",
        "autobyte-auto allreduce": "auto",
        "autobyte-tuned ps": "tuned, PS",
    }
    rows = []
    for outcome in outcomes:
        of = {
            f"{row['scheduler']} {row['architecture']}": row for row in outcome["rows"] if row["wire_dtype"] is None
        }
        if "ddp-best allreduce" not in of:
            continue
        best = of["ddp-best allreduce"]
        ours = [of[name] for name in columns]
        rows.append(
            (
                Path(outcome["cell"]["model"]).stem,
                f"{outcome['cell']['rate'] * 8e-9:g} Gbit/s",
                f"{best['bound_s'] * 1e3:.0f} ms",
                f"{best['step_s'] * 1e3:.0f} ms",
                *(f"{row['step_s'] * 1e3:.0f} ms, {row['speedup_over_ddp']:.2f}x" for row in ours),
                *(format_percent(row["gap_closed"]) for row in ours[:2]),
            )
        )
    print_line("")
    print_table(("model", "rate", "bound", "DDP's best", *columns.values(), "gap, tuned", "gap, auto"), rows)
