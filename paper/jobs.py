"""The paper's testbed, simulated: 8 workers on links of one rate, and what its speeds are set beside."""

from dataclasses import replace
from functools import cache

from autobyte import models
from autobyte.config import Config, Space
from autobyte.job import Cluster, Job
from autobyte.nets.dataset import START_UPS
from autobyte.simulator.landscape import best_constant
from autobyte.simulator.steady import step_s
from autobyte.units import MIB

WORKERS = 8  # one V100 each (AutoByte, sec. IV-A)
GBIT = 1.25e8  # bytes/s
PAYLOAD = 1448 / 1514  # what TCP carries of a link's nominal rate, at an MTU of 1500
CONSTANT_GBIT = (1, 3, 10, 25)  # the best constant is chosen for all models at these
ARCHITECTURES = {"ps": "parameter servers", "allreduce": "ring all-reduce"}

#: What a block costs besides its bytes; where these come from stands beside them.
BLOCK_COSTS = {"usbyte": "US-Byte's start-up", "nccl": "NCCL's start-up"}


def seeds(cost: str, count: int) -> int:
    """How many seeds a figure runs at a cost of a block: so many at the first, one at others, to save time."""
    return count if cost == next(iter(BLOCK_COSTS)) else 1


def rate(gbit: float) -> float:
    """Payload of a link (bytes/s)."""
    return gbit * GBIT * PAYLOAD


def job(model: str, gbit: float, architecture: str, *, batch: int | None = None, cost: str = "usbyte") -> Job:
    """A model on the testbed; with parameter servers, one on every worker's host.

    Args:
        model: its name.
        gbit: rate of the links.
        architecture: `ps` or `allreduce`.
        batch: samples a worker, with compute times in proportion; None: the model's own.
        cost: of a block, one of BLOCK_COSTS.
    """
    trained = models.load(model)
    if batch is not None:
        trained = replace(trained.scaled(time=batch / trained.batch_size), batch_size=batch)
    of_block = vars(START_UPS[cost])
    return Job(trained, Cluster.uniform(WORKERS, rate(gbit), architecture=architecture, **of_block))


def pair(partition_mb: float, credit: float) -> Config:
    """⟨S_p, S_c⟩ as the paper writes it: MB, which are MiB here, and a multiple."""
    return Config(round(partition_mb * MIB), round(partition_mb * MIB * credit))


def label(config: Config) -> str:
    """A pair as the paper writes it, in MB and multiples."""
    return f"⟨{config.partition_bytes / MIB:.3g},{config.credit_bytes / config.partition_bytes:.2g}⟩"


def speed(of: Job, config: Config) -> float:
    """Steady speed (samples/s)."""
    return of.samples / step_s(of, config)


@cache
def constant(architecture: str, *, cost: str = "usbyte", few: bool = False) -> Config:
    """The one pair that is best on average over all models and four rates: what never changing could give."""
    everywhere = [job(name, gbit, architecture, cost=cost) for name in models.names() for gbit in CONSTANT_GBIT]
    everywhere = everywhere[:2] if few else everywhere
    return best_constant(everywhere, Space().grid())[0]
