"""Worlds to judge tuners in, drawn at random: jobs on clusters that do more than any tuner is told."""

import math
from dataclasses import dataclass

import numpy as np

from autobyte import models
from autobyte.job import Cluster, Job
from autobyte.simulator.effects import Effects
from autobyte.units import KIB, MIB

#: Coefficient of variation of mini-batch times over 10 workers, in production: the median of each of 100 jobs, in
#: deciles up to the seventh. The rest are jobs on shared fractions of GPUs (Alibaba PAI trace 2020, CC BY 4.0).
VARIATION = (0.014, 0.035, 0.049, 0.059, 0.070, 0.087, 0.128, 0.281)
GBIT = 1.25e8


@dataclass(frozen=True)
class Drawn:
    """A job, and the second-order effects of its world."""

    job: Job
    effects: Effects


def draw(
    seed: int,
    *,
    names: tuple[str, ...] = (),
    workers: tuple[int, ...] = (2, 4, 8, 8, 16, 32),
    gbit: tuple[float, ...] = (),
) -> Drawn:
    """Draw a world; the same seed draws the same.

    Rates are 0.5 to 25 Gbit/s, blocks cost a third to three times the default, latency is 10 to 100 µs. Every effect
    is there or not. Variation of compute times is partly workers that differ for good, partly jitter; one in seven
    worlds has a straggler besides, one in ten a link at half the rate.

    Args:
        seed: of everything.
        names: models to draw from; by default all of the table.
        workers: numbers of workers to draw from.
        gbit: rates to draw from (Gbit/s); by default anything from 0.5 to 25.
    """
    random = np.random.default_rng([7, seed])
    known = names or tuple(models.names())
    model = models.load(known[random.integers(len(known))])
    count = int(random.choice(workers))
    architecture = ("allreduce", "ps")[random.integers(2)]
    anything = _between(random, 0.5, 25)
    rate = GBIT * (float(gbit[int(len(gbit) * random.random())]) if gbit else anything)
    cost = _between(random, 1 / 3, 3)
    variation = float(np.interp(random.uniform(0, 0.7), np.linspace(0, 0.7, len(VARIATION)), VARIATION))
    transient = random.uniform(0.2, 0.9)  # part of the variance
    slowdown = _slowdowns(random, count, math.sqrt(1 - transient) * variation)
    up = np.full(count, rate)
    if random.random() < 0.1:
        up[0] /= 2
    cluster = Cluster(
        count,
        count if architecture == "ps" else 0,
        tuple(up.tolist()),
        tuple(up.tolist()),
        slowdown,
        latency_s=random.uniform(10e-6, 100e-6),
        overhead_s=(500e-6 * cost, 30e-6 * cost),
    )
    return Drawn(Job(model, cluster), _effects(random, math.sqrt(transient) * variation))


def _between(random: np.random.Generator, low: float, high: float) -> float:
    """Log-uniform."""
    return float(math.exp(random.uniform(math.log(low), math.log(high))))


def _slowdowns(random: np.random.Generator, workers: int, spread: float) -> tuple[float, ...]:
    """Up to three kinds of workers, so that many of them cost no more to simulate; one in seven times a straggler."""
    kinds = np.exp(spread * random.normal(size=min(3, workers)))
    slowdown = np.sort(np.resize(kinds, workers))
    slowdown /= slowdown.mean()
    if random.random() < 1 / 7:
        slowdown[-1] *= random.uniform(1.2, 2)
    return tuple(slowdown.tolist())


def _effects(random: np.random.Generator, jitter: float) -> Effects:
    """Each effect with its own odds; sizes as far as they were measured somewhere (see `Effects`)."""
    small, middle, large = random.uniform(0.3, 0.8), random.uniform(0.75, 1), random.uniform(0.6, 1)
    curve = ((16.0 * KIB, small), (1.0 * MIB, middle), (16.0 * MIB, 1.0), (128.0 * MIB, large))
    inflight = _between(random, 32e6, 512e6)
    incast, cross, spread = random.uniform(size=3).tolist()
    compute, wire = random.uniform(0, 0.126, size=2).tolist()
    there = random.uniform(size=6) < (0.5, 0.4, 0.5, 0.5, 0.5, 0.3)
    return Effects(
        size_efficiency=curve if there[0] else (),
        inflight_bytes=inflight if there[1] else math.inf,
        incast=0.03 * incast if there[2] else 0.0,
        cross_traffic=0.05 + 0.25 * cross if there[3] else 0.0,
        cross_traffic_spread=0.2 + 0.8 * spread,
        jitter=jitter,
        compute_slowdown=compute if there[4] else 0.0,
        wire_slowdown=wire if there[5] else 0.0,
    )
