"""Windows that were measured while training, in a folder: `autobyte collect --add` learns from it."""

import logging
from dataclasses import asdict
from pathlib import Path

from autobyte.errors import AutoByteError
from autobyte.exchange.tuning.kept import Fingerprint
from autobyte.job import Model
from autobyte.models.profile import Profile
from autobyte.results import DATABASE, MODEL, Results
from autobyte.trace import Measurement

log = logging.getLogger("autobyte")


class Recording:
    """A folder with every window of a training, and the model as it was measured; a later training of it goes on.

    What cannot be written is said once, and training goes on.

    Args:
        folder: is made if it is not there.
        job: what is trained: the folder takes no other.
        tuner: what chooses.
    """

    def __init__(self, folder: Path | str, job: Fingerprint, *, tuner: str) -> None:
        self._folder = Path(folder)
        self._run = {"training": asdict(job)}
        self._tuner = tuner
        self._works = True

    def add(self, measurement: Measurement, model: Model) -> None:
        """Keep a window, for good as soon as this returns."""
        if not self._works:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with Results.open(self._folder / DATABASE, run=self._run) as results:
                if not (self._folder / MODEL).exists():
                    Profile.of(model, provenance={"method": "measured in training"}).save(self._folder / MODEL)
                results.add(measurement, tuner=self._tuner, seed=0, number=len(results))
        except (AutoByteError, OSError) as error:
            self._works = False
            log.warning("windows are not recorded: %s", error)
