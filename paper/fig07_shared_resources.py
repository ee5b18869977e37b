"""Figure 7: other jobs join at iterations 20 and 40 and take their share of links and GPUs; AutoByte against BO.

    python paper/fig07_shared_resources.py        # 90 seconds

Simulated: ResNet50. Writes data/fig07_shared_resources.phases.csv (mean step times in ms, a column for each method),
data/fig07_shared_resources.csv (the speeds that are drawn) and figures/fig07_shared_resources.{pdf,png}.
"""

import changing
import jobs
import sheet

from autobyte.scenario import Change, Scenario

NAME = "fig07_shared_resources"
GBIT = 20
JOINING = {20: 2, 40: 3}  # iteration: jobs from then on, each with an equal share of every link and of every GPU
WINDOWS = 6  # of 10 iterations
DRAWN = [
    {"block_cost": "nccl", "fusion": fusion, "batch": 64, "architecture": "ps", "model": "resnet50"}
    for fusion in changing.FUSIONS
]

scenario = Scenario(
    NAME,
    tuple(
        Change(at=at, up=f"{100 / count!r}%", down=f"{100 / count!r}%", slowdown=float(count))
        for at, count in JOINING.items()
    ),
)
options = sheet.options(__doc__).parse_args()
if not options.redraw:
    windows = 4 if options.quick else WINDOWS
    where = {"models": ["resnet50"], "costs": list(jobs.BLOCK_COSTS), "architectures": list(jobs.ARCHITECTURES)}
    changing.measure(scenario, GBIT, windows, **where, drawn=DRAWN, options=options)
marks = [(0, "alone"), *((at, f"{count} jobs") for at, count in JOINING.items())]
changing.draw(NAME, options.out, panels=DRAWN, marks=marks)
