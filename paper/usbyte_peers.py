"""US-Byte with fusion beside the schedulers that it is compared with, each tuned, on random jobs of up to 60 layers.

    python paper/usbyte_peers.py        # 1 minute

Simulated. WFBP and MG-WFBP have nothing to tune; ByteScheduler has the best of 90 configs on every job, with and
without fusion. Writes data/usbyte_peers.csv, a row per job, and figures/usbyte_peers.{pdf,png}.
"""

import numpy as np
import runs
import sheet
import style

from autobyte.bound import bound_s
from autobyte.config import Config
from autobyte.job import Cluster, Job, Model
from autobyte.scheduler.policies import POLICIES
from autobyte.simulator.landscape import survey
from autobyte.simulator.steady import step_s
from autobyte.units import KIB

NAME = "usbyte_peers"
JOBS, QUICK_JOBS, MOST_LAYERS = 1000, 60, 60
CUTS = [64 * KIB << power for power in range(9)]  # 64 KiB … 16 MiB
CREDITS = (1, 2, 4, 8, 16)  # blocks in flight
PAIRS = [(cut, cut * blocks) for cut in CUTS for blocks in CREDITS]
PEERS = {
    "bytescheduler": [Config(*pair, knobs={"fusion": fusion}) for pair in PAIRS for fusion in (0, 1)],
    "mg-wfbp": [Config(1, 1, "mgwfbp")],
    "wfbp": [Config(1, 1, "wfbp")],
}


def any_job(rng: np.random.Generator) -> Job:
    """1 to 60 layers of 1 to 3 tensors, ring or servers, 2 to 64 workers, 0.5 to 100 Gbit/s."""
    rows, layers = [], int(rng.integers(1, MOST_LAYERS + 1))
    for i in range(layers):
        sizes = np.exp(rng.normal(11, 2, int(rng.integers(1, 4)))).astype(int) + 1
        times = np.exp(rng.normal(-6.5, 1, 2))
        rows.append((f"l{i}", [(f"w{i}.{j}", int(n)) for j, n in enumerate(sizes)], times[0], times[1] + times[0]))
    cluster = Cluster.uniform(
        int(rng.choice([2, 4, 8, 16, 64])), 1.25e8 * 10 ** rng.uniform(-0.3, 2),
        architecture=str(rng.choice(["allreduce", "ps"])),
    )  # fmt: skip
    return Job(Model.build("any", rows, batch_size=8), cluster)


def judged(cell: tuple[int, Job]) -> sheet.Row:
    """One job: the step under `usbyte` (ms), and those of its peers over it."""
    number, job = cell
    usbyte_s = step_s(job, POLICIES["usbyte"]().space(job).default)
    cluster = job.cluster
    row = {"job": number, "layers": len(job.model.layers), "tensors": len(job.gradients), "workers": cluster.workers}
    row |= {"architecture": cluster.architecture, "gbit": 8e-9 * cluster.up_bytes_per_s[0]}
    row |= {"bound_ms": 1e3 * bound_s(job), "usbyte_ms": 1e3 * usbyte_s}
    return row | {name: survey(job, configs).best_s / usbyte_s for name, configs in PEERS.items()}


options = sheet.options(__doc__).parse_args()
if not options.redraw:
    rng = np.random.default_rng(options.seed + 1)
    some = [(number, any_job(rng)) for number in range(QUICK_JOBS if options.quick else JOBS)]
    sheet.write(runs.spread(judged, some), NAME, options.out)

rows = sheet.read(NAME, options.out)
best = rows[list(PEERS)].min(axis=1)
figure, axes = style.new(1.6, width=5.2)
share = 100 * np.arange(1, len(rows) + 1) / len(rows)
for name, values in {**{name: rows[name] for name in PEERS}, "best": best}.items():
    look = {"color": style.INK, "linestyle": "-"} if name == "best" else style.look(name)
    title = "the best of the three" if name == "best" else style.NAMES[name] + (", tuned" if "byte" in name else "")
    middle = 100 * (np.median(values) - 1)
    axes.step(100 * (np.sort(values) - 1), share, where="post", label=f"{title}: median {middle:.2g} %", **look)
axes.axvline(0, color=style.FAINT, linewidth=0.8, zorder=0)
axes.set_xscale("symlog", linthresh=1)
axes.set_xlim(-1, 200)
axes.set_xticks([-1, 0, 1, 10, 100], ["−1", "0", "1", "10", "100"])
axes.set_xlabel("step above US-Byte's (%)")
axes.set_ylabel("jobs (%)")
axes.set_ylim(0, 102)
axes.grid(axis="x")
axes.legend(frameon=False, fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.05), handlelength=1.6)
style.save(figure, NAME, options.out / "figures")
