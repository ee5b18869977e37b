"""The reference simulator, compiled: the same events in the same order with the same arithmetic.

`simulate` here takes and returns what `simulate.simulate` does, traces apart; property tests hold the two equal.
The event loop, over arrays, is in `loop.py`; here is what lays them out.
"""

from functools import lru_cache

import numpy as np

from autobyte.errors import InputError
from autobyte.job import Floats, Job, Model
from autobyte.scenario import STEADY, Scenario
from autobyte.scheduler.block import Tiling
from autobyte.scheduler.plan import CreditRule, Plan
from autobyte.scheduler.sends import half_of
from autobyte.scheduler.tiling import whole_backwards
from autobyte.simulator import loop
from autobyte.simulator.costs import WindowCosts, of_blocks
from autobyte.simulator.effects import PLAIN, Effects
from autobyte.simulator.simulation import Simulation


def simulate(
    plan: Plan,
    *,
    iterations: int = 1,
    first: int = 0,
    scenario: Scenario = STEADY,
    effects: Effects = PLAIN,
    seed: int = 0,
) -> Simulation:
    """Run a plan for some iterations and say what happened; see `autobyte.simulator.simulate`."""
    if iterations < 1:
        raise InputError(f"iterations must be at least 1, got {iterations}")
    costs = WindowCosts.of(plan, iterations=iterations, first=first, scenario=scenario, effects=effects, seed=seed)
    table = _table(plan.tiling)
    out = loop.run(table, _compute(plan.job.model), _rules(plan, plan.job), _costs(costs))
    if plan.job.cluster.servers:
        up_busy_s, down_busy_s = out.up_busy_s, out.down_busy_s[costs.link]
    else:
        up_busy_s = down_busy_s = np.full(costs.classes, out.up_busy_s[0])  # one pipe
    ready_s = out.ready_s[table.block_tensors]
    if len(ready_s):
        ready_s = np.maximum.reduceat(ready_s, table.block_edges[:-1])
    return Simulation(
        plan=plan,
        first=first,
        step_s=np.diff(out.ends_s.max(axis=1), prepend=0.0),
        worker_class=costs.worker_class,
        forward_s=out.forward_s / iterations,
        backward_s=out.backward_s / iterations,
        wait_s=out.wait_s / iterations,
        up_busy_s=up_busy_s,
        down_busy_s=down_busy_s,
        order=out.order,
        ready_s=ready_s,
        start_s=out.start_s,
        done_s=out.done_s,
        sends=out.sends if plan.job.cluster.servers else out.sends[:1].repeat(costs.classes, axis=0),
    )


class Repeated:
    """Runs of one job, plan after plan, at rates that stay and without effects: all else is worked out once.

    Args:
        job: what is trained on what, whatever job a plan was made for.
        layers_s: time of every layer forward, and backward (s), in place of the model's; shape [2, layers].
        iterations: of every run.

    Raises:
        InputError: fewer than one iteration.

    >>> runs = Repeated(job, layers_s, iterations=1)
    >>> [runs.step_s(make_plan(job, config)) for config in Space().grid()]
    """

    def __init__(self, job: Job, layers_s: Floats, *, iterations: int) -> None:
        if iterations < 1:
            raise InputError(f"iterations must be at least 1, got {iterations}")
        forward_s, backward_s = np.ascontiguousarray(layers_s)
        self._job = job
        self._compute = loop.Compute(forward_s, backward_s, float(forward_s.sum() + backward_s.sum()))
        whole = whole_backwards(job.gradients)
        tilings = (whole, whole.halved) if job.cluster.servers else (whole, whole)
        plans = (Plan(job, tiling) for tiling in tilings)
        self._costs, self._halved_costs = (_costs(WindowCosts.of(plan, iterations=iterations)) for plan in plans)
        self._blocks: dict[Tiling, tuple[Floats, Floats, Floats]] = {}

    def step_s(self, plan: Plan, *, stretch: float = 1.0) -> float:
        """Time of the last step (s).

        Args:
            plan: of these gradients.
            stretch: how much longer bytes take than the cluster says.

        Raises:
            InputError: the plan is of other gradients.
        """
        tiling = plan.tiling
        if tiling.gradients is not self._job.gradients:
            raise InputError(f"the plan is not of the gradients of '{self._job.model.name}'")
        if tiling not in self._blocks:
            self._blocks[tiling] = of_blocks(self._job.cluster, tiling, PLAIN)
        hold_s, latency_s, factor = self._blocks[tiling]
        costs = self._costs if tiling.gathers is None else self._halved_costs
        costs = costs._replace(ring_hold_s=hold_s, latency_s=latency_s, stretch=factor * stretch)
        return float(loop.last_step_s(_table(tiling), self._compute, _rules(plan, self._job), costs))


@lru_cache(maxsize=256)
def _table(tiling: Tiling) -> loop.Table:
    tensor_blocks, tensor_edges = tiling.by_tensor
    block, tensor = tiling.pairs
    block_edges = np.searchsorted(block, np.arange(len(tiling) + 1))
    return loop.Table(
        tiling.nbytes,
        tiling.order,
        tiling.rank,
        tiling.waits,
        tiling.follower,
        np.full(len(tiling), -1) if tiling.gathers is None else tiling.gathers,
        tensor_blocks,
        tensor_edges,
        np.ascontiguousarray(tensor),
        block_edges,
        tiling.gradients.layer,
    )


def _compute(model: Model) -> loop.Compute:
    return loop.Compute(model.forward_s, model.backward_s, model.compute_s)


def _rules(plan: Plan, job: Job) -> loop.Rules:
    return loop.Rules(
        -1 if plan.credit_bytes is None else plan.credit_bytes,
        plan.rule is CreditRule.HARD,
        loop.OVERLAPS[plan.overlap],
        np.empty(0, dtype=np.int64) if plan.sequence is None else plan.sequence,
        job.accumulation,
        plan.awaited_scatters,
        job.cluster.servers == 0,
        plan.tiling.mean_block_bytes / 2,
        half_of(plan.credit_bytes),
    )


def _costs(costs: WindowCosts) -> loop.Costs:
    flat, effects = np.ascontiguousarray, costs.effects  # another layout would be another compilation
    return loop.Costs(
        link=costs.link,
        compute=flat(costs.compute),
        up=flat(costs.up_bytes_per_s),
        down=flat(costs.down_bytes_per_s),
        ring_s_per_byte=flat(costs.ring_s_per_byte),
        push_up=flat(costs.push_up_s_per_byte),
        push_down=flat(costs.push_down_s_per_byte),
        pull_up=flat(costs.pull_up_s_per_byte),
        pull_down=flat(costs.pull_down_s_per_byte),
        own_pull_up=flat(costs.own_pull_up_s_per_byte),
        own_pull_hold_s=flat(costs.own_pull_hold_s),
        serves=costs.serves,
        link_serves=costs.link_serves,
        push_hold_s=costs.push_hold_s,
        stretch=costs.stretch,
        ring_hold_s=costs.ring_hold_s,
        latency_s=costs.latency_s,
        pull_hold_s=float(costs.pull_hold_s),
        inflight_bytes=float(effects.inflight_bytes),
        sharing=int(effects.sharing),
        compute_slowdown=float(effects.compute_slowdown),
        wire_slowdown=float(effects.wire_slowdown),
    )
