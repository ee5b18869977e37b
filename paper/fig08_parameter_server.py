"""Figure 8: three models at five bandwidths, parameter servers: the baseline, ByteScheduler, AutoByte.

    python paper/fig08_parameter_server.py        # 1 minute

Simulated. Writes data/fig08_parameter_server.csv, data/fig08_parameter_server.measured.csv (tuners' own time) and
figures/fig08_parameter_server.{pdf,png}.
"""

import environments
import sheet

NAME = "fig08_parameter_server"

options = sheet.options(__doc__).parse_args()
if not options.redraw:
    rows, measured = environments.measure("ps", options)
    sheet.write(rows, NAME, options.out)
    sheet.write(measured, f"{NAME}.measured", options.out, what="measured")
environments.draw(NAME, options.out)
