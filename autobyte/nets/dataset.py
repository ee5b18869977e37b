"""What the network learns from: simulated jobs whose bandwidth changes all the time, in groups of ten iterations.

AutoByte's protocol (sec. III-B): ResNet50, VGG16, AlexNet; S_p 4 KB … 1024 MB, S_c 1X … 16X; bandwidth among 0.5,
1, 5, 10, 25 Gbit/s, changed every 20 iterations; 360,000 iterations in groups of 10; 8 workers. It names no start-up
of a block, so an environment has one of two that were measured. The wider protocol goes beyond that, since simulating
is cheap: 2 to 64 workers, stragglers, uneven links, second-order effects, and every second environment has a model of
its own, one of the three with other sizes and times.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from autobyte.config import Config, Space
from autobyte.features.runtime import State, Watch
from autobyte.features.vector import candidates, describe
from autobyte.job import Cluster, Job, Layer, Model
from autobyte.trace import Measurement

ENVIRONMENTS, WINDOWS, DWELL = 600, 60, 2  # 360,000 iterations; a bandwidth stays for two windows
RATES = tuple(gbit * 1.25e8 for gbit in (0.5, 1, 5, 10, 25))
PUBLISHED_WORKERS = 8
WORKERS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
UNSEEN_RATES = tuple(gbit * 1.25e8 for gbit in (2, 3, 8, 20))
UNSEEN_WORKERS = (5, 10, 20, 40)
PER_RATE = WINDOWS // len(RATES)  # windows, and so configs, at each bandwidth
VIEWS = 2  # of the same state: after one window under the default, and after two or three windows


@dataclass(frozen=True)
class StartUp:
    """What a block costs besides its bytes: time that it holds the link, per block and per hop, and latency (s)."""

    overhead_s: tuple[float, float]
    latency_s: float


#: US-Byte's authors measured 1.32 ms, in all, for an all-reduce of 8 workers under Horovod and NCCL. That 0.92 ms of
#: it hold the link and the rest is latency is this project's split, and the simulator's default. For NCCL over TCP, a
#: line through the times of single all-reduces of 4 ranks at 10 Gbit/s meets zero bytes at 0.26 ms (docs/gpu.md). It
#: is taken here for 8 workers and for servers, too, and holds the link.
START_UPS = {"usbyte": StartUp((500e-6, 30e-6), 30e-6), "nccl": StartUp((260e-6, 0.0), 0.0)}

Random = np.random.Generator
Array = npt.NDArray[np.float32]


class Simulate(Protocol):
    """What a window of a job shows, in virtual time."""

    def __call__(
        self, job: Job, config: Config, *, iterations: int, first: int, effects: Mapping[str, Any], seed: int
    ) -> Measurement:
        """Run some iterations."""
        ...


class Steady(Protocol):
    """The noise-free truth: time of a steady step (s)."""

    def __call__(self, job: Job, config: Config, *, effects: Mapping[str, Any]) -> float:
        """Settle, and take one step."""
        ...


@dataclass(frozen=True)
class SampledEnvironment:
    """A job at each of some bandwidths, and the second-order effects of the world it runs in."""

    number: int
    kind: str
    job: Job
    rates: tuple[float, ...]
    effects: Mapping[str, Any]
    seed: int

    def at(self, rate: float) -> Job:
        """The job while links carry `rate` (bytes/s); uneven links stay so."""
        cluster = self.job.cluster
        up = tuple(part * rate for part in cluster.up_bytes_per_s)
        return replace(self.job, cluster=replace(cluster, up_bytes_per_s=up, down_bytes_per_s=up))


@dataclass(frozen=True, eq=False)
class Groups:
    """Samples that share a state: G states, K configs each; NaN in `step_s` where there are fewer.

    Args:
        layer, bandwidth, static: of each state, shape [G, ROWS, .], [G, .], [G, .].
        candidate: shape [G, K, .].
        floor_s, step_s: closed form and observed mean step time (s), shape [G, K].
        samples: of a step of the whole job: V = samples / step_s; shape [G].
        environment: its number, by which splits are made, shape [G].
        kind: index into KINDS, shape [G].
    """

    layer: Array
    bandwidth: Array
    static: Array
    candidate: Array
    floor_s: Array
    step_s: Array
    samples: Array
    environment: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Any) -> Self:
        return type(self)(**{field.name: getattr(self, field.name)[index] for field in fields(self)})

    def of_kind(self, *kinds: str) -> Self:
        """Those of some kinds."""
        return self[np.isin(self.kind, [KINDS.index(kind) for kind in kinds])]

    @property
    def digest(self) -> str:
        """What names these samples."""
        whole = hashlib.sha256()
        for field in fields(self):
            whole.update(np.ascontiguousarray(getattr(self, field.name)).tobytes())
        return whole.hexdigest()[:16]

    @classmethod
    def join(cls, parts: Iterable[Self]) -> Self:
        """One after the other; shorter rows of configs are filled up."""
        known = list(parts)
        width = max(part.step_s.shape[1] for part in known)
        wide = [part._widened(width) for part in known]
        return cls(**{f.name: np.concatenate([getattr(part, f.name) for part in wide]) for f in fields(cls)})

    def _widened(self, width: int) -> Self:
        more = width - self.step_s.shape[1]
        return replace(
            self,
            candidate=np.pad(self.candidate, ((0, 0), (0, more), (0, 0))),
            floor_s=np.pad(self.floor_s, ((0, 0), (0, more)), constant_values=1.0),
            step_s=np.pad(self.step_s, ((0, 0), (0, more)), constant_values=np.nan),
        )


#: The paper's models, and those of their own, in wider environments; measured ones; jobs with the truth of the whole
#: grid; and the paper's environments.
KINDS = ("paper", "varied", "measured", "judged", "judged-unseen", "published")


def draw(number: int, models: Mapping[str, Model], *, seed: int, kind: str) -> SampledEnvironment:
    """Draw an environment; the same number and seed give the same one.

    Args:
        number: of the environment.
        models: to draw from, by name.
        seed: of all draws.
        kind: `published` has the paper's cluster; `paper` takes models as they are, `varied` changes
            them; `judged` ones are steady and have one rate.
    """
    random = np.random.default_rng([seed, number, KINDS.index(kind)])
    if kind == "published":
        return _published(number, models, random, seed=seed + number)
    unseen = kind == "judged-unseen"
    model = models[str(random.choice(sorted(models)))]
    if kind == "varied":
        model = _varied(model, random)
    workers = int(random.choice(UNSEEN_WORKERS if unseen else WORKERS))
    effects = _effects(random, workers) if random.random() < 0.5 else {}
    links = np.ones(workers)
    slowdown = np.ones(workers)
    if random.random() < 0.25:
        slowdown[random.integers(workers)] = random.uniform(1.1, 2.5)
    if random.random() < 0.15:
        links[random.integers(workers)] = random.uniform(0.3, 0.9)
    overhead = float(np.exp(random.normal(0, 0.7))) if random.random() < 0.5 else 1.0
    plain = Cluster.uniform(workers, 1.0, architecture=str(random.choice(("allreduce", "ps"))))
    per_block_s, per_hop_s = plain.overhead_s
    cluster = replace(
        plain,
        up_bytes_per_s=tuple(links.tolist()),
        down_bytes_per_s=tuple(links.tolist()),
        slowdown=tuple(slowdown.tolist()),
        overhead_s=(overhead * per_block_s, overhead * per_hop_s),
    )
    rates: tuple[float, ...] = RATES
    if kind.startswith("judged"):
        rates = (float(random.choice(UNSEEN_RATES if unseen else RATES)),)
    return SampledEnvironment(number, kind, Job(model, cluster), rates, effects, seed + number)


def _published(number: int, models: Mapping[str, Model], random: Random, *, seed: int) -> SampledEnvironment:
    """One of the paper's models on its cluster; nothing is hidden."""
    model = models[str(random.choice(sorted(models)))]
    start_up = START_UPS[str(random.choice(sorted(START_UPS)))]
    architecture = str(random.choice(("allreduce", "ps")))
    plain = Cluster.uniform(PUBLISHED_WORKERS, 1.0, architecture=architecture)
    cluster = replace(plain, overhead_s=start_up.overhead_s, latency_s=start_up.latency_s)
    return SampledEnvironment(number, "published", Job(model, cluster), RATES, {}, seed)


def _varied(model: Model, random: Random) -> Model:
    """The same layers with other sizes and times, as another batch, GPU or width would have them."""
    time, size = 10 ** random.uniform(-0.7, 0.7), 10 ** random.uniform(-0.7, 0.5)
    bend = random.normal(0, 0.7)  # front layers larger than back layers, or the other way round
    scaled = model.scaled(time=time)
    count = len(scaled.layers)

    def change(index: int, layer: Layer) -> Layer:
        factor = size * np.exp(bend * (2 * index / max(1, count - 1) - 1) + random.normal(0, 0.3))
        tensors = tuple(replace(t, numel=max(1, round(t.numel * factor))) for t in layer.tensors)
        forward, backward = np.exp(random.normal(0, 0.2, size=2))
        return replace(
            layer, tensors=tensors, forward_s=layer.forward_s * forward, backward_s=layer.backward_s * backward
        )

    layers = tuple(change(index, layer) for index, layer in enumerate(scaled.layers))
    return replace(scaled, name=f"{model.name}, varied", layers=layers)


def _effects(random: Random, workers: int) -> dict[str, Any]:
    """Second-order effects, each there or not; jitter on few workers only, since each is then simulated."""

    def sometimes(low: float, high: float) -> float:
        return float(random.uniform(low, high)) if random.random() < 0.4 else 0.0

    effects: dict[str, Any] = {
        "incast": sometimes(0.0, 0.03),
        "cross_traffic": sometimes(0.0, 0.3),
        "compute_slowdown": sometimes(0.0, 0.2),
        "wire_slowdown": sometimes(0.0, 0.2),
        "jitter": sometimes(0.0, 0.2) if workers <= 8 else 0.0,
    }
    if random.random() < 0.3:
        effects["inflight_bytes"] = float(2 ** random.uniform(22, 29))
    if random.random() < 0.3:
        small, large = random.uniform(0.5, 1.0), random.uniform(0.4, 1.0)
        effects["size_efficiency"] = ((65536.0, float(small)), (2097152.0, 1.0), (67108864.0, float(large)))
    return effects


def episode(environment: SampledEnvironment, simulate: Simulate, *, space: Space = Space()) -> Groups:  # noqa: B008
    """Train through changing bandwidths under random configs, and group what came by bandwidth.

    Half of the configs are drawn from the whole grid; of a varied environment the other half lies where optima do.
    """
    random = np.random.default_rng([environment.seed, 1])
    visits = random.permutation(np.repeat(np.arange(len(environment.rates)), PER_RATE // DWELL))
    windows: dict[int, list[Measurement]] = {index: [] for index in range(len(environment.rates))}
    for number, index in enumerate(np.repeat(visits, DWELL).tolist()):
        config = _any_config(random, space, near=environment.kind == "varied") if windows[index] else space.default
        job = environment.at(environment.rates[index])
        window = simulate(
            job,
            config,
            iterations=10,
            first=10 * number,
            effects=environment.effects,
            seed=environment.seed,
        )
        windows[index].append(window)
    return Groups.join(
        group(environment.job.model, shown, seen, number=environment.number, kind=environment.kind)
        for shown in windows.values()
        for seen in (shown[:1], [shown[0], *(shown[i] for i in random.permutation(range(1, len(shown)))[:2])])
    )


def judged(environment: SampledEnvironment, simulate: Simulate, steady: Steady, *, space: Space = Space()) -> Groups:  # noqa: B008
    """A window under the default, and the truth of every config of the grid."""
    job = environment.at(environment.rates[0])
    window = simulate(job, space.default, iterations=10, first=0, effects=environment.effects, seed=environment.seed)
    grid = space.grid()
    truth = np.array([steady(job, config, effects=environment.effects) for config in grid])
    state = Watch(job.model).add(window)
    return _group(state, grid, truth, number=environment.number, kind=environment.kind)


def group(
    model: Model, windows: Sequence[Measurement], seen: Sequence[Measurement], *, number: int, kind: str
) -> Groups:
    """Windows of one state as samples; the state is what some of them show."""
    watch = Watch(model)
    state = [watch.add(window) for window in seen][-1]
    step_s = np.array([window.mean_s for window in windows])
    return _group(state, [window.config for window in windows], step_s, number=number, kind=kind)


def measured(model: Model, windows: Sequence[Measurement], *, number: int) -> Groups:
    """Windows of a real run as samples: as many groups as the job had regimes."""
    watch, regimes = Watch(model), dict[int, list[Measurement]]()
    for window in windows:
        regimes.setdefault(watch.add(window).regime, []).append(window)
    return Groups.join(group(model, shown, shown[:1], number=number, kind="measured") for shown in regimes.values())


def digest(models: Mapping[str, Model]) -> str:
    """What names a set of models."""
    whole = [
        f"({key!r}, Model(name={one.name!r}, layers={one.layers!r}, batch_size={one.batch_size!r}))"
        for key, one in sorted(models.items())
    ]
    return hashlib.sha256(f"[{', '.join(whole)}]".encode()).hexdigest()[:16]


def _any_config(random: Random, space: Space, *, near: bool) -> Config:
    if near and random.random() < 0.5:
        return space.at([float(np.clip(random.normal(0.5, 0.15), 0, 1)), float(random.random())])
    grid = space.grid()
    return grid[int(random.integers(len(grid)))]


def _group(
    state: State, configs: Sequence[Config], step_s: npt.NDArray[np.float64], *, number: int, kind: str
) -> Groups:
    vector, asked = describe(state), candidates(state, configs)

    def row(values: npt.ArrayLike) -> Array:
        return np.asarray(values, dtype=np.float32)[None]

    return Groups(
        layer=row(vector.layer),
        bandwidth=row(vector.bandwidth),
        static=row(vector.static),
        candidate=row(asked.table),
        floor_s=row(asked.floor_s),
        step_s=row(step_s),
        samples=row(state.samples),
        environment=np.array([number]),
        kind=np.array([KINDS.index(kind)]),
    )
