"""The head learns the job's own samples; the encoder and what was known stay."""

from dataclasses import replace

import numpy as np
import pytest
from nets.small import fitted

from autobyte.config import Space
from autobyte.features.runtime import Watch
from autobyte.features.vector import candidates, describe
from autobyte.job import Cluster, Job
from autobyte.models import load
from autobyte.nets import adaptation as module
from autobyte.nets.adaptation import Adaptation, Batch, Lesson, adam
from autobyte.nets.backend import arrays, keras
from autobyte.nets.forward import Forward, head
from autobyte.nets.metanet import MetaNet
from autobyte.nets.stored import Rehearsal
from autobyte.simulator.world import World

JOB = Job(load("vgg16"), Cluster.uniform(8, 1.25e9))
STATE = Watch(JOB.model).add(World(JOB).measure(Space().default, iterations=10, warmup=2))
ASKED = candidates(STATE, Space().grid()[150:156])


def copied() -> tuple[Forward, Rehearsal]:
    """A fitted network of its own."""
    known, replay = fitted()
    return Forward(known.variant.name, known.scale, known.weights), replay


def lesson(net: Forward, factor: float) -> Lesson:
    """Everything takes so many times what the network says."""
    vector = describe(STATE)
    return Lesson(vector, ASKED, factor * net.step_s(STATE.samples, vector, ASKED), STATE.samples)


def test_it_learns_what_the_job_showed_and_keeps_what_it_knew() -> None:
    net, replay = copied()
    taught = lesson(net, 1.5)
    known = _loss(net, replay)
    adaptation = Adaptation(net, replay)
    for _ in range(3):
        assert adaptation.learn(taught)
    off = np.abs(net.step_s(STATE.samples, taught.vector, ASKED) / taught.step_s - 1)
    assert off.max() < 0.15  # it was a third
    assert _loss(net, replay) < known + 0.05


def test_the_same_seed_learns_the_same() -> None:
    heads = []
    for _ in range(2):
        net, replay = copied()
        adaptation = Adaptation(net, replay, seed=4)
        for _ in range(2):  # the second lesson begins as fresh as the first
            adaptation.learn(lesson(net, 1.2))
        heads.append([values for head in net.heads for values in head])
    assert all(np.array_equal(a, b) for a, b in zip(*heads, strict=True))


def test_what_is_not_finite_is_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    net, replay = copied()
    monkeypatch.setattr(module, "RATE", 1e38)
    known = net.heads
    assert not Adaptation(net, replay).learn(lesson(net, 1.5))
    assert net.heads is known


def test_it_takes_the_steps_that_keras_takes() -> None:
    known, replay = fitted()
    net = MetaNet(known.variant.name, known.scale)
    net.weights = known.weights
    state = net.parts(replay.state)[1]
    batch = Batch(*(values[:8] for values in (state, replay.candidate, replay.target + 0.3, replay.weight)))
    member = net.heads[1]
    member.compile(optimizer=keras().optimizers.Adam(module.RATE), loss="mean_squared_error")
    for _ in range(5):
        member.train_on_batch([batch.state, batch.candidate], batch.target[..., None], sample_weight=batch.weight)
    before = copied()[0].heads[1]
    for ours, theirs, was in zip(adam(before, batch, steps=5), arrays(member.weights), before, strict=True):
        assert np.abs(ours - theirs).max() <= 0.01 * np.abs(theirs - was).max()


def test_of_more_samples_than_a_row_has_the_latest_count() -> None:
    net, replay = copied()
    asked = candidates(STATE, Space().grid()[100:140])
    taught = replace(lesson(net, 1.0), asked=asked, step_s=np.full(40, 0.5))
    batch = Adaptation(net, replay)._batch(taught)
    width = replay.target.shape[1]
    assert batch.weight[0].all()
    assert np.array_equal(batch.candidate[0], net.scored("candidate", asked.table)[-width:])
    assert batch.target[0] == pytest.approx(net.target(taught.step_s, asked.floor_s, STATE.samples)[-width:])


def _loss(net: Forward, replay: Rehearsal) -> float:
    pairs = zip(net.heads, net.parts(replay.state), strict=True)
    said = np.mean([head(own, part[:, None], replay.candidate)[-1][..., 0] for own, part in pairs], axis=0)
    return float(((said - replay.target) ** 2 * replay.weight).sum() / replay.weight.sum())
