"""The twin: a predictor of the running job that is calibrated on every window, and chooses among all candidates.

`tuner` asks and tells. `expectations` says what each candidate would take and how sure that is, and `choosing` which
one is worth a window. `calibration` keeps what windows show of links and workers, with `windows`, `torn` and `noise`.
`process` is the arithmetic of the Gaussian processes.
"""

from autobyte.tuners.twin.predictor import Predictor, Settings
from autobyte.tuners.twin.tuner import Twin

__all__ = ["Predictor", "Settings", "Twin"]
