"""What links of simulated worlds need longer with more bytes in flight: where the twin's prior comes from. Simulated.

    python tools/crowding.py        # 2 minutes

Worlds are drawn from seeds that nobody is judged with. Of each the pace of links under a few configs is read off a
window's statistics, as the twin reads it, beside that of the default; what blocks cost beyond their bytes is known.
"""

import argparse

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from autobyte.comparison.worlds import draw
from autobyte.config import Config, Space
from autobyte.job import Cluster
from autobyte.prediction import Simulated
from autobyte.simulator.landscape import least_s
from autobyte.simulator.world import World
from autobyte.tuners.twin.calibration import LINKS
from autobyte.tuners.twin.process import KNEE
from autobyte.tuners.twin.windows import JobState, JobWindow, place
from autobyte.units import MIB

FIRST = 20_000  # seeds
FLIGHTS = (4, 8, 16, 32, 64, 128, 256)  # MiB, four blocks each
HOPELESS = 1.6  # times the default's step: not measured


def paces(seed: int) -> dict[int, float]:
    """Logarithm of the seconds per byte beside the default's, by MiB in flight, of one world."""
    drawn = draw(FIRST + seed, workers=(2, 4, 8, 8, 16))
    effects, predictor = drawn.effects.calm(), Simulated(drawn.job)
    cost = drawn.job.cluster.overhead_s[0] / Cluster(1).overhead_s[0]

    def pace(config: Config) -> tuple[float, float]:
        """Of links, and the step time (s)."""
        measured = World(drawn.job, effects=effects, seed=seed).measure(config, iterations=3, warmup=2)
        stats = measured.stats
        assert stats is not None
        load = predictor.load(config, workers=len(stats.forward_s), servers=stats.servers)
        rates = stats.up_bytes_per_s, stats.down_bytes_per_s
        state = JobState(stats.forward_s, stats.backward_s, *rates, stats.servers, 0.0)
        row = np.array([0.0, 0.0, *place(config, load)])
        return float(JobWindow(config, row, load, state, measured.mean_s, 0.0).pace(cost)), measured.mean_s

    usual, default_s = pace(Space().default)
    total = drawn.job.gradients.total_bytes
    configs = {flight: Config(flight * MIB // 4, flight * MIB) for flight in FLIGHTS if flight * MIB < 4 * total}
    return {
        flight: pace(config)[0] - usual
        for flight, config in configs.items()
        if least_s(drawn.job, config, effects=effects) < HOPELESS * default_s
    }


def main() -> None:
    """Read the command line, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=300)
    worlds = [paces(seed) for seed in track(range(parser.parse_args().worlds), "worlds")]
    table = Table("MiB in flight", "worlds", "log pace, mean", "deviation", "expected by the twin")
    crowd = {flight: np.log1p(flight * MIB / 2**KNEE) for flight in FLIGHTS}
    for flight in FLIGHTS:
        values = [world[flight] for world in worlds if flight in world]
        expected = np.mean([process.crowding[0] for process in LINKS]) * (crowd[flight] - crowd[16])
        numbers = (np.mean(values), np.std(values), expected)
        table.add_row(str(flight), str(len(values)), *(f"{number:+.3f}" for number in numbers))
    Console().print(table)


if __name__ == "__main__":
    main()
