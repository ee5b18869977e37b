"""Aurora (Jay et al., ICML 2019): one objective, the same features and actions; trained by us, with our code.

Its network is that of MOCC with constant weights, trained with another reward and, as it ships, in 120 updates where
MOCC has 600. The reward is that of its release (PCC-RL): a thousandth of
10 · throughput − 1000 · latency − 2000 · loss, in packets/s and seconds.
"""

from autobyte.congestion.batch import LinkBatch
from autobyte.congestion.objectives import Objective
from autobyte.job import Floats

THROUGHPUT, LATENCY, LOSS, SCALE = 10.0, 1000.0, 2000.0, 1e-3
INPUT = Objective(1 / 3, 1 / 3, 1 / 3)  # what stands in place of weights


def reward(parts: Floats, batch: LinkBatch) -> Floats:
    """Aurora's reward of an interval on every link, shape [links].

    Args:
        parts: rewards of throughput, latency and loss, shape [links, 3].
        batch: the links.
    """
    gained = THROUGHPUT * parts[:, 0] * batch.capacity_per_s
    spent: Floats = LATENCY * batch.round_trip_s + LOSS * (1.0 - parts[:, 2])
    return SCALE * (gained - spent)
