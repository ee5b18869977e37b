"""Figure 6: the links go from 10 to 3 Gbit/s and back every 20 iterations; AutoByte against BO tuned once before.

    python paper/fig06_dynamic_bandwidth.py              # 1 minute
    python paper/fig06_dynamic_bandwidth.py --testbed    # 40 minutes, Linux and root

Simulated. Writes data/fig06_dynamic_bandwidth.csv and figures/fig06_dynamic_bandwidth.{pdf,png}.
"""

import changing
import jobs
import runs
import sheet

from autobyte.scenario import Change, Scenario

NAME = "fig06_dynamic_bandwidth"
HIGH_GBIT, LOW_GBIT, EVERY = 10, 3, 20
WINDOWS = 12  # of 10 iterations

scenario = Scenario(
    NAME,
    (
        Change(at=EVERY, every=2 * EVERY, up=jobs.rate(LOW_GBIT), down=jobs.rate(LOW_GBIT)),
        Change(at=2 * EVERY, every=2 * EVERY, up=jobs.rate(HIGH_GBIT), down=jobs.rate(HIGH_GBIT)),
    ),
)
options = sheet.options(__doc__, testbed=True).parse_args()
if options.testbed:
    import shaped

    NAME = f"{NAME}.testbed"
    if not options.redraw:
        places = [("ps", "resnet50"), ("ps", "vgg16"), ("allreduce", "resnet50")]  # the paper's model, and the drawn
        shaped.changing(NAME, scenario, HIGH_GBIT, places, runs.installed(changing.ONGOING), WINDOWS, options)
elif not options.redraw:
    rows = changing.measure(scenario, HIGH_GBIT, 4 if options.quick else WINDOWS, options)
    sheet.write(rows, NAME, options.out)
WHAT = "emulated" if options.testbed else "simulated"
marks = [(k * EVERY, f"{LOW_GBIT if k % 2 else HIGH_GBIT} G") for k in range(WINDOWS * 10 // EVERY)]
changing.draw(NAME, options.out, panels=[("resnet50", "ps"), ("vgg16", "ps")], marks=marks, what=WHAT)
