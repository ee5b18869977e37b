"""A search that goes on: whoever uses this tuner adds to one study, which Optuna's dashboard shows.

autobyte compare --model alexnet --plugin examples/shared_study.py --tuners default,shared --seeds 1
optuna-dashboard sqlite:///shared.db          # pip install optuna-dashboard

In training: `import shared_study`, and `ab.DistributedOptimizer(…, tuner="shared")`.
"""

import os
from typing import Any

from autobyte import Tuner
from autobyte.config import Space
from autobyte.tuners.optuna import Optuna

SETTINGS = {
    "sampler": "tpe",  # any of Optuna's
    "storage": os.environ.get("SHARED_STUDY", "sqlite:///shared.db"),  # any URL that Optuna takes
    "study": "alexnet on eight hosts",
    "anew": None,  # go on, whatever `compare` asks for
}


@Tuner.register("shared")
class Shared(Optuna):
    def __init__(self, space: Space, **given: Any) -> None:
        super().__init__(space, **given | SETTINGS)
