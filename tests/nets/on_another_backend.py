"""Run by a test in a process of its own: predict and fit on the backend that KERAS_BACKEND names."""

import json
import sys
from pathlib import Path

from nets.small import groups
from nets.test_metanet import predictions

from autobyte.nets import stored
from autobyte.nets.backend import keras
from autobyte.nets.training import fit

net, _ = stored.load(Path(sys.argv[1]))
predicted = predictions(net)
losses: list[float] = []
fit(groups(), variant="improved", epochs=2, progress=lambda now: losses.append(now.loss))
said = {"backend": keras().backend.backend(), "predicted": predicted, "losses": losses}
print(json.dumps(said))
