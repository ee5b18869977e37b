"""Figure 7: other jobs join at iterations 20 and 40 and take their share of links and GPUs; AutoByte against BO.

    python paper/fig07_shared_resources.py        # 1 minute

Simulated. Writes data/fig07_shared_resources.csv and figures/fig07_shared_resources.{pdf,png}.
"""

import changing
import sheet

from autobyte.scenario import Change, Scenario

NAME = "fig07_shared_resources"
GBIT = 20
JOINING = {20: 2, 40: 3}  # iteration: jobs from then on, each with an equal share of every link and of every GPU
WINDOWS = 6  # of 10 iterations

scenario = Scenario(
    NAME,
    tuple(
        Change(at=at, up=f"{100 / jobs!r}%", down=f"{100 / jobs!r}%", slowdown=float(jobs))
        for at, jobs in JOINING.items()
    ),
)
options = sheet.options(__doc__).parse_args()
if not options.redraw:
    rows = changing.measure(scenario, GBIT, 4 if options.quick else WINDOWS, options)
    sheet.write(rows, NAME, options.out)
marks = [(0, "alone"), *((at, f"{jobs} jobs") for at, jobs in JOINING.items())]
changing.draw(NAME, options.out, panels=[("resnet50", "ps"), ("vgg16", "ps")], marks=marks)
