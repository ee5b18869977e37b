"""US-Byte from 8 to 1024 workers: the largest gains over others as shipped, and over others tuned, beside its claims.

    python paper/usbyte_scale.py        # 30 seconds

Simulated. The claims: up to 1.26x over ByteScheduler and 1.56x over WFBP on 8 workers (measured by its authors), up
to 1.69x over "the state of the art" on 128 (simulated by them; ByteScheduler, we take it). Their models, batches,
rates and start-ups are not known to us, but for the start-ups of 2 to 8 workers that our default costs follow. Writes
data/usbyte_scale.csv, a row per job and method, and figures/usbyte_scale.{pdf,png}.
"""

import jobs
import pandas as pd
import runs
import sheet
import style

from autobyte import models
from autobyte.bound import bound_s
from autobyte.config import Config
from autobyte.job import Cluster, Job
from autobyte.scheduler.policies import POLICIES
from autobyte.scheduler.policies.ddp import BUCKETS
from autobyte.simulator.landscape import survey
from autobyte.units import KIB, MIB

NAME = "usbyte_scale"
MODELS = ("vgg16", "resnet50", "densenet121")  # the families of its authors' models that are in the table
GBIT = (10, 25, 100)
WORKERS = (8, 16, 32, 64, 128, 256, 512, 1024)
GPUS = 8  # per node, where there are two levels; 10 GB/s within a node (PCIe)
NETWORKS = {"ps": "parameter servers", "ring": "ring", "two-level": f"two levels, {GPUS} GPUs a node"}
CLAIMS = {("bytescheduler", 8): 1.26, ("wfbp", 8): 1.56, ("bytescheduler", 128): 1.69}
OFFSETS = {("bytescheduler", 8): (3, -12), ("wfbp", 8): (1, 7), ("bytescheduler", 128): (-8, 7)}  # clear of lines
SIZES = [256 * KIB << power for power in range(10)]  # 256 KiB … 128 MiB
FREE = 1 << 44


def default(policy: str, job: Job) -> list[Config]:
    """A policy as it comes."""
    return [POLICIES[policy]().space(job).default]


def methods(job: Job) -> dict[str, list[Config]]:
    """Every method's configs, of which the best counts; those as shipped have one."""
    window = default("usbyte", job)[0].credit_bytes
    cuts = [(size, ratio * size) for size in SIZES for ratio in (1, 2, 4, 8)]
    configs = {
        "usbyte": default("usbyte", job),
        "usbyte published": [Config(size, window, "usbyte", {"published": 1}) for size in SIZES],
        "wfbp": default("wfbp", job),
        # its released code's defaults, and what its documentation advises for all-reduce
        "bytescheduler shipped": [Config(4_000_000, 16_000_000)],
        "bytescheduler advised": [Config(32_000_000, 64_000_000)],
        "bytescheduler": [Config(size, credit) for size, credit in cuts],
        "bytescheduler fused": [Config(size, credit, knobs={"fusion": 1}) for size, credit in cuts],
        "mg-wfbp": default("mgwfbp", job),
        "tictac": default("tictac", job),
        "megatron": default("megatron", job),
        "ddp": list(BUCKETS),
        "p3": [Config(size, size, "p3") for size in SIZES],
        "horovod": [Config(size, size, "horovod", {"cycle_ms": ms}) for size in SIZES for ms in (1, 5, 20)],
    }
    if not job.cluster.servers:
        configs["dear"] = [Config(max(size, MIB), max(size, MIB), "dear") for size in SIZES]
    return configs


def cluster(network: str, workers: int, gbit: float) -> Cluster:
    """So many workers, on one of the networks."""
    plain = Cluster.uniform(workers, jobs.rate(gbit), architecture="ps" if network == "ps" else "allreduce")
    if network != "two-level":
        return plain
    return Cluster(workers, 0, plain.up_bytes_per_s, plain.down_bytes_per_s, gpus_per_node=GPUS)


def gains(rows: pd.DataFrame, method: str, others: list[str], network: str) -> pd.Series:
    """The largest speed-up over the best of others, over all models and rates, for every number of workers."""
    jobs_of = sheet.where(rows, network=network)
    steps = jobs_of.pivot(index=["workers", "model", "gbit"], columns="method", values="step_ms")
    faster = steps.reindex(columns=others).min(axis=1) / steps[method]
    return faster.groupby("workers").max()


def judged(place: tuple[str, int, float, str]) -> list[sheet.Row]:
    """Every method on one job."""
    network, workers, gbit, model = place
    job = Job(models.load(model), cluster(network, workers, gbit))
    cell = {"network": network, "workers": workers, "gbit": gbit, "model": model}
    rows = []
    for method, configs in methods(job).items():
        land = survey(job, configs)
        best = {"partition_bytes": land.best.partition_bytes, "credit_bytes": land.best.credit_bytes}
        took = {"step_ms": 1e3 * land.best_s, "over_bound": land.best_s / bound_s(job)}
        rows.append(cell | {"method": method} | best | took)
    return rows


options = sheet.options(__doc__).parse_args()
if not options.redraw:
    cells = [
        (network, workers, gbit, name)
        for network in NETWORKS
        for workers in (WORKERS[1:3] if options.quick else WORKERS)[network == "two-level" :]  # 8 would be one node
        for gbit in (GBIT[:1] if options.quick else GBIT)
        for name in (MODELS[1:2] if options.quick else MODELS)
    ]
    sheet.write([row for rows in runs.spread(judged, cells) for row in rows], NAME, options.out)

rows = sheet.read(NAME, options.out)
tuned = [name for name in rows["method"].unique() if "usbyte" not in name and not name.endswith(" fused")]
beaten = {
    "WFBP": (["wfbp"], {"color": style.FAINT, "linewidth": 4}),  # wider than what may lie on it
    "ByteScheduler, shipped": (["bytescheduler shipped"], style.look("bytescheduler") | {"linewidth": 2}),
    "ByteScheduler, tuned": (["bytescheduler"], {"color": style.ORANGE, "linestyle": (0, (4, 1.2))}),
    "the best published, tuned": (tuned, {"color": style.INK}),
}
figure, axes = style.new(3.4, rows=2, columns=len(NETWORKS), sharex=True, sharey=True, width=style.PAGE)
lines = (("usbyte published", "US-Byte, published"), ("usbyte", "ours, with fusion"))
for row_axes, (method, title) in zip(axes, lines, strict=True):
    for place, network in zip(row_axes, NETWORKS, strict=True):
        place.axhline(1.0, color=style.MUTED, linewidth=0.6)
        for text, (others, look) in beaten.items():
            place.plot(gains(rows, method, others, network), label=f"over {text}", **look)
        for (other, at), gain in CLAIMS.items() if method == "usbyte published" else ():
            ink = style.look(other)["color"]
            place.plot(at, gain, marker="x", markersize=4, color=ink, linestyle="none")
            offset = OFFSETS[other, at]
            place.annotate(f"{gain}", (at, gain), offset, textcoords="offset points", color=ink, fontsize=6)
        place.set_xscale("log", base=2)
        place.set_yscale("log")
        if method == "usbyte published":
            place.set_title(NETWORKS[network])
        place.grid(axis="y")
        place.set_xticks(WORKERS, [str(n) for n in WORKERS])
        if method == "usbyte":
            place.set_xlabel("workers")
    row_axes[0].set_ylabel(f"{title}:\nspeed-up, up to")
axes[0][0].set_yticks([0.5, 1, 2, 5, 10, 20, 50, 100], ["½", "1", "2", "5", "10", "20", "50", "100"])
axes[0][0].minorticks_off()
axes[0][1].legend(frameon=True, facecolor="white", edgecolor="none", framealpha=1, fontsize=6, loc="upper left")
style.save(figure, NAME, options.out / "figures")
