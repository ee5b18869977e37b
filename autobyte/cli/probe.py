"""`autobyte probe`: what the engines carry, block size by block size."""

import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autobyte.cli.options import JsonOption
from autobyte.cli.rig import GpuOption, RehearseOption

if TYPE_CHECKING:
    from autobyte.testbed import Launch
    from autobyte.testbed.rig import Rig
    from autobyte.torch.profiling.probe import Spec

SIZES = "4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,8MiB,16MiB"
TIMEOUT_S = 1800.0
HOSTS = 4  # with --gpu


def probe(
    *,
    hosts: Annotated[
        int | None,
        typer.Option("--hosts", help="number of emulated hosts (root); without it, measure on this machine"),
    ] = None,
    rate: Annotated[str, typer.Option("--rate", help="nominal rate of the emulated links")] = "1Gbit",
    workers: Annotated[int, typer.Option("--workers", help="ranks on this machine, without --hosts")] = 2,
    engine: Annotated[
        str,
        typer.Option(
            "--engine", help="engines, separated by commas; default: allreduce,ps, and before them nccl with --gpu"
        ),
    ] = "",
    sizes: Annotated[str, typer.Option("--sizes", help="block sizes, separated by commas")] = SIZES,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, float64, float16 or bfloat16")] = "float32",
    iterations: Annotated[
        int, typer.Option("--iterations", help="measured iterations, of which the mean is printed")
    ] = 20,
    warmup: Annotated[int, typer.Option("--warmup", help="iterations before the measured ones")] = 3,
    in_flight: Annotated[int, typer.Option("--in-flight", help="blocks in flight at the same time")] = 1,
    gpu: GpuOption = False,
    rehearse: RehearseOption = False,
    json: JsonOption = False,
) -> None:
    """Measure how fast the engines move blocks.

    Prints the columns of nccl-tests: algbw is size over time. busbw is 2(n-1)/n of it, the rate in the busiest
    direction of a link: compare it with the rate of your links. With eight sizes, the default, it also shows what a
    block costs besides its bytes. Under torchrun it measures your ranks. With --gpu blocks lie in the GPU's memory,
    and the engine nccl moves them over the links of --hosts; under torchrun, each rank has a GPU of its own.

    \b
    autobyte probe
    autobyte probe --hosts 4 --rate 1Gbit --in-flight 4
    autobyte probe --gpu --hosts 4 --rate 5Gbit
    torchrun --nproc-per-node 2 -m autobyte probe --sizes 1MiB,16MiB
    """
    from autobyte.testbed.rig import Rig
    from autobyte.torch.profiling.probe import Spec
    from autobyte.units import parse_bytes, parse_rate

    shares = gpu or rehearse
    gpu = gpu and not rehearse
    rig = Rig(hosts or HOSTS, parse_rate(rate, what="rate"), not gpu)
    engine = engine or (f"{rig.engine},allreduce,ps" if shares else "allreduce,ps")
    spec = Spec(
        tuple(name.strip() for name in engine.split(",")),
        tuple(parse_bytes(part) for part in sizes.split(",")),
        dtype,
        iterations,
        warmup,
        in_flight,
        rig.device if shares else "cpu",
    )
    if hosts is None and not rehearse and "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        _as_rank(spec, json=json)
        return
    if shares or hosts is not None:
        rows, where = _on_testbed(spec, rig, gpu=gpu)
        _show(rows, rig.hosts, where, spec, json=json, what="rehearsal" if rehearse else "measured")
    else:
        _show(_on_this_machine(spec, workers), workers, "on this machine", spec, json=json)


def _as_rank(spec: "Spec", *, json: bool) -> None:
    """Take part as one of torchrun's ranks; the first one prints."""
    from dataclasses import asdict, replace

    import torch
    import torch.distributed as dist

    from autobyte.torch.profiling.probe import TIMEOUT
    from autobyte.torch.profiling.probe import probe as measure

    torch.set_num_threads(1)
    on_gpu = spec.device.startswith("cuda")
    if on_gpu:
        spec = replace(spec, device=f"cuda:{os.environ.get('LOCAL_RANK', '0')}")
        torch.cuda.set_device(spec.device)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    rows = [asdict(row) for row in measure(spec)]
    if dist.get_rank() == 0:
        _show(rows, dist.get_world_size(), "as torchrun started them", spec, json=json)
    dist.barrier()
    dist.destroy_process_group()


def _on_testbed(spec: "Spec", rig: "Rig", *, gpu: bool) -> tuple[list[dict[str, Any]], str]:
    """Rows, and what they were measured on."""
    from autobyte.cli.testbed import Check, checked
    from autobyte.testbed import SharedGpu, Testbed
    from autobyte.testbed.hosts import PAYLOAD
    from autobyte.units import format_rate

    with SharedGpu() if gpu else nullcontext() as shared, Testbed(rig.hosts, rate=rig.rate) as testbed:
        checked(testbed, Check.warn)
        rows = _measured(spec, lambda command: testbed.start(command, gpu=shared))
        card = f"sharing one {shared.card}, " if shared is not None else ""
    carried = f"TCP carries {1e-9 * PAYLOAD * rig.rate:.4f} GB/s"
    return rows, f"{card}on hosts with links of {format_rate(rig.rate)}: {carried}"


def _on_this_machine(spec: "Spec", workers: int) -> list[dict[str, Any]]:
    from autobyte.errors import InputError
    from autobyte.testbed.launch import Launch, Seat

    if not 2 <= workers <= 200:
        raise InputError(f"workers must be 2 to 200, got {workers}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    seats = [Seat(0, nullcontext)] * workers
    return _measured(spec, lambda command: Launch(command, seats, master="127.0.0.1", port=port))


def _measured(spec: "Spec", start: "Callable[[list[str]], Launch]") -> list[dict[str, Any]]:
    """What ranks measure that are started for it."""
    import json
    from dataclasses import asdict

    from autobyte.cli.console import progress

    with TemporaryDirectory() as folder, progress("probing") as step:
        settings, out = Path(folder) / "spec.json", Path(folder) / "rows.jsonl"
        settings.write_text(json.dumps(asdict(spec) | {"out": str(out)}))
        out.touch()

        def rows() -> list[str]:
            return out.read_text().splitlines()

        total = len(spec.engines) * len(spec.sizes)
        with start([sys.executable, "-m", "autobyte.torch.profiling.probe", str(settings)]) as launch:
            launch.wait(timeout_s=TIMEOUT_S, grace_s=1.0, meanwhile=lambda: step(len(rows()), total))
        return [json.loads(row) for row in rows()]


def _show(
    rows: Sequence[dict[str, Any]], ranks: int, where: str, spec: "Spec", *, json: bool, what: str = "measured"
) -> None:
    from autobyte.cli.console import print_json, print_line, print_table
    from autobyte.units import format_rate

    fits = {engine: _cost([row for row in rows if row["engine"] == engine]) for engine in spec.engines}
    costs = {engine: None if isinstance(fit, str) else fit for engine, fit in fits.items()}
    refused = {engine: fit for engine, fit in fits.items() if isinstance(fit, str)}
    if json:
        probed = {"ranks": ranks, "where": where, "in_flight": spec.in_flight, "rows": rows, "costs": costs}
        print_json({"what": what} | probed | {"refused": refused})
        return
    blocks = "one block at a time" if spec.in_flight == 1 else f"{spec.in_flight} blocks at a time"
    print_line(f"{ranks} ranks {where} · {blocks} · {what}")
    columns = ("engine", "size (B)", "count", "type", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "#wrong")
    cells = [
        (
            row["engine"],
            f"{row['size_bytes']}",
            f"{row['count']}",
            row["type"],
            f"{1e6 * row['time_s']:.1f}",
            f"{1e-9 * row['algbw_bytes_per_s']:.4f}",
            f"{1e-9 * row['busbw_bytes_per_s']:.4f}",
            f"{row['wrong']}",
        )
        for row in rows
    ]
    print_table(columns, cells, spare=("count", "type"))
    for engine, cost in costs.items():
        if cost is not None:
            rate = format_rate(1 / cost["s_per_byte"])
            print_line(f"{engine}: a block of s bytes takes {1e3 * cost['start_s']:.3g} ms + s / {rate}")
    for engine, why in refused.items():
        print_line(f"{engine}: {why}")


def _cost(rows: Sequence[dict[str, Any]]) -> dict[str, float] | str:
    """The line through one engine's rows, or why there is none."""
    from autobyte.errors import InputError
    from autobyte.scheduler.alpha_beta import AlphaBeta

    try:
        cost = AlphaBeta.fit([row["size_bytes"] for row in rows], [row["time_s"] for row in rows])
    except InputError as error:
        return str(error)
    return {"start_s": cost.start_s, "s_per_byte": cost.s_per_byte}
