"""What a window shows of a job's workers and links, and of the load that it ran under."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from autobyte.config import Config
from autobyte.job import Cluster, Floats, Model
from autobyte.trace import Measurement

LINK_NOISE = 0.01  # of a pace
LIGHT_NOISE = 0.02  # of how much longer bytes take with little in flight
TELLING, LEVER = 0.5, 2.0  # blocks in a step that start so, at least; how much more is in flight otherwise
WAITS = 0.1  # by how much longer they take, if they wait for other workers
LEAST = 1e-3  # the part of a link's time that bytes take, at least
BREAK, SURE = 0.1, 5.0  # of log(step time) within a window, and in standard errors: the job changed meanwhile


@dataclass(frozen=True)
class Load:
    """What a step puts on the links.

    Args:
        blocks: how many; those of a mean step, where some are shared.
        block_bytes: size of the block that the mean byte travels in.
        total_bytes: of gradient.
        nbytes: that cross each host's link in either direction, shape [workers].
        block_s: what a block nominally costs there beyond its bytes (s).
    """

    blocks: float
    block_bytes: float
    total_bytes: int
    nbytes: Floats
    block_s: float

    @property
    def blocks_s(self) -> float:
        """What all of them nominally cost there beyond their bytes (s)."""
        return self.blocks * self.block_s


@dataclass(frozen=True, eq=False)
class JobState:
    """What was measured of a job's workers and links.

    Args:
        forward_s, backward_s: time per layer on every worker (s), shape [workers, layers].
        up_bytes_per_s, down_bytes_per_s: of every host's link, without what blocks cost, shape [workers].
        servers: how many there are; 0 is all-reduce.
        overhead: what a block costs beyond its bytes, as a multiple of what is nominal.
    """

    forward_s: Floats
    backward_s: Floats
    up_bytes_per_s: Floats
    down_bytes_per_s: Floats
    servers: int
    overhead: float

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self.forward_s)


@dataclass(frozen=True)
class Light:
    """What a window's sends tell of a smaller one: blocks that started with little in flight, beside all of them.

    Args:
        flight: bytes that were in flight with the mean byte of these (B).
        blocks_by_byte: blocks per byte, of all and of these, shape [2, workers].
        busy_by_byte: the time for which they kept a link busy, likewise (s).
    """

    flight: float
    blocks_by_byte: Floats
    busy_by_byte: Floats

    def stretch(self, block_s: Floats | float) -> Floats:
        """Logarithm of how much longer their bytes take than those of all, if a block costs so much (s)."""
        blocks_s = np.asarray(block_s)[..., None, None] * self.blocks_by_byte
        bytes_s = np.maximum(self.busy_by_byte - blocks_s, LEAST * self.busy_by_byte)
        longer = np.sort(np.log(bytes_s[..., 1, :] / bytes_s[..., 0, :]), axis=-1)
        middle = longer.shape[-1] // 2
        median: Floats = (longer[..., ~middle] + longer[..., middle]) / 2
        return median


@dataclass(eq=False)
class JobWindow:
    """A window's statistics, and the load that it ran under."""

    config: Config
    row: Floats  # see `Process`
    load: Load
    state: JobState  # rates as measured, blocks and all
    step_s: float
    error: float  # of the mean, relative
    surprise: float = 0.0  # by how much the logarithm of its pace was not what the windows before said
    light: Light | None = None  # what it tells of a smaller window in flight

    @property
    def noise(self) -> float:
        """Of the logarithm of its pace: that of its steps, or more if it surprises: then it says less of others."""
        return max(LINK_NOISE, self.error, abs(self.surprise))

    @cached_property
    def compute_s(self) -> float:
        """Of the slowest worker."""
        return float((self.state.forward_s + self.state.backward_s).sum(axis=1).max())

    @cached_property
    def busy_s(self) -> float:
        """Time in a step in which the busiest link was busy."""
        return float((self.load.nbytes / self.state.up_bytes_per_s).max())

    def bytes_s(self, overhead: float) -> float:
        """The part of it that bytes took, if blocks cost so much."""
        return max(self.busy_s - self.load.blocks_s * overhead, LEAST * self.busy_s)

    def pace(self, overhead: float) -> float:
        """Logarithm of the seconds per byte, if blocks cost so much."""
        return math.log(self.bytes_s(overhead) / self.most_bytes)

    @cached_property
    def most_bytes(self) -> float:
        """That cross the busiest link."""
        return float(self.load.nbytes.max())


def light_of(sends: Floats | None, window: JobWindow) -> Light | None:
    """What a window's sends, shape [workers, 2, 4], tell of a smaller one; None where they do not."""
    if sends is None or not np.isfinite(sends).all():
        return None
    if (sends[..., 0] < TELLING).any() or (sends[..., 1:] <= 0).any():
        return None
    blocks, nbytes, seconds, flight = sends.transpose(2, 1, 0)
    every, light = flight.sum(axis=1) / nbytes.sum(axis=1)
    shown = Light(float(light), blocks / nbytes, seconds / nbytes)
    return shown if every >= LEVER * light and shown.stretch(window.load.block_s) < WAITS else None


def evidence(windows: Sequence[JobWindow], overhead: Floats | float) -> tuple[Floats, Floats, Floats]:
    """What windows tell of the pace of links: rows as `Process` has them, that of the latest last, paces, noise.

    A window that tells of a smaller one in flight does so in a row of its own, which shares its noise. Blocks that
    start with little in flight may also wait for other workers: where they take longer than the rest, less is sure.

    Args:
        windows: the latest last.
        overhead: what blocks may cost, as a multiple of what is nominal.

    Returns:
        rows [rows, 4]; logarithms of seconds per byte [rows, ...], as many as overheads; covariance [rows, rows].
    """
    rows, paces = [window.row for window in windows], paces_of(windows, overhead)
    noise = np.diag([window.noise**2 for window in windows])
    for place_of, window in enumerate(windows):
        if window.light is None:
            continue
        block_s = window.load.block_s
        waits = max(0.0, float(window.light.stretch(block_s)))
        rows = [np.array([*window.row[:3], math.log2(window.light.flight)]), *rows]
        paces = np.stack([paces[place_of] + window.light.stretch(np.asarray(overhead) * block_s), *paces])
        shared = noise[place_of]
        noise = np.vstack([shared, noise])
        noise = np.column_stack([noise[:, place_of], noise])
        noise[0, 0] += LIGHT_NOISE**2 + waits**2
        break  # one of them tells at most
    return np.array(rows), paces, noise


def parts_of(windows: Sequence[JobWindow], overhead: Floats | float) -> Floats:
    """The part of each window's link time that bytes took, if blocks cost so much; shape [windows, ...]."""
    blocks = np.array([window.load.blocks_s / window.busy_s for window in windows])
    parts: Floats = 1.0 - np.multiply.outer(blocks, overhead)
    return np.maximum(parts, LEAST)


def paces_of(windows: Sequence[JobWindow], overhead: Floats | float) -> Floats:
    """Logarithms of the seconds per byte, if blocks cost so much; shape [windows, ...]."""
    parts = parts_of(windows, overhead)
    alone = np.log([window.busy_s / window.most_bytes for window in windows])
    return np.log(parts) + alone.reshape(-1, *[1] * (parts.ndim - 1))


def complete(measurement: Measurement, model: Model) -> bool:
    """Whether a window has statistics that are possible, of workers that send something.

    Args:
        measurement: the window.
        model: what is trained.
    """
    stats = measurement.stats
    if stats is None:
        return False
    times = np.array([stats.forward_s, stats.backward_s])
    rates = np.array([stats.up_bytes_per_s, stats.down_bytes_per_s])
    layers = times.shape[-1] == len(model.layers)
    sound = (
        times.size and times.min() >= 0 and 0 < times.sum() < math.inf and rates.min() > 0 and rates.max() < math.inf
    )
    sends = len(stats.forward_s) > 1 and any(tensor.numel for tensor in model.tensors)
    return bool(layers and sound and sends)


@lru_cache
def nominal_s(workers: int) -> float:
    """What a block costs by default on the link of each host, beyond its bytes (s)."""
    once, hop = Cluster(workers).overhead_s
    return once + 2 * (workers - 1) * hop if workers > 1 else 0.0


def apart(step_s: Sequence[float], mean_s: float) -> float:
    """By how much steps are not a mean, as a logarithm."""
    return abs(math.log(max(float(np.mean(step_s)), 1e-12) / max(mean_s, 1e-12))) if step_s else 0.0


def broken(step_s: Sequence[float], *, usual: float | None = None, counts: float = 0.0) -> int:
    """The step from which a window's step times are others than before it; 0 where they are not.

    Args:
        step_s: of a window.
        usual: variance of a step relative to the mean, if that is known from elsewhere.
        counts: for how many steps that is to count.
    """
    logs = np.log(np.maximum(np.array(step_s), 1e-12))
    count = len(logs)
    if count < 2:
        return 0
    at, logs = np.arange(1, count), logs - logs.mean()
    first, second = np.cumsum(logs)[:-1] / at, np.cumsum(logs[::-1])[-2::-1] / (count - at)  # means
    squares = np.maximum((logs**2).sum() - at * first**2 - (count - at) * second**2, 0.0)
    of = float(max(count - 2, 1))
    if usual is not None:
        squares, of = squares + counts * usual, of + counts
    error = np.sqrt(squares / of * (1 / at + 1 / (count - at)))
    sure = np.where(np.abs(first - second) > BREAK, np.abs(first - second) / np.maximum(error, 1e-3), 0.0)
    step = int(sure.argmax())
    return step + 1 if sure[step] > SURE else 0


def place(config: Config, load: Load) -> list[float]:
    """Where a config lies: log2 of the block that carries the mean byte, and of the window of bytes in flight."""
    window = min(config.credit_bytes, max(load.total_bytes, 1))
    return [math.log2(max(load.block_bytes, 1.0)), math.log2(window)]
