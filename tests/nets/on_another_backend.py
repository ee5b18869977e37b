"""Run by a test in a process of its own: predict, fit and adapt on the backend that KERAS_BACKEND names."""

import json
import sys
from pathlib import Path

from nets.small import groups
from nets.test_metanet_net import GRID, JOB, predictions

from autobyte.config import Space
from autobyte.features.runtime import Watch
from autobyte.features.vector import candidates, describe
from autobyte.nets import stored
from autobyte.nets.adaptation import Adaptation, Lesson
from autobyte.nets.backend import keras
from autobyte.nets.training import fit
from autobyte.simulator.world import World

net, replay = stored.load(Path(sys.argv[1]))
predicted = predictions(net)
losses: list[float] = []
fit(groups(), variant="improved", epochs=2, progress=lambda now: losses.append(now.loss))
state = Watch(JOB.model).add(World(JOB).measure(Space().default, iterations=10, warmup=2))
asked = candidates(state, GRID[100:102])
adaptation = Adaptation(net, replay)
adapted = adaptation.learn(Lesson(describe(state), asked, asked.floor_s * 1.5, state.samples))
said = {"backend": keras().backend.backend(), "predicted": predicted, "losses": losses}
print(json.dumps(said | {"adapted": adapted}))
