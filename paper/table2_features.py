"""Table II: what the meta-network is told of a job, the paper's list beside our schema, and one recorded example.

    python paper/table2_features.py        # 5 seconds

Simulated: the example is what two windows of ResNet50 show on a cluster with a slow link and a slow worker. Writes
data/table2_features.csv, a row for every column of `autobyte/features/schema.py`, and
figures/table2_features.{pdf,png}.
"""

import jobs
import runs
import sheet
import style

from autobyte.config import BYTESCHEDULER_DEFAULT
from autobyte.features.runtime import Watch
from autobyte.features.schema import GROUPS, PAPER, RATIOS, ROWS, VERSION
from autobyte.features.vector import candidates, describe
from autobyte.job import Cluster, Job
from autobyte.models import load
from autobyte.simulator.world import World
from autobyte.tuning import WARMUP, WINDOW

NAME = "table2_features"
PUBLISHED = {  # symbol: shape, what; as in the paper
    "S_c": ("1", "credit size"),
    "S_p": ("1", "partition size"),
    "n": ("1", "workers"),
    "l": ("1", "backward layers"),
    "m": ("m", "model type"),
    "arc": ("a", "architecture"),
    "B_d": ("n", "download speed of workers"),
    "B_u": ("n", "upload speed of workers"),
    "T": ("l × n", "backward times"),
    "V": ("n", "training speed, the target"),
}
RAW = {  # what of ours says the same: symbol: (group, columns)
    "S_c": ("candidate", ("credit",)),
    "S_p": ("candidate", ("partition",)),
    "n": ("static", ("workers",)),
    "l": ("static", ("layers",)),
    "m": ("static", ("resnet50", "vgg16", "alexnet", "other_model")),
    "arc": ("static", ("allreduce", "ps", "servers_part")),
    "B_d": ("bandwidth", ("down_mean", "down_least", "down_most")),
    "B_u": ("bandwidth", ("up_mean", "up_least", "up_most")),
    "T": ("layer", ("backward_s", "backward_slowest_s", "present")),
}
SOURCES = {  # where a number comes from, once for all that come from there
    "asked": "credit partition largest whole_part",
    "known before": "workers layers resnet50 vgg16 alexnet other_model allreduce ps servers_part nbytes present",
    "bytes sent / time busy": "down_mean down_least down_most up_mean up_least up_most link_spread",
    "layers timed": "backward_s backward_slowest_s forward_s backward_part forward_part slowest_by_mean "
    "forward_by_compute",
    "step times": "step_by_floor step_by_floor_spread variation",
    "samples / step times": "accumulation",
    "fit over windows": "wire_part wire_by_compute block_by_compute configs_seen crowding",
    "closed form": "floor_by_compute busy_by_floor overhead_by_busy block_by_floor window_by_floor behind_by_floor "
    "compute_by_floor tail_by_floor",
}
SHAPES = {"layer": f"{ROWS}", "bandwidth": "1", "static": "1", "candidate": "pairs"}  # of every column of a group
# The example: one link at half the rate, one worker a third slower, ByteScheduler's default and another pair.
CLUSTER = Cluster(4, 4, tuple(jobs.rate(gbit) for gbit in (10, 10, 5, 10)), (jobs.rate(10),), (1.0, 1.33, 1.0, 1.0))
PAIRS = (BYTESCHEDULER_DEFAULT, jobs.pair(1, 4))

options = sheet.options(__doc__).parse_args()
if not options.redraw:
    job = Job(load("resnet50"), CLUSTER)
    world, watch = World(job, effects=runs.EFFECTS, seed=options.seed), Watch(job.model)
    windows = [world.measure(pair, iterations=WINDOW, warmup=WARMUP) for pair in PAIRS]
    state = [watch.add(window) for window in windows][-1]
    vector = describe(state)
    tables = {"layer": vector.layer[-1], "bandwidth": vector.bandwidth, "static": vector.static}
    tables["candidate"] = candidates(state, PAIRS[-1:]).table[0]
    symbols = {(group, name): symbol for symbol, (group, names) in RAW.items() for name in names}
    measured = {name: source for source, names in SOURCES.items() for name in names.split()}
    rows = [
        {"symbol": (symbol := symbols.get((group, column.name), ""))}
        | dict(zip(("published_shape", "published"), PUBLISHED.get(symbol, ("", "")), strict=True))
        | {"group": group, "name": column.name, "unit": column.unit, "shape": SHAPES[group], "says": column.says}
        | {"measured": measured[column.name], "paper": int(column.name in getattr(PAPER, group))}
        | {"improved": int(column.name in getattr(RATIOS, group)), "example": float(value)}
        for group, columns in GROUPS.items()
        for column, value in zip(columns, tables[group], strict=True)
    ]
    shape, published = PUBLISHED["V"]
    target = {"symbol": "V", "published_shape": shape, "published": published, "group": "target"}
    target |= {"name": "samples_per_s", "unit": "samples/s", "shape": "workers", "says": "V, of the first worker"}
    target |= {"measured": "samples / step times", "paper": 1, "improved": 0}
    assert windows[-1].stats is not None
    rows.append(target | {"example": float(windows[-1].stats.samples_per_s[0])})
    order = [*PUBLISHED, ""]
    sheet.write(sorted(rows, key=lambda row: order.index(row["symbol"])), NAME, options.out)

rows = sheet.read(NAME, options.out)
COLUMNS = {
    0.0: "paper",
    0.21: "ours",
    0.35: "unit",
    0.412: "shape",
    0.462: "what it says",
    0.815: "from",
    0.945: "e.g.",
}
figure, axes = style.new(0.5 + 0.118 * len(rows), width=style.PAGE)
small = {"va": "center", "fontsize": 5.2}
for x, text in COLUMNS.items():
    axes.text(x, -1, text, va="center", fontsize=6.5, weight="bold")
before = None
for y, row in enumerate(rows.to_dict("records")):
    if row["symbol"] != before:
        axes.axhline(y - 0.5, color=style.FAINT, linewidth=0.5)
        symbol = f"{row['symbol']} [{row['published_shape']}] {row['published']}" if row["symbol"] else "beyond it"
        axes.text(0.0, y, symbol, color=style.BLUE, **small)
    before = row["symbol"]
    marks = "".join(mark for mark, key in (("°", "paper"), ("•", "improved")) if row[key])
    for x, text in zip(
        list(COLUMNS)[1:],
        (f"{row['name']} {marks}", row["unit"], row["shape"], row["says"], row["measured"], f"{row['example']:.3g}"),
        strict=True,
    ):
        axes.text(x, y, text, **small)
axes.set_xlim(0, 1)
axes.set_ylim(len(rows) - 0.5, -1.6)
axes.set_xticks([])
axes.set_yticks([])
axes.spines[:].set_visible(False)
axes.set_xlabel(
    f"schema {VERSION}; ° enters the network as published, • enters ours; of layers, the example is the first",
    fontsize=6,
)
style.save(figure, NAME, options.out / "figures")
