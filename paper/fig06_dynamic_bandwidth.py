"""Figure 6: the links go from 10 to 3 Gbit/s and back every 20 iterations; AutoByte against BO tuned once before.

    python paper/fig06_dynamic_bandwidth.py              # 3 minutes
    python paper/fig06_dynamic_bandwidth.py --testbed    # 40 minutes a launch, Linux and root
    python paper/fig06_dynamic_bandwidth.py --testbed --crossing --minutes 15    # goes on where it was

Simulated. Writes data/fig06_dynamic_bandwidth.phases.csv (mean step times in ms, a column for each method),
data/fig06_dynamic_bandwidth.csv (the speeds that are drawn) and figures/fig06_dynamic_bandwidth.{pdf,png}. With
--crossing links go from 1 to 0.5 Gbit/s, where communication then takes about as long as compute.
"""

import changing
import jobs
import runs
import sheet

from autobyte.scenario import Change, Scenario

NAME = "fig06_dynamic_bandwidth"
HIGH_GBIT, LOW_GBIT, EVERY = 10, 3, 20
WINDOWS = 12  # of 10 iterations
MODELS = ("resnet50", "vgg16")  # the paper's is the first
DRAWN = [
    {"block_cost": cost, "fusion": fusion, "batch": batch, "architecture": "ps", "model": model}
    for cost, fusion, batch, model in (
        ("nccl", 0, 64, "resnet50"),  # communication takes less time than compute at 10 Gbit/s, and more at 3
        ("nccl", 1, 64, "resnet50"),
        ("usbyte", 0, 128, "resnet50"),
    )
]
EMULATED = [("ps", "resnet50"), ("ps", "vgg16"), ("allreduce", "resnet50")]  # the paper's model, and VGG16
CROSSING = {"resnet50": 0.0702, "vgg16": 0.013}  # scales of sizes, as recorded in data/testbed_grid.csv
COMPUTE_S, HALF = 0.15, 0.5  # there; of the rate

scenario = Scenario(
    NAME,
    (
        Change(at=EVERY, every=2 * EVERY, up=jobs.rate(LOW_GBIT), down=jobs.rate(LOW_GBIT)),
        Change(at=2 * EVERY, every=2 * EVERY, up=jobs.rate(HIGH_GBIT), down=jobs.rate(HIGH_GBIT)),
    ),
)
parser = sheet.options(__doc__, testbed=True)
parser.add_argument("--crossing", action="store_true", help="with --testbed: links of 1 and 0.5 Gbit/s")
options = parser.parse_args()
panels, rates = DRAWN, (HIGH_GBIT, LOW_GBIT)
if options.testbed:
    import shaped

    cells = {(architecture, model): shaped.cell(model, HIGH_GBIT, options) for architecture, model in EMULATED}
    NAME = f"{NAME}.testbed"
    if options.crossing:
        NAME, rates = NAME.replace(".", ".crossing."), (1, HALF)
        cells = {("ps", model): shaped.grid_cell(model, COMPUTE_S, scale) for model, scale in CROSSING.items()}
    panels = [dict(zip(("architecture", "model"), place, strict=True)) for place in cells]
    if not options.redraw:

        def part(step):
            """Of the rate that links have."""
            return rates[1] / rates[0] if step // EVERY % 2 else 1.0

        shaped.changing(NAME, cells, part, runs.installed(changing.ONGOING), WINDOWS, options)
elif not options.redraw:
    windows = 4 if options.quick else WINDOWS
    everywhere = {"models": MODELS, "costs": list(jobs.BLOCK_COSTS), "architectures": list(jobs.ARCHITECTURES)}
    changing.measure(scenario, HIGH_GBIT, windows, **everywhere, drawn=DRAWN, options=options)
marks = [(k * EVERY, f"{rates[k % 2]:g} G") for k in range(WINDOWS * 10 // EVERY)]
what = "emulated" if options.testbed else "simulated"
changing.draw(NAME, options.out, panels=panels, marks=marks, what=what)
