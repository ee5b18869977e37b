"""What a job could gain from scheduling, and from what: known before a line of a training script is changed."""

from dataclasses import dataclass, replace
from typing import Any

from autobyte.bound import bound_s, wire_s
from autobyte.config import Config
from autobyte.job import Job
from autobyte.scheduler.policies.ddp import BUCKETS
from autobyte.simulator.choose import MARGIN, candidates
from autobyte.simulator.effects import PLAIN, Effects
from autobyte.simulator.landscape import survey
from autobyte.simulator.steady import step_s

GAIN = 0.05  # over DDP at its best; less is not worth a change
BAND = (0.5, 3.0)  # communication over compute: outside, no order of sending helps much
DDP_THREADS = 2  # of gloo, where torch.distributed makes the group


@dataclass(frozen=True)
class PolicyPrediction:
    """The best that a policy was predicted to reach."""

    name: str
    config: Config
    step_s: float


@dataclass(frozen=True)
class Diagnosis:
    """What limits a job, and what would be gained. Predicted, but for what went into the job.

    Args:
        compute_s: of a step of the slowest worker (s).
        wire_s: all bytes of a step on the slowest link, nothing else (s).
        bound_s: no schedule takes less (s).
        ddp: DDP's best bucket, and its step.
        policies: each at its best, the fastest first.
        bf16_ddp_s, bf16_s: DDP and the fastest policy with bf16 on the wire (s); None if halves travel already.
    """

    compute_s: float
    wire_s: float
    bound_s: float
    ddp: PolicyPrediction
    policies: tuple[PolicyPrediction, ...]
    bf16_ddp_s: float | None
    bf16_s: float | None

    @property
    def best(self) -> PolicyPrediction:
        """The fastest policy."""
        return self.policies[0]

    @property
    def ratio(self) -> float:
        """Communication over compute."""
        return self.wire_s / self.compute_s if self.compute_s else float("inf")

    @property
    def in_band(self) -> bool:
        """Whether communication and compute are near enough to each other for scheduling to matter."""
        return BAND[0] <= self.ratio <= BAND[1]

    @property
    def exposed_s(self) -> float:
        """What of DDP's step is neither compute nor hidden behind it (s)."""
        return max(0.0, self.ddp.step_s - self.compute_s)

    @property
    def gain(self) -> float:
        """How much faster than DDP at its best, same dtype on the wire."""
        return self.ddp.step_s / self.best.step_s - 1

    @property
    def worthwhile(self) -> bool:
        """Whether there is a gain to be had; the best of many predictions is a little too good, hence the margin."""
        return self.gain >= GAIN + MARGIN

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON."""
        ddp_s = self.ddp.step_s
        return {
            "verdict": "gain" if self.worthwhile else "keep DDP",
            "gain": self.gain,
            "compute_s": self.compute_s,
            "wire_s": self.wire_s,
            "wire_over_compute": self.ratio if self.compute_s else None,
            "in_band": self.in_band,
            "exposed_s": self.exposed_s,
            "bound_s": self.bound_s,
            "most_gain": ddp_s / self.bound_s - 1,
            "ddp": {"config": self.ddp.config.to_json(), "step_s": ddp_s},
            "policies": [
                {
                    "policy": policy.name,
                    "config": policy.config.to_json(),
                    "step_s": policy.step_s,
                    "gain": ddp_s / policy.step_s - 1,
                }
                for policy in self.policies
            ],
            "bf16": None
            if self.bf16_s is None or self.bf16_ddp_s is None
            else {
                "ddp_step_s": self.bf16_ddp_s,
                "step_s": self.bf16_s,
                "gain_ddp": ddp_s / self.bf16_ddp_s - 1,
                "gain": ddp_s / self.bf16_s - 1,
            },
        }


def diagnose(
    job: Job,
    *,
    effects: Effects = PLAIN,
    ddp_job: Job | None = None,
    ddp_effects: Effects | None = None,
    among: tuple[Config, ...] | None = None,
) -> Diagnosis:
    """Predict DDP and every policy at its best.

    Args:
        job: as it was measured.
        effects: second-order effects of its engine.
        ddp_job, ddp_effects: what DDP runs on, where that is another architecture; DDP is always all-reduce.
        among: what policies to try; by default all, at the configs that `choose` tries.
    """
    reference, ddp_effects = ddp_job or job, ddp_effects or effects
    if reference.cluster.servers:
        reference = replace(reference, cluster=replace(reference.cluster, servers=0))
    ddp_effects = replace(ddp_effects, sharing=min(DDP_THREADS, ddp_effects.sharing))
    configs = candidates(job) if among is None else among
    land = survey(job, configs, effects=effects)
    best: dict[str, PolicyPrediction] = {}
    for index in land.step_s.argsort(kind="stable").tolist():
        config = land.configs[index]
        best.setdefault(config.policy, PolicyPrediction(config.policy, config, float(land.step_s[index])))
    buckets = survey(reference, BUCKETS, effects=ddp_effects)
    policies = tuple(best.values())
    halved = [replace(each, wire_dtype="bfloat16") for each in (job, reference)]
    smaller = int(job.gradients.itemsize.max(initial=0)) > 2
    return Diagnosis(
        compute_s=job.accumulation * job.model.compute_s * max(job.cluster.slowdown),
        wire_s=wire_s(job),
        bound_s=bound_s(job),
        ddp=PolicyPrediction("ddp", buckets.best, buckets.best_s),
        policies=policies,
        bf16_ddp_s=min(step_s(halved[1], bucket, effects=ddp_effects) for bucket in BUCKETS) if smaller else None,
        bf16_s=min(step_s(halved[0], policy.config, effects=effects) for policy in policies) if smaller else None,
    )
