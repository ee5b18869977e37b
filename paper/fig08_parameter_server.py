"""Figure 8: three models at five bandwidths, parameter servers: the baseline, ByteScheduler, AutoByte.

    python paper/fig08_parameter_server.py              # 1 minute
    python paper/fig08_parameter_server.py --testbed    # 70 minutes, Linux and root

Simulated. Writes data/fig08_parameter_server.csv, data/fig08_parameter_server.measured.csv (tuners' own time) and
figures/fig08_parameter_server.{pdf,png}.
"""

import environments
import runs
import sheet

NAME = "fig08_parameter_server"

options = sheet.options(__doc__, testbed=True).parse_args()
if options.testbed:
    import shaped

    NAME = f"{NAME}.testbed"
    if not options.redraw:
        shaped.environments(NAME, "ps", environments.MODELS, runs.installed(shaped.TUNERS), options)
elif not options.redraw:
    rows, measured = environments.measure("ps", options)
    sheet.write(rows, NAME, options.out)
    sheet.write(measured, f"{NAME}.measured", options.out, what="measured")
environments.draw(NAME, options.out, what="emulated" if options.testbed else "simulated")
