"""Rates that a window's statistics and its steps make likely together, where its warm-up was unlike the rest."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from autobyte.config import Config
from autobyte.job import Floats
from autobyte.tuners.twin.windows import LEAST, LINK_NOISE, JobState, JobWindow

MISSES = 0.01  # of log(simulated / measured step time), beyond noise

#: Time of a step (s) in a state, under a config whose bytes take so many times as long, shape [stretches].
StepS = Callable[[JobState, Config, Floats], Floats]


def explained(window: JobWindow, uncertain: float, state: JobState, step_s: StepS) -> JobWindow:
    """With the rates that its statistics and its steps make likely: the mean of two states tells little of one.

    Args:
        window: whose rates may be those of another state in part.
        uncertain: standard deviation of their logarithm for that.
        state: what it shows, cost of blocks apart.
        step_s: predicts.
    """
    load = window.load
    if not window.step_s > 0:
        return window
    least_s = max(window.step_s - window.compute_s, 0.1 * window.step_s) / 2
    some_s = np.geomspace(min(least_s, window.busy_s / 2), max(window.step_s, 2 * window.busy_s), 32)
    blocks_s = load.blocks_s * state.overhead
    stretch = np.maximum(some_s - blocks_s, LEAST * some_s) / window.bytes_s(state.overhead)
    steps = np.log(step_s(state, window.config, stretch) / window.step_s)
    busy = np.linspace(math.log(some_s[0]), math.log(some_s[-1]), 512)
    off = np.interp(busy, np.log(some_s), steps) / math.hypot(window.error, MISSES)
    uncertain = math.hypot(uncertain, LINK_NOISE)
    likely = busy[(off**2 + ((busy - math.log(window.busy_s)) / uncertain) ** 2).argmin()]
    faster = window.busy_s / math.exp(likely)
    measured = window.state
    rates = {side: getattr(measured, side) * faster for side in ("up_bytes_per_s", "down_bytes_per_s")}
    return replace(window, state=replace(measured, **rates))
