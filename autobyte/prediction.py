"""What the twin is handed: step times predicted by simulation, from statistics that a running job shows."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autobyte.config import Config
from autobyte.job import Cluster, Floats, Job, Layer, Model
from autobyte.scheduler.policies import make_plan
from autobyte.simulator import kernel
from autobyte.tuners.twin_windows import JobState, Load, nominal_s

ALIKE = 0.1  # workers whose times, or links whose rates, differ by less count as alike
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
        self._state: JobState | None = None
        self._described = Cluster(1), job.model  # by the state

    def load(self, config: Config, *, workers: int, servers: int) -> Load:
        """What a step puts on the link of each host under a config."""
        plan = make_plan(self._job, config)
        cluster = Cluster(workers, servers)
        total = plan.job.gradients.total_bytes
        return Load(
            blocks=len(plan.tiling),
            block_bytes=plan.tiling.mean_block_bytes,
            total_bytes=total,
            nbytes=cluster.traffic * total,
            block_s=nominal_s(workers),
        )

    def step_s(self, state: JobState, configs: Sequence[Config], stretch: Floats) -> Floats:
        """Time of a steady step under each config (s), shape [configs].

        Args:
            state: of workers and links.
            configs: what is to be predicted.
            stretch: how much longer bytes take than the state says, shape [configs].
        """
        if state is not self._state:
            self._described, self._state = (_cluster(state), _model(self._job.model, state)), state
        cluster, model = self._described
        alike = len({*zip(cluster.slowdown, cluster.up_bytes_per_s, cluster.down_bytes_per_s, strict=True)}) == 1
        seconds = np.empty(len(configs))
        for index, (config, factor) in enumerate(zip(configs, stretch.tolist(), strict=True)):
            slower = replace(
                cluster,
                up_bytes_per_s=tuple(rate / factor for rate in cluster.up_bytes_per_s),
                down_bytes_per_s=tuple(rate / factor for rate in cluster.down_bytes_per_s),
            )
            plan = make_plan(replace(self._job, model=model, cluster=slower), config)
            run = kernel.simulate(plan, iterations=1 if alike else SETTLING)
            seconds[index] = run.step_s[-1]
        return seconds


def _model(model: Model, state: JobState) -> Model:
    """The model with the mean of its workers' layer times; how they differ is the cluster's."""
    forward_s, backward_s = state.forward_s.mean(axis=0).tolist(), state.backward_s.mean(axis=0).tolist()
    layers = [
        Layer(layer.name, layer.tensors, forward, backward)
        for layer, forward, backward in zip(model.layers, forward_s, backward_s, strict=True)
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
