"""Figure 9: three models at five bandwidths, ring all-reduce: the baseline, ByteScheduler, AutoByte.

    python paper/fig09_allreduce.py        # 1 minute

Simulated. Writes data/fig09_allreduce.csv, data/fig09_allreduce.measured.csv (tuners' own time) and
figures/fig09_allreduce.{pdf,png}.
"""

import environments
import sheet

NAME = "fig09_allreduce"

options = sheet.options(__doc__).parse_args()
if not options.redraw:
    rows, measured = environments.measure("allreduce", options)
    sheet.write(rows, NAME, options.out)
    sheet.write(measured, f"{NAME}.measured", options.out, what="measured")
environments.draw(NAME, options.out)
