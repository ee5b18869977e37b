"""Windows in which the job changed: what is told of the state that they end in."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from autobyte.config import Config
from autobyte.job import Floats
from autobyte.tuners.twin.windows import LEAST, LINK_NOISE, JobState, JobWindow

MISSES = 0.01  # of log(simulated / measured step time), beyond noise
MIXED = 0.5  # of a step: how uncertain it is where in it the job changed
ENOUGH = 0.3  # the part of a window after a change from which statistics of its end can be told

#: Time of a step (s) in a state, under a config whose bytes take so many times as long, shape [stretches].
StepS = Callable[[JobState, Config, Floats], Floats]


def rest_of(step_s: Sequence[float], at: int) -> Sequence[float]:
    """Steps of the second state: that in which the job changed is of both, and left out where that leaves two."""
    rest = step_s[at:]
    return rest[1:] if len(rest) > 2 else rest


def end_of(
    window: JobWindow,
    rest: Sequence[float],
    part: float,
    error: float,
    *,
    before: JobWindow,
    old: JobState,
    stretch: float,
) -> tuple[JobWindow, float]:
    """A window as it would be if all of it had been like its last part; how uncertain that makes its links.

    Args:
        window: as it was measured.
        rest: times of the steps of its last part (s).
        part: how much of the window that is.
        error: of the mean of these steps, relative.
        before: the window before it.
        old: workers and links in the state that this showed, cost of blocks apart.
        stretch: how much longer bytes take under the window's config than there.

    Returns:
        the window; standard deviation of the logarithm of its rates.
    """
    state, load, step_s = window.state, window.load, float(np.mean(rest))
    if before.state.workers != state.workers or before.state.servers != state.servers:
        return JobWindow(window.config, window.row, load, state, step_s, error), 1 - part

    def end(mixed: Floats, first: Floats) -> Floats:
        """Of two states' mean the second, as far as that can be."""
        return np.clip((mixed - (1 - part) * first) / part, 0.1 * mixed, mixed / part)

    blocks_s = load.blocks_s * old.overhead
    up_s = load.nbytes / old.up_bytes_per_s * stretch + blocks_s
    down_s = load.nbytes / old.down_bytes_per_s * stretch + blocks_s * (state.servers == 0)
    ended = JobState(
        end(state.forward_s, before.state.forward_s),
        end(state.backward_s, before.state.backward_s),
        load.nbytes / end(load.nbytes / state.up_bytes_per_s, up_s),
        load.nbytes / end(load.nbytes / state.down_bytes_per_s, down_s),
        state.servers,
        0.0,
    )
    whole = JobWindow(window.config, window.row, load, ended, step_s, error)
    mixed = (MIXED / len(rest) + (1 - part) / part * LINK_NOISE) * abs(before.busy_s / whole.busy_s - 1)
    return whole, mixed


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
