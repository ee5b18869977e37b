"""How fast a job runs for good, and what that is compared with."""

from autobyte.bound import bound_s, gap_closed
from autobyte.config import Config
from autobyte.job import Job
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.policies import make_plan, space_of
from autobyte.scheduler.policies.ddp import BUCKETS
from autobyte.simulator import kernel
from autobyte.simulator.costs import all_alike
from autobyte.simulator.effects import PLAIN, Effects
from autobyte.simulator.simulation import Simulation

SETTLING, STEPS = 8, 24  # where workers differ: steps that do not count, and all of them


def settled(plan: Plan, *, effects: Effects = PLAIN) -> Simulation:
    """Run a plan until its last step is a steady one, without anything that is drawn at random.

    Identical workers at constant rates repeat their first step for ever; others settle first. Where those clip, the
    last step but one is the steady one.
    """
    iterations = 1 if all_alike(plan.job.cluster) else STEPS + plan.job.clips
    return kernel.simulate(plan, iterations=iterations, effects=effects.calm())


def steady_s(plan: Plan, *, effects: Effects = PLAIN) -> float:
    """Time of a steady step (s): the mean of those that have settled."""
    return steady_of(settled(plan, effects=effects))


def steady_of(run: Simulation) -> float:
    """Time of a steady step in a run that has settled (s).

    Where gradients are clipped, the last of several steps does not count: no next one is in its way.
    """
    steps = run.step_s
    return float(steps[SETTLING:STEPS].mean()) if len(steps) > 1 else float(steps[0])


def step_s(job: Job, config: Config, *, effects: Effects = PLAIN) -> float:
    """Time of a steady step under a config (s)."""
    return steady_s(make_plan(job, config), effects=effects)


def fifo_s(job: Job, *, effects: Effects = PLAIN) -> float:
    """Time of a steady step when nothing overlaps: AutoByte's baseline (s)."""
    return step_s(job, space_of("fifo", job).default, effects=effects)


def reference_s(job: Job, *, effects: Effects = PLAIN) -> float:
    """Time of a steady step of DDP at its best bucket out of 1, 4, 25 and 100 MiB (s)."""
    return min(step_s(job, bucket, effects=effects) for bucket in BUCKETS)


def gap_closed_by(job: Job, seconds: float, *, effects: Effects = PLAIN) -> float | None:
    """The share of the gap between DDP at its best and the bound that a step time closes; None if there is none."""
    return gap_closed(seconds, reference_s(job, effects=effects), bound_s(job))
