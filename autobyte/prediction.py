"""What the twin is handed: step times predicted by simulation, from statistics that a running job shows."""

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np

from autobyte.config import Config
from autobyte.job import Cluster, Floats, Job, Layer, Model
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.policies import POLICIES, make_plan
from autobyte.simulator import kernel
from autobyte.tuners.twin.calibration import JobCalibration
from autobyte.tuners.twin.windows import JobState, JobWindow, Load, nominal_s

ALIKE = 0.1  # workers whose times, or links whose rates, differ by less count as alike
SAME = 0.01  # relative, of what a block costs: windows are as they were
SETTLING = 3  # steps until workers that differ have found their rhythm


class Simulated:
    """Predicts steps of a job from what its owner knows, and from a state that was measured.

    The owner knows the model's tensors, the policy, how often gradients are accumulated and what travels as what, and
    nothing about workers or links. A block's cost is nominal (`Cluster`'s default) until the twin has measured it.
    The plain model is simulated, without second-order effects.

    Args:
        job: whose model, accumulation and wire dtype are used, and nothing of its cluster.
    """

    def __init__(self, job: Job) -> None:
        self._job = replace(job, cluster=Cluster(1))
        self._plans: dict[Config, Plan] = {}  # of the job as it is known without a state
        self._latest: tuple[JobState, Job, kernel.Repeated] | None = None
        self._timed: tuple[JobState, Model] | None = None  # with the times of a state
        self._ran: WeakKeyDictionary[JobWindow, tuple[float, float]] = WeakKeyDictionary()  # under an overhead

    def load(self, config: Config, *, workers: int, servers: int) -> Load:
        """What a step puts on the link of each host under a config."""
        plan = self._plan(config)
        cluster = Cluster(workers, servers)
        total = plan.job.gradients.total_bytes
        return Load(
            blocks=len(plan.tiling),
            block_bytes=plan.tiling.mean_block_bytes,
            total_bytes=total,
            nbytes=cluster.traffic * total,
            block_s=nominal_s(workers),
        )

    def step_s(
        self, state: JobState, configs: Sequence[Config], stretch: Floats, past: JobCalibration | None = None
    ) -> Floats:
        """Return the time of a steady step under each config (s), shape [configs].

        Args:
            state: of workers and links.
            configs: what is to be predicted.
            stretch: how much longer bytes take than the state says, shape [configs].
            past: what ran; a simulation does not need it.
        """
        if self._latest is None or self._latest[0] is not state:
            job = replace(self._job, cluster=_cluster(state))
            alike = bool((job.cluster.table == job.cluster.table[:, :1]).all())
            runs = kernel.Repeated(job, _layers_s(state), iterations=1 if alike else SETTLING)
            self._latest = state, job, runs
        _, job, runs = self._latest
        return np.array(
            [
                runs.step_s(self._plan_in(state, job, config, factor), stretch=factor)
                for config, factor in zip(configs, stretch.tolist(), strict=True)
            ]
        )

    def ran_s(self, past: JobCalibration, now: JobState) -> Floats:
        """Return what the simulation says of the windows that ran, each in its own state (s), shape [windows]."""
        return np.array([self._ran_s(window, past) for window in past.windows])

    def _ran_s(self, window: JobWindow, past: JobCalibration) -> float:
        """Step time of one of them (s), simulated again where a block's cost is not what it was."""
        known = self._ran.get(window)
        if known is None or abs(known[0] / past.overhead - 1) > SAME:
            known = past.overhead, float(self.step_s(past.of(window), [window.config], np.ones(1))[0])
            self._ran[window] = known
        return max(known[1], 1e-12)

    def _plan_in(self, state: JobState, job: Job, config: Config, factor: float) -> Plan:
        """What the config's policy makes of a state with links that are slower by a factor."""
        if POLICIES[config.policy].by_gradients:
            return self._plan(config)
        if self._timed is None or self._timed[0] is not state:
            self._timed = state, _model(job.model, state)
        return make_plan(replace(job, model=self._timed[1], cluster=_slowed(job.cluster, factor)), config)

    def _plan(self, config: Config) -> Plan:
        if config not in self._plans:
            self._plans[config] = make_plan(self._job, config)
        return self._plans[config]


def _slowed(cluster: Cluster, factor: float) -> Cluster:
    return replace(
        cluster,
        up_bytes_per_s=tuple(rate / factor for rate in cluster.up_bytes_per_s),
        down_bytes_per_s=tuple(rate / factor for rate in cluster.down_bytes_per_s),
    )


def _layers_s(state: JobState) -> Floats:
    """Forward and backward, the mean of the workers' (s), shape [2, layers]; how they differ is the cluster's."""
    return np.array([state.forward_s.mean(axis=0), state.backward_s.mean(axis=0)])


def _model(model: Model, state: JobState) -> Model:
    """The model with these times."""
    layers = [
        Layer(layer.name, layer.tensors, forward_s, backward_s)
        for layer, forward_s, backward_s in zip(model.layers, *_layers_s(state).tolist(), strict=True)
    ]
    return replace(model, layers=tuple(layers))


def _cluster(state: JobState) -> Cluster:
    """Workers and links as they were measured; those that are nearly alike are alike, and on a ring all are.

    A ring waits for the slowest worker and runs at the rate of the slowest link, whoever they are.
    """
    compute = (state.forward_s + state.backward_s).sum(axis=1)
    slowdown = compute / compute.mean() if compute.mean() > 0 else np.ones(len(compute))
    up, down = state.up_bytes_per_s, state.down_bytes_per_s
    if not state.servers:
        slowdown, up, down = slowdown.max(keepdims=True), up.min(keepdims=True), down.min(keepdims=True)
    once, hop = Cluster(1).overhead_s
    return Cluster(
        state.workers,
        state.servers,
        tuple(_grouped(up, least=True).tolist()),
        tuple(_grouped(down, least=True).tolist()),
        tuple(_grouped(slowdown, least=False).tolist()),
        overhead_s=(state.overhead * once, state.overhead * hop),
    )


def _grouped(values: Floats, *, least: bool) -> Floats:
    """Values in groups within a tenth of each other, each its group's slowest."""
    order = np.argsort(values)
    grouped, first = values.copy(), 0
    for place in range(1, len(values) + 1):
        if place == len(values) or values[order[place]] > (1 + ALIKE) * values[order[first]]:
            group = order[first:place]
            grouped[group] = values[group].min() if least else values[group].max()
            first = place
    return grouped
