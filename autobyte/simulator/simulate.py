"""The readable reference: the scheduler's own core and runner on modelled links, in virtual time."""

from collections.abc import Collection, Iterator
from itertools import pairwise

import numpy as np

from autobyte.config import BYTESCHEDULER_DEFAULT, Config
from autobyte.errors import InputError
from autobyte.job import Floats, Job
from autobyte.scenario import STEADY, Scenario
from autobyte.scheduler.block import Block
from autobyte.scheduler.engines.base import Done, Engine, Sent
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.policies import check_sizes, make_plan
from autobyte.scheduler.runner import Runner
from autobyte.scheduler.sends import sends
from autobyte.simulator.clock import VirtualClock
from autobyte.simulator.costs import WindowCosts
from autobyte.simulator.effects import PLAIN, Effects
from autobyte.simulator.network import Ring, Servers, SimulatedNetwork
from autobyte.simulator.simulation import Simulation
from autobyte.simulator.worker import Worker
from autobyte.trace import Span, Trace


def simulate(
    job: Job | Plan,
    config: Config | None = None,
    *,
    iterations: int = 1,
    first: int = 0,
    scenario: Scenario = STEADY,
    effects: Effects = PLAIN,
    seed: int = 0,
    trace: bool = False,
) -> Simulation:
    """Run a job under a config, or a plan, for some iterations and say what happened.

    A step is a backward pass with its communication and the forward pass that waits for it. All workers begin the
    first one together, at a step boundary, with nothing under way; identical workers at constant rates therefore
    repeat the first step for ever.

    Args:
        job: what is trained, and on what; or a plan, which has its job.
        config: under which the job runs; a plan has been made of one.
        iterations: how many steps.
        first: the number of the first, for the scenario and for what is drawn at random.
        scenario: what changes meanwhile; the number of workers may not.
        effects: second-order effects.
        seed: of jitter and cross traffic; they depend on it and on the iteration alone.
        trace: record spans.

    Raises:
        InputError: no job, a job without a config, a plan with one, a config with sizes that its policy does not
            have, fewer than one iteration, or a scenario that changes the number of workers.

    >>> simulate(job, Config(4_000_000, 16_000_000)).samples_per_s
    """
    if not isinstance(job, Job | Plan) or not isinstance(config, Config | None):
        raise InputError(f"say simulate(Job(…), Config(…)), got {job!r} and {config!r}")
    if isinstance(job, Plan) != (config is None):
        raise InputError("say simulate(job, config), or simulate(plan)")
    if config is not None:
        check_sizes(config, "the config")
    plan = job if isinstance(job, Plan) else make_plan(job, config or BYTESCHEDULER_DEFAULT)
    if iterations < 1:
        raise InputError(f"iterations must be at least 1, got {iterations}")
    costs = WindowCosts.of(plan, iterations=iterations, first=first, scenario=scenario, effects=effects, seed=seed)
    return _SimulationRun(plan, costs, Trace() if trace else None).result(first)


class _SimulationRun:
    """One simulation: workers, a network, a runner for each group of workers that share a schedule."""

    def __init__(self, plan: Plan, costs: WindowCosts, trace: Trace | None) -> None:
        self._plan = plan
        self._costs = costs
        self._trace = trace
        self._iteration = 0  # the newest that a worker has started
        self._clock = VirtualClock()
        self._ends_s = np.zeros((costs.iterations, costs.classes))
        self._network: SimulatedNetwork = (Servers if plan.job.cluster.servers else Ring)(
            self._clock, costs, computing=lambda c: self._workers[c].computing
        )
        self._group_of = {c: g for g, classes in enumerate(self._network.groups) for c in classes}
        self._complete = [[0] * len(plan.job.gradients) for _ in self._network.groups]
        self._over = [0] * len(self._network.groups)
        self._first_worker = _Log(self._network.engine(0))
        self._blocks = trace or Trace()
        self._blocks.names.update(_names(costs))
        self._runners = [self._runner(group) for group in range(len(self._network.groups))]
        self._workers = [self._worker(c) for c in range(costs.classes)]

    def result(self, first: int) -> Simulation:
        for worker in self._workers:
            worker.start_step(0)
        self._clock.run()
        steps, each = self._costs.iterations, range(self._costs.classes)
        last = {span.block: span for span in self._blocks.blocks if (span.rank, span.step) == (0, steps - 1)}
        spans = [last[block] for block in range(len(self._plan.tiling))]
        links = [(self._network.up(c), self._network.down(c)) for c in each]
        if self._trace is not None:
            self._trace.steps += self._steps()
        return Simulation(
            plan=self._plan,
            first=first,
            step_s=np.diff(self._ends_s.max(axis=1), prepend=0.0),
            worker_class=self._costs.worker_class,
            forward_s=np.array([self._workers[c].forward_s for c in each]) / steps,
            backward_s=np.array([self._workers[c].backward_s for c in each]) / steps,
            wait_s=np.array([self._workers[c].wait_s for c in each]) / steps,
            up_busy_s=np.array([up.busy_s for up, _ in links]),
            down_busy_s=np.array([down.busy_s for _, down in links]),
            order=np.array(self._first_worker.started[-len(spans) :] if spans else [], dtype=np.int64),
            ready_s=np.array([span.ready_s for span in spans]),
            start_s=np.array([span.start_s for span in spans]),
            done_s=np.array([span.done_s for span in spans]),
            sends=np.array([self._sends(c) for c in each]),
            trace=self._trace,
        )

    def _steps(self) -> Iterator[Span]:
        for leader, ends_s in zip(self._costs.leader.tolist(), self._ends_s.T.tolist(), strict=True):
            for step, (start_s, stop_s) in enumerate(pairwise([0.0, *ends_s])):
                yield Span(leader, step, "step", -1, "", start_s, stop_s)

    def _sends(self, worker_class: int) -> Floats:
        sent, plan = self._network.sent(worker_class), self._plan
        columns = (np.array(column, dtype=float) for column in (sent.nbytes, sent.seconds, sent.in_flight))
        return sends(*columns, large=plan.tiling.mean_block_bytes / 2, credit_bytes=plan.credit_bytes)

    def gradient(self, worker_class: int, tensor: int) -> None:
        """Pass a gradient on when every class of the group has it."""
        group = self._group_of[worker_class]
        self._complete[group][tensor] += 1
        if self._complete[group][tensor] == len(self._network.groups[group]):
            self._complete[group][tensor] = 0
            self._runners[group].ready(tensor)

    def backward_over(self, worker_class: int, iteration: int) -> None:
        """Begin the next iteration if this is the first worker to do so; close the step if it is the last."""
        if iteration == self._iteration:
            self._iteration += 1
            self._network.begin(self._iteration)
        group = self._group_of[worker_class]
        self._over[group] += 1
        if self._over[group] == len(self._network.groups[group]):
            self._over[group] = 0
            self._runners[group].end_step()

    def step_over(self, worker_class: int, iteration: int) -> None:
        """Note the time, and go on."""
        self._ends_s[iteration, worker_class] = self._clock.now
        if iteration + 1 < self._costs.iterations:
            self._workers[worker_class].start_step(iteration + 1)

    def _runner(self, group: int) -> Runner:
        def arrived(tensors: Collection[int]) -> None:
            for tensor in tensors:
                for c in self._network.groups[group]:
                    self._workers[c].arrived(tensor)

        def reduced() -> None:
            for c in self._network.groups[group]:
                self._workers[c].reduced()

        first = group == 0
        return Runner(
            self._plan,
            self._first_worker if first else self._network.engine(group),
            clock=self._clock,
            arrived=arrived,
            failed=_never,
            reduced=reduced if self._plan.awaited_scatters else _nothing,
            trace=self._blocks if first or self._trace else None,
            rank=int(self._costs.leader[self._network.groups[group][0]]),
        )

    def _worker(self, c: int) -> Worker:
        return Worker(
            self._clock,
            self._plan,
            self._costs,
            c,
            watcher=self,
            backlog_s=lambda: self._network.up(c).backlog_s,
            trace=self._trace,
        )


class _Log(Engine):
    """An engine that notes in which order blocks were started."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.started: list[int] = []

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        self.started.append(block.index)
        self._engine.start(block, sent, done)

    def close(self) -> None:
        self._engine.close()


def _never(block: Block, error: Exception) -> None:
    raise AssertionError(f"a modelled network cannot fail, yet block {block.index} did") from error


def _nothing() -> None:
    """Nobody waits for it."""


def _names(costs: WindowCosts) -> dict[int, str]:
    """What a trace calls each class of workers: the first of them, and how many are like it."""
    members = [np.flatnonzero(costs.worker_class == c) for c in range(costs.classes)]
    return {int(m[0]): f"rank {m[0]}" + (f", and {len(m) - 1} like it" if len(m) > 1 else "") for m in members}
