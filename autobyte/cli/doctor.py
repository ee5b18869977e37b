"""`autobyte doctor`: is the network the bottleneck, and what could be gained?"""

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autobyte.cli.options import (
    AccumulationOption,
    ArchOption,
    BandwidthOption,
    CalibrationOption,
    JsonOption,
    LatencyOption,
    OverheadOption,
    WireOption,
    WorkersOption,
)
from autobyte.cli.rig import GpuOption, RehearseOption

if TYPE_CHECKING:
    from autobyte.simulator.diagnose import Diagnosis
    from autobyte.testbed.rig import Rig
    from autobyte.torch.profiling.doctor import Symptoms
    from autobyte.torch.profiling.source import Made

KEEP_DDP, UNKNOWN = 3, 4  # the exit status
HOSTS, LIMIT_S = 4, 600.0  # with --gpu


def doctor(
    *,
    source: Annotated[
        str | None,
        typer.Argument(
            help="under torchrun, or with --hosts: FILE.py:FUNCTION, where the function makes the model; or "
            "torchvision:resnet50, transformers:gpt2, …"
        ),
    ] = None,
    inputs: Annotated[
        str, typer.Option("--input", help="shape of that model's input, as for `autobyte profile`")
    ] = "",
    batch: Annotated[
        int, typer.Option("--batch", help="samples of a step on each rank; 0: as many as --input or the model has")
    ] = 0,
    device: Annotated[str, typer.Option("--device", help="where that model runs: cpu or cuda")] = "cpu",
    hosts: Annotated[
        int,
        typer.Option("--hosts", help="measure that model on this many emulated hosts (root), instead of torchrun's"),
    ] = 0,
    rate: Annotated[str, typer.Option("--rate", help="with --hosts: nominal rate of every link")] = "1Gbit",
    gpu: GpuOption = False,
    rehearse: RehearseOption = False,
    profile: Annotated[
        str | None,
        typer.Option("--profile", "--model", help="instead of your own model: a profile.json or a built-in model"),
    ] = None,
    arch: ArchOption = "allreduce",
    workers: WorkersOption = 8,
    bandwidth: BandwidthOption = "10Gbit",
    latency: LatencyOption = "30us",
    overhead: OverheadOption = "500us,30us",
    accumulation: AccumulationOption = 1,
    wire_dtype: WireOption = "",
    calibration: CalibrationOption = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="under torchrun, too, end with status 3 (keep DDP) or 4 (unknown)")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Predict what a job would gain over DDP.

    Says whether scheduling would make it faster, by how much, and what would help. It needs a profile and a
    bandwidth. Under torchrun it takes a model of your own instead, and measures it with DDP on your ranks:
    compute, communication, and the part of it that nothing hides. With --hosts it starts the ranks by itself, on
    emulated hosts with links of --rate; with --gpu they share this machine's GPU. Exit status 0: a gain of at
    least 6 % is predicted, so 5 % is likely. Exit status 3: keep DDP. Exit status 4: unknown, because the machine
    was busy with something else, or measurements contradict each other. Under torchrun, which takes every other
    status for a failure, the status is 0; read "verdict" from --json, or pass --exit-code (torchrun then turns
    3 and 4 into 1).

    \b
    autobyte doctor --profile mine.json --bandwidth 1Gbit --workers 4
    autobyte doctor --gpu --hosts 4 --rate 5Gbit torchvision:resnet50 --batch 64
    torchrun --nproc-per-node 2 -m autobyte doctor examples/small_vgg.py:make_model --input 16,3,64,64
    """
    from autobyte.cli.options import calibrated, make_job
    from autobyte.errors import InputError
    from autobyte.simulator.diagnose import diagnose
    from autobyte.testbed.rig import Rig
    from autobyte.units import parse_rate

    if (source is None) == (profile is None):
        raise InputError("doctor takes a model of your own (FILE.py:make_model, under torchrun), or --profile")
    if source is not None and (gpu or rehearse or hosts):
        rig = Rig(hosts or HOSTS, parse_rate(rate, what="rate"), rehearse or not gpu)
        if status := _on_rig(rig, source, inputs, batch, json=json):
            raise typer.Exit(status)
        return
    if source is not None:
        _as_rank(source, inputs, batch, device, exit_code=exit_code, json=json)
        return
    assert profile is not None
    launched = "TORCHELASTIC_RUN_ID" in os.environ  # by torchrun
    if launched and os.environ.get("RANK", "0") != "0":
        return  # all ranks predict the same: one speaks
    settings: dict[str, Any] = {
        "workers": workers, "bandwidth": bandwidth, "latency": latency, "overhead": overhead,
        "accumulation": accumulation, "wire_dtype": wire_dtype,
    }  # fmt: skip
    job, effects = calibrated(make_job(profile, arch=arch, **settings), calibration)
    reference, reference_effects = calibrated(make_job(profile, arch="allreduce", **settings), calibration)
    diagnosis = diagnose(job, effects=effects, ddp_job=reference, ddp_effects=reference_effects)
    doubt = _doubt_of(profile)
    _show(diagnosis, None, doubt=doubt, json=json)
    if (exit_code or not launched) and (status := _status(diagnosis, doubt)):
        raise typer.Exit(status)


def _status(diagnosis: "Diagnosis", doubt: str) -> int:
    """The exit status."""
    if doubt:
        return UNKNOWN
    return 0 if diagnosis.worthwhile else KEEP_DDP


def _doubt_of(profile: str) -> str:
    """Why a profile's times are not to be trusted; empty if nothing is known against them."""
    from pathlib import Path

    from autobyte.models.profile import Profile

    if not Path(profile).is_file():
        return ""  # a built-in model
    cores = Profile.load(Path(profile)).provenance.get("other_cores", 0)
    return f"others kept {cores} cores busy while {profile} was measured" if cores else ""


def _on_rig(rig: "Rig", source: str, inputs: str, batch: int, *, json: bool) -> int:
    """Let ranks on emulated hosts measure, and pass on what the first one says; its exit status."""
    from autobyte.cli.console import print_line
    from autobyte.testbed import LaunchError
    from autobyte.testbed.rig import python

    command = [*python("autobyte", "doctor"), source, "--device", rig.device, "--exit-code"]
    command += ["--input", inputs] if inputs else []
    command += ["--batch", str(batch)] if batch else []
    status = 0
    try:
        finished = rig.run([*command, *(["--json"] if json else [])], limit_s=LIMIT_S, stall_s=LIMIT_S)
    except LaunchError as error:
        if error.status not in (KEEP_DDP, UNKNOWN):
            raise
        finished, status = error.finished, error.status
    lines = finished[0].output.splitlines()
    if json:  # beside it, the log
        lines = lines[lines.index("{") : lines.index("}") + 1]
    for line in lines:
        print_line(line)
    return status


def _made(source: str, inputs: str, batch: int) -> "tuple[Made, Any]":
    """The model that is examined, and what goes into it."""
    import torch

    from autobyte.bench.networks import make
    from autobyte.errors import InputError
    from autobyte.torch.profiling.source import Made, load_factory, make_input

    if batch or ".py:" not in source:
        network = make(source, torch.device("cpu"), batch=batch or None, inputs=inputs)
        return Made(network.model, network.inputs, network.loss), network.inputs
    factory = load_factory(source)
    fed = make_input(inputs) if inputs else factory.inputs
    if fed is None:
        raise InputError("what goes into the model? say --input 32,3,224,224, or return (model, inputs)")
    return factory, fed


def _as_rank(source: str, inputs: str, batch: int, device: str, *, exit_code: bool, json: bool) -> None:
    """Measure as one of torchrun's ranks; the first one speaks, all end with its status."""
    from dataclasses import replace

    import torch
    import torch.distributed as dist

    from autobyte.errors import InputError
    from autobyte.simulator.diagnose import diagnose
    from autobyte.testbed.load import OtherLoad, is_busy
    from autobyte.torch.profiling.doctor import examine, unclaimed_cores

    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        given = f" --input '{inputs}'" if inputs else ""
        raise InputError(
            "doctor measures a model on two ranks or more, and this is the only one: start it with "
            f"torchrun --nproc-per-node 2 -m autobyte doctor {source}{given}"
        )
    factory, fed = _made(source, inputs, batch)
    if device.startswith("cuda"):
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    with OtherLoad() as others:
        symptoms = examine(factory, fed, device=device)
    symptoms = replace(symptoms, other_cores=unclaimed_cores(others.cores, others.own_cores))
    ends_with = torch.zeros(1, device=device)
    if dist.get_rank() == 0:
        diagnosis = diagnose(symptoms.job)
        doubt = symptoms.contradiction
        if is_busy(symptoms.other_cores, others.wall_s):
            doubt = f"others kept {symptoms.other_cores:.1f} cores of a machine busy while it was measured"
        ends_with[0] = _status(diagnosis, doubt)
        _show(diagnosis, symptoms, doubt=doubt, json=json)
    sys.stdout.flush()  # torchrun ends all ranks as soon as one has ended with another status than 0
    dist.broadcast(ends_with, 0)
    status = int(ends_with) if exit_code else 0
    dist.destroy_process_group()
    os._exit(status)  # DDP keeps gloo's threads: one that lets go of a tensor while the interpreter ends aborts it


def _show(diagnosis: "Diagnosis", symptoms: "Symptoms | None", *, doubt: str, json: bool) -> None:
    from autobyte.cli.console import print_json, print_line, print_table
    from autobyte.scheduler.policies import label_of
    from autobyte.simulator.choose import MARGIN
    from autobyte.simulator.diagnose import GAIN
    from autobyte.units import format_rate, format_seconds

    measured = (
        None
        if symptoms is None
        else {
            "workers": symptoms.workers,
            "compute_s": symptoms.compute_s,
            "ddp_step_s": symptoms.step_s,
            "exposed_s": symptoms.exposed_s,
            "bytes_per_s": symptoms.bytes_per_s,
            "per_block_s": symptoms.per_block_s,
            "other_cores": symptoms.other_cores,
        }
    )
    if json:
        verdict = {"verdict": "unknown", "why": doubt} if doubt else {}
        print_json({**diagnosis.to_json(), **verdict, "measured": measured})
        return
    if symptoms is not None:
        print_line(
            f"measured on {symptoms.workers} ranks: compute {format_seconds(symptoms.compute_s)}, DDP's step "
            f"{format_seconds(symptoms.step_s)}, {format_seconds(symptoms.exposed_s)} of it waiting for gradients; "
            f"links carry {format_rate(symptoms.bytes_per_s)}, an all-reduce costs "
            f"{format_seconds(symptoms.per_block_s)} beyond its bytes"
        )
    print_line(
        f"compute {format_seconds(diagnosis.compute_s)}, bytes alone {format_seconds(diagnosis.wire_s)}: "
        f"{diagnosis.ratio:.2f} of compute; " + _band(diagnosis)
    )
    print_line(
        f"DDP at its best ({label_of(diagnosis.ddp.config)}): {format_seconds(diagnosis.ddp.step_s)}, "
        f"{format_seconds(diagnosis.exposed_s)} of it waiting for gradients; no schedule is below "
        f"{format_seconds(diagnosis.bound_s)} "
        f"({100 * (diagnosis.ddp.step_s / diagnosis.bound_s - 1):.0f} % to gain at most)"
    )
    rows = [
        (
            each.name,
            label_of(each.config) or "–",
            format_seconds(each.step_s),
            f"{diagnosis.ddp.step_s / each.step_s:.2f}x",
        )
        for each in diagnosis.policies
    ]
    print_table(("policy, at its best", "config", "step", "over DDP"), rows)
    if diagnosis.bf16_s is not None and diagnosis.bf16_ddp_s is not None:
        print_line(
            f"bf16 on the wire: DDP {diagnosis.ddp.step_s / diagnosis.bf16_ddp_s:.2f}x, with scheduling "
            f"{diagnosis.ddp.step_s / diagnosis.bf16_s:.2f}x"
        )
    if doubt:
        print_line(f"unknown whether it is worth it: {doubt}; measure again on idle machines")
        return
    print_line(
        f'gain: {100 * diagnosis.gain:.0f} % with policy="{diagnosis.best.name}"; '
        'policy="auto" measures it beside others'
        if diagnosis.worthwhile
        else f"keep DDP: scheduling is predicted to gain {max(0.0, 100 * diagnosis.gain):.1f} %, and a change is "
        f"worth it from {100 * (GAIN + MARGIN):.0f} % on, because predictions are about {100 * MARGIN:.0f} % too high"
    )


def _band(diagnosis: "Diagnosis") -> str:
    """What the ratio of communication to compute says, and that the simulation says otherwise where it does."""
    from autobyte.simulator.diagnose import BAND

    usual = f"gains are usual from {BAND[0]:g} to {BAND[1]:g}"
    if diagnosis.in_band or not diagnosis.worthwhile:
        return usual
    return f"{usual}, but this job is predicted to gain, too"
