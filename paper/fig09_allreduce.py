"""Figure 9: three models at five bandwidths, ring all-reduce: the baseline, ByteScheduler, AutoByte.

    python paper/fig09_allreduce.py              # 1 minute
    python paper/fig09_allreduce.py --testbed    # 70 minutes, Linux and root

Simulated. Writes data/fig09_allreduce.csv, data/fig09_allreduce.measured.csv (tuners' own time) and
figures/fig09_allreduce.{pdf,png}.
"""

import environments
import runs
import sheet

NAME = "fig09_allreduce"

options = sheet.options(__doc__, testbed=True).parse_args()
if options.testbed:
    import shaped

    NAME = f"{NAME}.testbed"
    if not options.redraw:
        shaped.environments(NAME, "allreduce", environments.MODELS, runs.installed(shaped.TUNERS), options)
elif not options.redraw:
    rows, measured = environments.measure("allreduce", options)
    sheet.write(rows, NAME, options.out)
    sheet.write(measured, f"{NAME}.measured", options.out, what="measured")
environments.draw(NAME, options.out, what="emulated" if options.testbed else "simulated")
