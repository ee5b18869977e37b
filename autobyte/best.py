"""Which config did best, as far as noise can tell, and whether that still holds."""

import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from autobyte.config import Config
from autobyte.job import Floats
from autobyte.trace import Measurement
from autobyte.tuners.base import WINDOW

CHANGED = 0.1  # relative, of step time, compute, or a link's rate, in whole windows
JUMP = 0.4  # of the latter two alone: where computation jitters, some windows are 0.3 apart
NOISE = 4.0  # standard errors that a step time must differ by besides
JITTER = 0.05  # of a single step, at least: one that was measured once or twice cannot say how noisy it is
SURE = 2.0  # standard errors by which another config must beat the default


def best_config(windows: Iterable[Measurement], default: Config, *, favourite: Config | None = None) -> Config:
    """Find the config with the least mean step time over all its windows, as far as noise can tell.

    Whoever is best of many by one window each is so by luck, too: a config counts as slow as its mean plus one
    standard error, and the default is left only for one that beats it by two. The noise is that of steps within
    windows, as a part of their mean, pooled over all of them.

    Args:
        windows: what was measured, at most a few hundred of them.
        default: what runs if nothing is better.
        favourite: is returned where it was measured, no slower than the default, and is as good as the best by two
            standard errors.
    """
    means: dict[Config, list[float]] = defaultdict(list)
    counts: dict[Config, int] = defaultdict(int)
    squares = freedom = 0.0
    for window in windows:
        steps = np.array(window.step_s[window.warmup :])
        means[window.config].append(window.mean_s)
        counts[window.config] += len(steps)
        if window.mean_s > 0:
            squares += float(((steps / window.mean_s - 1) ** 2).sum())
            freedom += len(steps) - 1
    noise = math.sqrt(squares / freedom) if freedom else 0.0
    mean_s = {config: float(np.mean(values)) for config, values in means.items()}

    def beats(one: Config, other: Config) -> bool:
        """Whether one is faster than another by more than noise."""
        error = noise * math.sqrt(1 / counts[one] + 1 / counts[other])
        return mean_s[one] * (1 + SURE * error) < mean_s[other]

    best = min(mean_s, key=lambda config: mean_s[config] * (1 + noise / math.sqrt(counts[config])), default=default)
    if favourite in mean_s and not beats(best, favourite) and mean_s[favourite] <= mean_s.get(default, math.inf):
        return favourite
    return default if default in mean_s and not beats(best, default) else best


def changed(before: Measurement, now: Measurement, *, jump: float = CHANGED) -> bool:
    """Whether the job is not what it was: steps, compute, links or workers, seen by two windows of one config.

    The pace of links depends on the config, so that windows of different configs tell nothing.

    Args:
        before, now: the windows.
        jump: relative, of compute or a link's rate: more in a whole window counts, whatever steps do.
    """
    if before.config != now.config:
        return False
    error = math.hypot(*(max(w.error, JITTER / math.sqrt(len(w.step_s) - w.warmup)) for w in (before, now)))
    if abs(now.mean_s / max(before.mean_s, 1e-12) - 1) > max(CHANGED, NOISE * error):
        return True
    old, new = before.stats, now.stats
    if old is None or new is None:
        return False
    if len(old.forward_s) != len(new.forward_s):
        return True
    pairs = [
        ((old.forward_s + old.backward_s).sum(axis=1), (new.forward_s + new.backward_s).sum(axis=1)),
        (old.up_bytes_per_s, new.up_bytes_per_s),
        (old.down_bytes_per_s, new.down_bytes_per_s),
    ]
    bound = jump * math.sqrt(WINDOW / min(WINDOW, len(before.step_s), len(now.step_s)))  # the shorter, the noisier
    return any(_apart(a, b, bound) for a, b in pairs)


def _apart(before: Floats, now: Floats, bound: float) -> bool:
    with np.errstate(divide="ignore", invalid="ignore"):
        return bool((np.abs(now / before - 1) > bound).any())
