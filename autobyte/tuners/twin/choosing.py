"""How a tuner that knows how sure it is of its predictions chooses: what a trial may find, against what it costs."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import NormalDist

import numpy as np

from autobyte.config import BYTESCHEDULER_DEFAULT, Config, Space
from autobyte.job import Floats, Ints, Model
from autobyte.tuners.twin.process import Process
from autobyte.tuners.twin.windows import Load, place

BLIND = Process(common=3.0, regime=0.3, block=0.3, flight=0.3)  # of log(measured), where nothing can be predicted
NOISE = 0.004  # of a step time at least: a predictor's own roughness
MOST = 9  # windows that count as lasted: what a trial may cost is bounded, however long training lasts
BLINDLY = 10  # windows for which a trial is expected to pay off at most, where nothing can be predicted
AHEAD = 2.0  # windows for which a trial is expected to pay off, at least
OCTAVES = 2.0  # by how much the bytes in flight may grow at once, beyond any that ran
USUAL = math.log2(BYTESCHEDULER_DEFAULT.credit_bytes)  # bytes in flight up to which nobody expects links to collapse
ALIKE = 0.01  # of the step time: what is worth so little less is worth about as much
SURE, RIVALS = 3.0, 64  # deviations by which one is not worth a thought; how many are compared
OUTCOMES = np.array([NormalDist().inv_cdf((k + 0.5) / 21) for k in range(21)])  # of a window, equally likely
LASTS = 3  # what has lasted n windows is expected to last n / 3 more: so long may a trial pay off


def every(space: Space) -> list[Config]:
    """The default, and the grid; of the policy's own knobs both ends."""
    ends = [dict(zip(space.knobs, values, strict=True)) for values in product(*space.knobs.values())]
    grid = [replace(config, knobs={**config.knobs, **values}) for config in space.grid() for values in ends]
    return list(dict.fromkeys([space.default, *(config for config in grid if config in space)]))


def beyond(flight: Floats, seen: float) -> Floats:
    """How far windows are in what nobody has seen, from 0, nearly seen, to 1, an octave and more; shape [configs].

    Networks may collapse under large windows, and nothing in a small one tells. What is usual counts as seen.

    Args:
        flight: log2 of the bytes in flight.
        seen: the largest that ran.
    """
    far: Floats = np.clip(flight - max(seen, USUAL) - 0.3, 0.0, 1.0)
    return far


def ahead(lasted: int, *, least: float = AHEAD) -> float:
    """For how many windows a trial is expected to pay off, where what it can tell has held for so many."""
    return max(least, min(lasted, MOST) / LASTS)


def blindly(lasted: int) -> float:
    """The same where nothing can be predicted: all that is known was tried."""
    return max(AHEAD, min(lasted, BLINDLY))


def worth(mean: Floats, deviation: Floats, *, windows: float) -> Floats:
    """What it is worth to run each candidate in the next window, as a part of the step time; shape [configs].

    Each is looked at alone, and a window is taken at its word: the expected improvement on the best.

    Args:
        mean: of the logarithm of its step time; infinite for who cannot win.
        deviation: how sure that is.
        windows: for which a trial is expected to pay off.
    """
    likely = np.isfinite(mean)
    best = float(mean.min())
    gap = np.where(likely, mean, best) - best
    return np.where(likely, windows * _improvement(gap, deviation) - gap, -np.inf)


@dataclass(frozen=True)
class Belief:
    """What a tuner thinks of its candidates.

    Args:
        mean: of the logarithm of the step time, shape [configs]; infinite for who cannot win.
        deviation: of each, shape [configs].
        together: covariance between some of them, given by their indices.
        noise: deviation of the logarithm of a window's step time.
    """

    mean: Floats
    deviation: Floats
    together: Callable[[Ints], Floats]
    noise: float


def worth_together(belief: Belief, *, windows: float) -> Floats:
    """What it is worth to run each candidate in the next window, as a part of the step time; shape [configs].

    What that window costs beside the best, against what it is expected to tell for those that follow. A window tells
    of all configs that are like its own, and the less the noisier it is.

    Reference: the knowledge gradient for correlated beliefs, Frazier, Powell and Dayanik (INFORMS J. Comput. 2009).

    Args:
        belief: of the candidates.
        windows: for which a trial is expected to pay off.
    """
    mean, best = belief.mean, float(belief.mean.min())
    if best == np.inf:  # every mean is infinite: a run can tell nothing
        return np.zeros(len(mean))
    could = np.flatnonzero(mean - SURE * belief.deviation <= best)
    first = np.where(mean > best, mean - belief.deviation, -np.inf)
    could = could[np.argsort(first[could], kind="stable")[:RIVALS]]
    covariance = belief.together(could)
    learned = covariance / np.sqrt(np.diag(covariance) + belief.noise**2)  # [of whom, from whom], for a deviation
    after = (mean[could, None, None] + learned[:, :, None] * OUTCOMES).min(axis=0).mean(axis=1)
    value = best - mean
    value[could] += windows * np.maximum(best - after, 0.0)
    return value


def choice(
    candidates: Sequence[Config],
    running: Config,
    value: Floats,
    bar: float,
    *,
    mean: Floats | None = None,
    ran: Collection[Config] = (),
) -> Config:
    """The candidate of most worth, where that is worth a change.

    Args:
        candidates: what there is to choose from.
        running: in force; one that is no candidate is left.
        value: as `worth` says it, shape [candidates].
        bar: gain that a change must promise, as a part of the step time.
        mean: of all that are worth about as much, the one of the least mean is taken; None looks at worth alone.
        ran: if any of those is among these, no other.
    """
    most = best = int(value.argmax())
    if mean is not None:
        alike = np.flatnonzero(value >= value[most] - ALIKE)
        familiar = [index for index in alike.tolist() if candidates[index] in ran]
        some = np.array(familiar) if familiar else alike
        best = int(some[mean[some].argmin()])
    try:
        gain = float(value[most] - value[candidates.index(running)])
    except ValueError:
        return candidates[best]
    return candidates[best] if gain >= math.log1p(bar) else running


def measured_alone(
    model: Model, windows: Sequence[tuple[Config, float, float]], candidates: Sequence[Config]
) -> tuple[Floats, Floats]:
    """Mean and deviation of the logarithm of step times, from what was measured and how far that reaches.

    Args:
        model: what is trained.
        windows: config, step time (s) and its relative error, of each.
        candidates: of which it is asked.
    """
    total = sum(tensor.numel * 4 for tensor in model.tensors)

    def row(config: Config) -> list[float]:
        return [0.0, 0.0, *place(config, Load(1, min(config.partition_bytes, total), total, np.zeros(1), 0.0))]

    known = np.array([row(config) for config, _, _ in windows])
    values = np.log([max(seconds, 1e-12) for _, seconds, _ in windows])
    noise = np.array([max(error, NOISE) for _, _, error in windows])
    at = np.array([row(config) for config in candidates])
    posterior = BLIND.posterior(known, values - values[0], noise, at=at)
    return posterior.mean + values[0], np.sqrt(np.minimum(posterior.variance, BLIND.local**2))


def _improvement(gap: Floats, deviation: Floats) -> Floats:
    """Expected improvement on the best, for candidates whose mean is worse by a gap."""
    sure = deviation < 1e-9
    u = -gap / np.where(sure, 1.0, deviation)
    density = np.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + np.vectorize(math.erf)(u / math.sqrt(2)))
    return np.where(sure, 0.0, deviation * density - gap * below)
