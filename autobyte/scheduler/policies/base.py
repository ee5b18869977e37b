"""The interface of policies, which decide how gradients are cut, fused and ordered."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from autobyte.config import Config, Space
from autobyte.errors import InputError, unknown
from autobyte.job import Job
from autobyte.registry import Registry
from autobyte.scheduler.plan import Plan
from autobyte.units import GIB, format_bytes


class Policy(ABC):
    """Makes a plan from a job and a config.

    >>> @Policy.register("mine")
    ... class Mine(Policy):
    ...     def plan(self, job, config): ...
    ...     def space(self, job): ...
    """

    sizes: ClassVar[tuple[str, ...]] = ("partition", "credit")  #: of these, what a plan depends on
    knobs: ClassVar[tuple[str, ...]] = ()  #: of its own, beyond partition and credit
    by_gradients: ClassVar[bool] = (
        False  #: plans depend on the gradients alone; a subclass that overrides `plan` says it again
    )

    def __init_subclass__(cls) -> None:
        if "plan" in vars(cls) and "by_gradients" not in vars(cls):
            cls.by_gradients = False

    @abstractmethod
    def plan(self, job: Job, config: Config) -> Plan:
        """Make the plan. Pure: the same inputs give the same plan on every rank."""

    @abstractmethod
    def space(self, job: Job) -> Space:
        """Return what tuners may search, with a default config that names this policy."""

    @classmethod
    def register(cls, name: str) -> "Callable[[type[Policy]], type[Policy]]":
        """Decorate a class to add it under a name; it shadows `ABCMeta.register` on purpose."""
        return POLICIES.register(name)


POLICIES: Registry[Policy] = Registry(
    "policy",
    {
        "fifo": "autobyte.scheduler.policies.fifo:Fifo",
        "wfbp": "autobyte.scheduler.policies.wfbp:Wfbp",
        "ddp": "autobyte.scheduler.policies.ddp:Ddp",
        "p3": "autobyte.scheduler.policies.p3:P3Policy",
        "bytescheduler": "autobyte.scheduler.policies.bytescheduler:ByteScheduler",
        "mgwfbp": "autobyte.scheduler.policies.mgwfbp:MgWfbp",
        "horovod": "autobyte.scheduler.policies.horovod:Horovod",
        "tictac": "autobyte.scheduler.policies.tictac:TicTac",
        "megatron": "autobyte.scheduler.policies.megatron:Megatron",
        "dear": "autobyte.scheduler.policies.dear:Dear",
        "usbyte": "autobyte.scheduler.policies.usbyte:UsByte",
    },
    group="autobyte.policies",
)


def make_plan(job: Job, config: Config) -> Plan:
    """The plan of the config's own policy, as `Plan.clipped` changes it where the job clips gradients.

    Raises:
        InputError: no such policy, or it has no such knob.
    """
    policy = POLICIES[config.policy]()
    for name in config.knobs:
        if name not in policy.knobs:
            raise unknown(f"knob of {config.policy}", name, policy.knobs)
    plan = policy.plan(job, config)
    return plan.clipped() if job.clips else plan


def space_of(policy: str, job: Job) -> Space:
    """What a policy lets tuners search on a job.

    Raises:
        InputError: no such policy, or its space is of another one, which would then run in its place.
    """
    space = POLICIES[policy]().space(job)
    if space.default.policy != policy:
        raise InputError(
            f"policy '{policy}': the default config of its space() is of '{space.default.policy}', which would run "
            f"instead; write Config(…, policy='{policy}') there"
        )
    return space


def check_sizes(config: Config, what: str = "config=") -> None:
    """Refuse sizes that the policy does not look at.

    A `Config` has both sizes, whatever its policy. So one of a policy without a credit has the partition's size
    there, and one of a policy with neither is `Config(1, 1, …)`, or what `no_knobs` has.

    Args:
        config: of a policy that is known.
        what: what the user calls it.

    Raises:
        InputError: a credit that is not the partition, or a partition, that changes nothing.
    """
    policy, size, credit = config.policy, config.partition_bytes, config.credit_bytes
    sizes = POLICIES[policy].sizes
    if not sizes and (size, credit) not in ((1, 1), (GIB, GIB)):
        raise InputError(
            f"policy '{policy}' has no partition and no credit, but {what} has {config.label}: leave it out, or say "
            f"Config(1, 1, '{policy}')"
        )
    if sizes == ("partition",) and size != credit:
        raise InputError(
            f"policy '{policy}' has no credit, but {what} has {config.label}: say Config({size}, {size}, '{policy}')"
        )


def label_of(config: Config) -> str:
    """The config's label without sizes that its policy does not look at; empty if nothing is left.

    A policy that is not known here, because its plugin is not loaded, looks at both.

    >>> label_of(Config(25_000_000, 25_000_000, "ddp")), label_of(Config(1, 1, "fifo"))
    ('⟨25 MB⟩', '')
    """
    sizes = POLICIES[config.policy].sizes if config.policy in POLICIES else Policy.sizes
    if "credit" in sizes:
        return config.label
    left = [format_bytes(config.partition_bytes)] if sizes else []
    left += [f"{name}={value:g}" for name, value in config.knobs.items()]
    return f"⟨{', '.join(left)}⟩" if left else ""


def check_ranges(policy: str, space: Space, what: str = "space=") -> None:
    """Refuse a space of sizes that the policy does not look at.

    Raises:
        InputError: a tuner would search what changes nothing.
    """
    sizes, (low, high), (least, most) = POLICIES[policy].sizes, space.partition_bytes, space.credit_ratio
    if not sizes and (low < high or least < most):
        raise InputError(f"policy '{policy}' has no partition and no credit to search: leave {what} out")
    if sizes == ("partition",) and (least, most) != (1.0, 1.0):
        raise InputError(
            f"policy '{policy}' has no credit, but {what} searches {least:g}x to {most:g}x: say credit_ratio=(1, 1)"
        )


def no_knobs(policy: str) -> Space:
    """The space of a policy that has nothing to tune: one point."""
    return Space((GIB, GIB), (1.0, 1.0), Config(GIB, GIB, policy))
