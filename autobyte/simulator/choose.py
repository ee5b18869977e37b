"""Policy and config together: what is fastest in virtual time on a job as it was measured."""

from collections.abc import Sequence
from dataclasses import replace

from autobyte.config import Config
from autobyte.job import Job
from autobyte.scheduler.policies import space_of
from autobyte.scheduler.policies.ddp import BUCKETS
from autobyte.simulator.effects import PLAIN, Effects
from autobyte.simulator.landscape import survey
from autobyte.units import GIB, KIB, MIB

MARGIN = 0.01  # what a schedule must be predicted to gain over DDP's best bucket to be preferred to it
#: Partitions and credits of ByteScheduler with small tensors fused.
PRIORITY = tuple(
    Config(partition, partition * ratio, knobs={"fusion": 1})
    for partition in (256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB)
    for ratio in (1, 2, 4, 8)
)
#: Largest messages and windows of US-Byte with small tensors fused, from one message at a time upwards.
UNEQUAL = tuple(
    Config(partition, window, "usbyte", {"fusion": 1})
    for partition in (MIB, 4 * MIB, 16 * MIB, GIB)
    for window in (KIB, MIB, 4 * MIB, 16 * MIB)
)
#: What did best on the testbed (docs/benchmarks.md), of four models at 1 and 2 Gbit/s: heard whatever is predicted.
PROVEN = tuple(
    Config(partition, credit, policy, {"fusion": 1})
    for policy, partition, credit in (
        ("bytescheduler", MIB, MIB),
        ("bytescheduler", MIB, 2 * MIB),
        ("bytescheduler", 2 * MIB, 4 * MIB),
        ("usbyte", MIB, MIB),
        ("usbyte", MIB, 2 * MIB),
    )
)
SMALL = BUCKETS[0]  # DDP's best on the testbed at 2 Gbit/s, for each of these models
GLOO = Effects(sharing=8)  # how its all-reduces travel: as many at a time as the engine has threads
DEFAULTS = ("usbyte", "mgwfbp", "horovod", "megatron", "wfbp", "tictac", "p3", "fifo")  # these are tried as they come
SIZED = ("horovod", "megatron", "p3")  # and these with blocks of such sizes
SIZES = (MIB, 4 * MIB, 16 * MIB, 64 * MIB)
#: Fusion thresholds of DeAR, which servers cannot run.
HALVED = tuple(Config(size, size, "dear") for size in (4 * MIB, 25 * MIB, 100 * MIB))


def candidates(job: Job) -> tuple[Config, ...]:
    """What there is to choose from besides DDP's buckets: every policy, those that have them at several sizes."""
    defaults = {name: space_of(name, job).default for name in DEFAULTS}
    sized = (replace(defaults[name], partition_bytes=size, credit_bytes=size) for name in SIZED for size in SIZES)
    return (*defaults.values(), *sized, *PRIORITY, *UNEQUAL, *(() if job.cluster.servers else HALVED))


def choose(job: Job, among: Sequence[Config] | None = None, *, effects: Effects = PLAIN) -> Config:
    """The config predicted to be fastest; DDP's best bucket unless another gains more than 1 % over it.

    Args:
        job: as it was measured.
        among: what to choose from; by default `candidates(job)`.
        effects: second-order effects to predict with.
    """
    others = survey(job, candidates(job) if among is None else among, effects=effects)
    buckets = survey(job, BUCKETS, effects=effects)
    return others.best if others.best_s < (1 - MARGIN) * buckets.best_s else buckets.best


def shortlist(job: Job, *, length: int = 3, effects: Effects | None = None) -> list[Config]:
    """What is worth measuring: DDP's best, the best configs of the fastest policies by prediction, proven ones.

    Args:
        job: as it was measured.
        length: policies besides DDP.
        effects: second-order effects to predict with; by default those of our engines: `GLOO`'s, none with servers.

    Returns:
        DDP's buckets, those predicted to be best and `SMALL`; the best config of each of the policies predicted to
        be fastest, the fastest first; `PROVEN`.
    """
    effects = effects or (PLAIN if job.cluster.servers else GLOO)
    others = survey(job, candidates(job), effects=effects)
    best: dict[str, Config] = {}
    for index in others.step_s.argsort(kind="stable").tolist():
        best.setdefault(others.configs[index].policy, others.configs[index])
    fastest = [config for config in best.values() if config.policy != "ddp"][:length]
    return [*dict.fromkeys([survey(job, BUCKETS, effects=effects).best, SMALL, *fastest, *PROVEN])]
