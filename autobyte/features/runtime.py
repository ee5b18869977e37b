"""What windows showed of a running job: layer times, rates, and what a block and a byte cost on the slowest link."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.features.static import Static
from autobyte.job import Cluster, Floats, Model
from autobyte.trace import Measurement, RuntimeStats

CHANGED = 0.15  # a relative change of busy time or compute that is not noise: the job is not what it was
NOISE = 0.03  # relative, of a window's busy time
PRIOR = 0.7  # how far, in log, a block's cost may be from what it is by default
DRIFTS = (0.0, 0.02, 0.05, 0.1)  # relative, by which links may change from window to window
QUIET = 4  # windows that tell that links have come to rest
CONFIGS, PER_CONFIG = 16, 4  # that are remembered, and windows of each


@dataclass(frozen=True, eq=False)
class State:
    """A job as the latest windows show it.

    Args:
        static: the model.
        workers, servers: n, and arc.
        accumulation: backward passes per step, from V, step time and batch size.
        forward_s, backward_s: mean over workers (s), shape [layers].
        slowest_forward_s, slowest_backward_s: of the worker that computes longest (s), shape [layers].
        up_bytes_per_s, down_bytes_per_s: B_u and B_d, shape [workers].
        block_s: what a block costs on the slowest link beyond its bytes (s).
        byte_s: what a byte of gradient costs on it (s).
        crowding: by what part a byte costs more, for each byte that the credit lets into flight (1/B).
        configs: how many different ones this was learned from.
        mean_byte_s: what it costs on the mean link (s).
        seen: what configs took in this regime: their mean step time (s), the latest last.
        variation: deviation of a step's time by its mean, within windows.
        regime: goes up whenever the job is not what it was.
        drift: by how much, relatively, links change from window to window within a regime.
    """

    static: Static
    workers: int
    servers: int
    accumulation: int
    forward_s: Floats
    backward_s: Floats
    slowest_forward_s: Floats
    slowest_backward_s: Floats
    up_bytes_per_s: Floats
    down_bytes_per_s: Floats
    block_s: float
    byte_s: float
    crowding: float
    configs: int
    mean_byte_s: float
    seen: Mapping[Config, float]
    variation: float
    regime: int
    drift: float

    @property
    def samples(self) -> int:
        """Samples that a step of the whole job trains on: V = samples / step time."""
        return self.static.model.batch_size * self.workers * self.accumulation

    @property
    def compute_s(self) -> float:
        """C, a forward and a backward pass on the slowest worker (s)."""
        return float(self.slowest_forward_s.sum() + self.slowest_backward_s.sum())


class Watch:
    """Turns measurements into states, and notices when the job changes.

    A rate is bytes over busy time, and blocks keep a link busy beyond their bytes; some networks grow slower the more
    is in flight. One window cannot tell these apart, and the default cost of a block is assumed; windows under
    different configs can, and do:

        busy = blocks · block_s + bytes · byte_s · (1 + crowding · bytes in flight)

    Links may fade or recover all the while, as a random walk; what is said is of the latest window.

    >>> watch = Watch(model)
    >>> watch.add(measurement).block_s
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._static = Static(model)
        self._seen: dict[Config, deque[_Window]] = {}  # of this regime, the latest config last
        self._shape: tuple[int, int, int] | None = None
        self._compute_s = 0.0
        self._block_s: float | None = None  # learned in an earlier regime, as what follows
        self._crowding = self._drift = 0.0
        self._regime = self._number = 0

    def add(self, measurement: Measurement) -> State:
        """Take in a window.

        Raises:
            InputError: it has no statistics, or some that cannot be.
        """
        stats, seen = self._read(measurement)
        before, changed = self._windows, not self._fits(seen)
        self._number += 1
        self._keep(seen.window)
        if changed:
            self._learn(before, seen.shape[0])
            self._seen.clear()
            self._keep(seen.window)
            self._regime += 1
        self._shape, self._compute_s = seen.shape, seen.compute_s
        workers, servers, _ = seen.shape
        links = self._fit(self._windows, workers)
        if links.drift and self._rests(links.drift, workers):
            links = self._fit(self._windows, workers)
        byte_s = links.wire_s / max(1.0, self._static.total_bytes)
        speed = float(stats.samples_per_s.mean()) * float(np.mean(measurement.step_s))
        return State(
            static=self._static,
            workers=workers,
            servers=servers,
            accumulation=max(1, round(speed / self._model.batch_size)),
            forward_s=stats.forward_s.mean(axis=0),
            backward_s=stats.backward_s.mean(axis=0),
            slowest_forward_s=stats.forward_s[seen.slowest],
            slowest_backward_s=stats.backward_s[seen.slowest],
            up_bytes_per_s=stats.up_bytes_per_s,
            down_bytes_per_s=stats.down_bytes_per_s,
            block_s=links.block_s,
            byte_s=byte_s,
            crowding=links.crowding,
            configs=len(self._seen),
            mean_byte_s=byte_s * float(seen.link_s.mean() / seen.link_s.max()) if seen.link_s.max() else 0.0,
            seen=self._lately(links.drift),
            variation=float(np.mean([window.variation for window in self._windows])),
            regime=self._regime,
            drift=links.drift,
        )

    def surprise(self, measurement: Measurement) -> float:
        """How little a window goes with those before (-2 log likelihood, about); infinite: it is of another regime.

        Raises:
            InputError: it has no statistics, or some that cannot be.
        """
        seen = self._read(measurement)[1]
        if not self._fits(seen):
            return math.inf
        windows, workers = self._windows, seen.shape[0]
        return self._fit([*windows, seen.window], workers).cost - (self._fit(windows, workers).cost if windows else 0)

    def anew(self) -> "Watch":
        """A watch for another regime of the same job, which knows what a block costs and whether links crowd."""
        other = Watch(self._model)
        other._static, other._block_s = self._static, self._block_s
        other._crowding, other._drift = self._crowding, self._drift
        if self._shape is not None:
            other._learn(self._windows, self._shape[0])
        return other

    def _read(self, measurement: Measurement) -> "tuple[RuntimeStats, _Reading]":
        stats = checked(measurement, self._model)
        if stats.wire_bytes and stats.wire_bytes != round(self._static.total_bytes):
            self._static = Static(self._model, wire_bytes=stats.wire_bytes)
        workers = len(stats.up_bytes_per_s)
        cluster = Cluster(workers, min(stats.servers, workers))
        compute_s = stats.forward_s.sum(axis=1) + stats.backward_s.sum(axis=1)
        slowest = int(compute_s.argmax())
        link_s = busy_s(stats, cluster, self._static.total_bytes)
        blocks = float(self._static.blocks(measurement.config).sum())
        flight = min(float(measurement.config.credit_bytes), max(1.0, self._static.total_bytes))
        window = _Window(measurement, blocks, float(link_s.max()), flight, self._number)
        shape = workers, cluster.servers, stats.wire_bytes
        return stats, _Reading(window, shape, slowest, float(compute_s[slowest]), link_s)

    def _fits(self, seen: "_Reading") -> bool:
        if self._shape is None:
            return True
        if seen.shape != self._shape or _apart(seen.compute_s, self._compute_s):
            return False
        return self._misfit(seen.window, seen.shape[0]) <= CHANGED

    @property
    def _windows(self) -> "list[_Window]":
        return [window for windows in self._seen.values() for window in windows]

    def _lately(self, drift: float) -> dict[Config, float]:
        """What configs took (s), in windows since which links have hardly changed."""
        ages = dict(zip(self._windows, _ages(self._windows), strict=True))
        lately = {
            config: [window.shown.mean_s for window in windows if drift * math.sqrt(ages[window]) <= NOISE]
            for config, windows in self._seen.items()
        }
        return {config: float(np.mean(took_s)) for config, took_s in lately.items() if took_s}

    def _keep(self, window: "_Window") -> None:
        """Remember a window: the latest few of each config, and the latest configs."""
        config = window.shown.config
        self._seen[config] = deque([*self._seen.pop(config, ()), window], maxlen=PER_CONFIG)
        if len(self._seen) > CONFIGS:
            del self._seen[next(iter(self._seen))]

    def _rests(self, drift: float, workers: int) -> bool:
        """Whether links that drifted have come to rest; what was before is of another regime then."""
        before = self._windows
        latest = sorted(before, key=lambda window: window.number)[-QUIET:]
        if len(latest) == len(before) or self._fit(latest, workers, drifts=(0.0, drift)).drift:
            return False
        self._learn(before, workers)
        self._drift = 0.0
        self._seen.clear()
        for window in latest:
            self._keep(window)
        self._regime += 1
        return True

    def _learn(self, windows: "list[_Window]", workers: int) -> None:
        """What a block costs is known from windows under several configs; so is crowding, from several in flight."""
        links = self._fit(windows, workers)
        if len({known.blocks for known in windows}) > 1:
            self._block_s = links.block_s
        if _tell_of_crowding(windows):
            self._crowding = links.crowding
        if len(windows) > 1:
            self._drift = links.drift

    def _prior_s(self, workers: int) -> float:
        """What a block costs by default (s), or did in the regime before."""
        per_block_s, per_hop_s = Cluster(workers).overhead_s
        return self._block_s or per_block_s + 2 * (workers - 1) * per_hop_s

    @property
    def _spread(self) -> float:
        """How far, in log, a block's cost may be from what is assumed."""
        return PRIOR if self._block_s is None else PRIOR / 3

    def _fit(self, windows: "list[_Window]", workers: int, drifts: Sequence[float] = ()) -> "_Links":
        usual = self._crowding, self._drift
        drifts = drifts or (DRIFTS if len(windows) > 1 else (self._drift,))
        return _fit(windows, self._prior_s(workers), self._spread, usual, drifts)

    def _misfit(self, window: "_Window", workers: int) -> float:
        """By how much a window, relatively, is not what all windows together say; or what the others no longer are.

        Misfits are relative, so a much faster link bends the fit to itself: it is the others that tell. And links
        drift as they did before, or a leap would be taken for drift.
        """
        windows = [*self._windows, window]
        drift = self._fit(self._windows, workers).drift if self._windows else self._drift
        links = self._fit(windows, workers, drifts=(drift,))
        off = [abs(links.busy_s(known) - known.busy_s) / max(known.busy_s, 1e-12) for known in windows]
        drifted = [links.drift * math.sqrt(age) for age in _ages(windows)]
        return max(off[-1], float(np.median(np.subtract(off, drifted))))


@dataclass(frozen=True, eq=False)
class _Reading:
    """A window; workers, servers and bytes on the wire; who computes longest, and for how long; links' busy times."""

    window: "_Window"
    shape: tuple[int, int, int]
    slowest: int
    compute_s: float
    link_s: Floats


@dataclass(frozen=True)
class _Links:
    """What a block costs (s), all bytes together (s), crowding (1/B), and drift; how badly that explains windows."""

    block_s: float
    wire_s: float
    crowding: float
    drift: float
    cost: float

    def busy_s(self, window: "_Window") -> float:
        """How long they are busy in a step (s)."""
        return window.blocks * self.block_s + self.wire_s * (1 + self.crowding * window.flight)


@dataclass(frozen=True, eq=False)
class _Window:
    """A window, and what it showed of the slowest link: blocks in a step, busy time (s), bytes in flight at most.

    Numbers count windows of the job.
    """

    shown: Measurement
    blocks: float
    busy_s: float
    flight: float
    number: int

    @property
    def variation(self) -> float:
        """Deviation of a step's time by the mean."""
        steps = np.array(self.shown.step_s[self.shown.warmup :])
        return float(steps.std() / max(steps.mean(), 1e-12))


def checked(measurement: Measurement, model: Model) -> RuntimeStats:
    """A measurement's statistics, complete and finite.

    Raises:
        InputError: none were measured, of another number of layers or workers, or a number that cannot be.
    """
    stats = measurement.stats
    if stats is None:
        raise InputError(
            f"the window at iteration {measurement.iteration} has no runtime statistics (Table II): measure them"
        )
    workers, layers = len(stats.up_bytes_per_s), len(model.layers)
    for name, shape in (
        ("forward_s", (workers, layers)),
        ("backward_s", (workers, layers)),
        ("up_bytes_per_s", (workers,)),
        ("down_bytes_per_s", (workers,)),
        ("samples_per_s", (workers,)),
    ):
        values = getattr(stats, name)
        if values.shape != shape:
            raise InputError(f"{name} has shape {values.shape}, and {shape} was expected of '{model.name}'")
        rate = name.endswith("bytes_per_s")  # nothing travels: no rate; a link without limit: an infinite one
        if rate and workers == 1:
            continue
        bad = ~(values > 0) if rate else ~(np.isfinite(values) & (values >= 0))
        if bad.any():
            where = "worker " + ", layer ".join(str(index) for index in np.argwhere(bad)[0])
            raise InputError(
                f"{name} of {where} is {values[tuple(np.argwhere(bad)[0])]}: measure it, or leave it out"
            )
    return stats


def busy_s(stats: RuntimeStats, cluster: Cluster, nbytes: float) -> Floats:
    """Time that every worker's link is busy in a step, in the direction that takes longer (s), shape [workers]."""
    if cluster.workers == 1:
        return np.zeros(1)
    rate = np.minimum(stats.up_bytes_per_s, stats.down_bytes_per_s)
    return cluster.traffic * nbytes / rate


_CROWDING = np.concatenate([[0.0], 2.0 ** -np.arange(24.0, 31.5, 0.5)])  # 1/B; twice the time at 16 MiB … 1 GiB
_RATIO = np.linspace(-4.0, 4.0, 161)  # log of a block's cost by what is assumed
RARE = 3.0  # what other crowding or drift than usual must explain before it is believed, in units of cost

LEVER = 2.0  # times the least bytes in flight: windows that differ by less do not tell whether links crowd


def _fit(
    windows: list[_Window], prior_s: float, spread: float, usual: tuple[float, float], drifts: Sequence[float]
) -> _Links:
    """What is most likely: a block's cost is lognormal beforehand; links crowd, and drift, as usual, or not at all.

    As they did at another rate, that is. Windows must differ in what is in flight to say otherwise: where links fade
    as well, hardly any difference would be taken for a collapse. Misfits are relative; all sums of their squares come
    from one matrix of products, whatever is tried for a block's cost.
    """
    blocks, link_s, flight = np.array([(w.blocks, w.busy_s, w.flight) for w in windows]).T
    if not link_s.max() > 0:
        return _Links(0.0, 0.0, 0.0, 0.0, 0.0)
    link_s = np.maximum(link_s, 1e-12)
    block_s = prior_s * np.exp(_RATIO)[:, None]  # [cost, crowding]
    crowdings = _CROWDING if _tell_of_crowding(windows) else np.array(usual[:1])
    parts = np.vstack([np.ones_like(link_s), blocks / link_s, (1.0 + crowdings[:, None] * flight) / link_s])
    rare = (_RATIO / spread)[:, None] ** 2 + RARE * (usual[0] != crowdings)
    ages, fits = np.array(_ages(windows)), list[_Links]()
    for drift in drifts:
        spread_of = NOISE**2 * np.eye(len(ages)) + drift**2 * np.minimum.outer(ages, ages)
        products = parts @ np.linalg.solve(spread_of, parts.T)
        own, with_block, with_wire = products[0, 0], products[0, 1], products[0, 2:]
        wire_s = (with_wire - block_s * products[1, 2:]) / np.diag(products)[2:]
        wire_s = np.maximum(wire_s, 1e-3 * link_s.min())
        cost = own - 2 * block_s * with_block + block_s**2 * products[1, 1] + rare
        cost = cost + wire_s * (wire_s * np.diag(products)[2:] - 2 * with_wire + 2 * block_s * products[1, 2:])
        cost += np.linalg.slogdet(spread_of / NOISE**2)[1] + RARE * (drift != usual[1])
        best, dense = np.unravel_index(int(cost.argmin()), cost.shape)
        values = block_s[best, 0], wire_s[best, dense], crowdings[dense], drift, cost[best, dense]
        fits.append(_Links(*map(float, values)))
    return min(fits, key=lambda links: links.cost)


def _ages(windows: list[_Window]) -> list[int]:
    """How many windows ago they were."""
    latest = max(window.number for window in windows)
    return [latest - window.number for window in windows]


def _tell_of_crowding(windows: "list[_Window]") -> bool:
    flight = [window.flight for window in windows]
    return max(flight) >= LEVER * min(flight)


def _apart(a: float, b: float) -> bool:
    """Whether two times differ by more than noise."""
    return abs(math.log(max(a, 1e-12) / max(b, 1e-12))) > CHANGED
