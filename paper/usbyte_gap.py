"""How far schedulers are from the optimum on small random jobs, without and with fusion.

    python paper/usbyte_gap.py        # 1 minute

Simulated. The optimum is exhaustive over orders and cuts; a tensor is cut at multiples of 1/3 to 1/12 of it, by the
number of layers, so that a schedule that cuts anywhere may lie a little below. Writes data/usbyte_gap.csv, a row per
job, with and without fusion, and figures/usbyte_gap.{pdf,png}.
"""

import numpy as np
import runs
import sheet
import style

from autobyte.config import Config
from autobyte.job import Cluster, Job, Model
from autobyte.scheduler.optimum import optimum_s
from autobyte.simulator.landscape import survey
from autobyte.units import KIB

NAME = "usbyte_gap"
JOBS, QUICK_JOBS, MOST_LAYERS = 500, 4, 6
UNITS = {False: {1: 12, 2: 12, 3: 8, 4: 6, 5: 4, 6: 4}, True: {1: 12, 2: 12, 3: 8, 4: 6, 5: 4, 6: 3}}
FREE = 1 << 50  # a partition and a window that never bind
# ByteScheduler has its knobs tuned on every job; US-Byte as published has its unit tuned.
CUTS = [64 * KIB << power for power in range(12)]
METHODS = {  # (with fusion) name: configs, of which the best counts
    False: {
        "usbyte": [Config(FREE, FREE, "usbyte", {"fusion": 0})],
        "usbyte-published": [Config(unit, FREE, "usbyte", {"published": 1}) for unit in CUTS],
        "bytescheduler": [Config(cut, cut * ratio) for cut in CUTS for ratio in (1, 2, 4, 8)],
        "wfbp": [Config(1, 1, "wfbp")],
    },
    True: {
        "usbyte": [Config(FREE, FREE, "usbyte", {"fusion": 1})],
        "bytescheduler": [Config(cut, cut * ratio, knobs={"fusion": 1}) for cut in CUTS for ratio in (1, 2, 4, 8)],
        "mg-wfbp": [Config(1, 1, "mgwfbp")],
    },
}
LABELS = {
    "usbyte": "US-Byte, ours",
    "usbyte-published": "US-Byte, published",
    "bytescheduler": "ByteScheduler, tuned",
    "wfbp": "WFBP",
    "mg-wfbp": "MG-WFBP",
}


def small_job(rng: np.random.Generator) -> Job:
    """1 to 6 layers of one tensor each, sizes over two decades, communication 0.3 to 3 times the computation."""
    layers, workers = int(rng.integers(1, MOST_LAYERS + 1)), int(rng.choice([2, 4, 8, 16]))
    compute_s, cluster = rng.uniform(0.02, 0.3), Cluster.uniform(workers, 10 ** rng.uniform(8, 9.7))
    sizes = np.exp(rng.normal(0, 1.3, layers))
    total = compute_s * 10 ** rng.uniform(-0.5, 0.5) / cluster.seconds_per_byte / 4
    forward_s, backward_s = (part * compute_s * rng.dirichlet(np.ones(layers)) for part in (1 / 3, 2 / 3))
    rows = [
        (f"layer {i}", [(f"weight {i}", max(1, int(sizes[i] / sizes.sum() * total)))], forward_s[i], backward_s[i])
        for i in range(layers)
    ]
    return Job(Model.build("small", rows, batch_size=8), cluster)


def _percent(value: float) -> str:
    return "≤ 0.01 %" if value <= 0.01 else f"{value:.2g} %"


def judged(cell: tuple[int, Job]) -> list[sheet.Row]:
    """One job: its optimum, and every method over it, without and with fusion."""
    number, job = cell
    layers, rows = len(job.model.layers), []
    for fusion, methods in METHODS.items():
        best_s = optimum_s(job, units=UNITS[fusion][layers], fusion=fusion)
        row = {"job": number, "layers": layers, "workers": job.cluster.workers, "fusion": int(fusion)}
        row |= {"optimum_ms": 1e3 * best_s}
        for name in METHODS[False] | METHODS[True]:
            configs = methods.get(name, [])
            row[name] = survey(job, configs).best_s / best_s if configs else ""
        rows.append(row)
    return rows


options = sheet.options(__doc__).parse_args()
if not options.redraw:
    rng = np.random.default_rng(options.seed)
    small = [(number, small_job(rng)) for number in range(QUICK_JOBS if options.quick else JOBS)]
    sheet.write([row for rows in runs.spread(judged, small) for row in rows], NAME, options.out)

rows = sheet.read(NAME, options.out)
figure, axes = style.new(1.5, columns=2, sharey=True, width=style.PAGE)
for place, fusion, title in zip(axes, (False, True), ("(a) without fusion", "(b) with fusion"), strict=True):
    ratios = sheet.where(rows, fusion=int(fusion))
    for name in METHODS[fusion]:
        gap = np.sort(100 * (ratios[name].to_numpy() - 1)).clip(0.01)
        share = 100 * np.arange(1, len(gap) + 1) / len(gap)
        figures = f"median {_percent(np.median(gap))}, worst {_percent(gap[-1])}"
        place.step(
            [0.01, *gap, 200], [0, *share, 100], where="post", label=f"{LABELS[name]}\n{figures}", **style.look(name)
        )
    place.set_xscale("log")
    place.set_xlim(0.008, 200)
    place.set_xticks([0.01, 0.1, 1, 10, 100], ["≤ 0.01", "0.1", "1", "10", "100"])
    place.set_xlabel("above the optimum (%)")
    place.set_title(title)
    place.grid(axis="x")
    place.legend(frameon=False, fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.05), handlelength=1.6)
axes[0].set_ylabel("jobs (%)")
axes[0].set_ylim(0, 102)
style.save(figure, NAME, options.out / "figures")
