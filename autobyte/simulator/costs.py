"""What every layer and every transfer costs, as arrays: the one place where the cost model's numbers are made.

The reference and the compiled simulator both read them, so that they do the same arithmetic.

Workers that are alike throughout a run act in unison and are one *class*: cost does not grow with their number.
Hosts whose links are alike are one *link class*.

    ring all-reduce   one pipe; a block holds it for  o0 + 2(n-1)·o1 + 2(n-1)/n · s / r,  r = the slowest link,
                      and arrives 2(n-1)·latency later; half of one has n-1 in place of 2(n-1);
                      with g workers a host n counts hosts, and 2(g-1)·o2 + 2(g-1)/g · s / r2 within them is added
    parameter server  a push holds its worker's uplink for  o0/2 + messages·o1 + (1 - share)·s / up,
                      and the servers' downlinks for        share·s / down  each;
                      a pull holds the servers' uplinks for o0/2 + (n-1)·o1 + (n-1)·share·s / up,
                      and its worker's downlink for         (1 - share)·s / down;  each arrives one latency later
                      a pull of its own, as gradients that are clipped have, serves only the workers of one class:
                      m of them in place of (n-1)

`share` is the part of a block that the server on a host keeps: it never touches that host's network.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from autobyte.job import Cluster, Floats, Ints
from autobyte.scenario import STEADY, Scenario, Timeline
from autobyte.scheduler.block import Tiling
from autobyte.scheduler.plan import Plan
from autobyte.simulator.effects import PLAIN, Effects

Flags = npt.NDArray[np.bool_]

#: Events of one time happen in this order, class after class: pushes (or all-reduces) arrive, pulls arrive, compute.
PUSH, PULL, COMPUTE = 0, 1, 2


@dataclass(frozen=True)
class WindowCosts:
    """Everything that the event loop needs to know about a window of iterations.

    Index k of the first axis is iteration `first + k`; there is one more than iterations simulated, because a
    simulated step is a backward pass, its communication, and the forward pass of the next iteration.

    Args:
        worker_class: class of each worker, shape [workers].
        leader: the first worker of each class, shape [classes].
        link: link class of each class, shape [classes].
        compute: factor on every layer's time, shape [k, classes].
        up_bytes_per_s, down_bytes_per_s: shape [k, classes], [k, links].
        ring_s_per_byte: shape [k].
        push_up_s_per_byte, pull_up_s_per_byte: shape [k, classes].
        push_down_s_per_byte: what one class's push costs a host of a link class, shape [k, classes, links].
        pull_down_s_per_byte: shape [k, links].
        own_pull_up_s_per_byte: what a pull of one class alone costs a host of another, shape [k, classes, classes].
        serves, link_serves: whether a class's hosts, and a link class's, have servers; shape [classes], [links].
        ring_hold_s [blocks], push_hold_s [classes], pull_hold_s, own_pull_hold_s [classes, classes]: overheads that
            hold the link (s).
        latency_s: from leaving the link to arriving, shape [blocks] (s).
        stretch: factor on the bytes' time of each block, from its size and its op, shape [blocks].
    """

    worker_class: Ints
    leader: Ints
    link: Ints
    compute: Floats
    up_bytes_per_s: Floats
    down_bytes_per_s: Floats
    ring_s_per_byte: Floats
    push_up_s_per_byte: Floats
    push_down_s_per_byte: Floats
    pull_up_s_per_byte: Floats
    pull_down_s_per_byte: Floats
    own_pull_up_s_per_byte: Floats
    serves: Flags
    link_serves: Flags
    ring_hold_s: Floats
    push_hold_s: Floats
    pull_hold_s: float
    own_pull_hold_s: Floats
    latency_s: Floats
    stretch: Floats
    effects: Effects

    @property
    def classes(self) -> int:
        """How many classes of workers there are."""
        return len(self.leader)

    @property
    def iterations(self) -> int:
        """Steps to simulate."""
        return len(self.ring_s_per_byte) - 1

    @classmethod
    def of(
        cls,
        plan: Plan,
        *,
        iterations: int,
        first: int = 0,
        scenario: Scenario = STEADY,
        effects: Effects = PLAIN,
        seed: int = 0,
    ) -> Self:
        """Work out the costs of running a plan for some iterations of a scenario."""
        cluster, halved = plan.job.cluster, plan.tiling.gathers is not None
        without = _without_blocks(cluster, halved, iterations, first, scenario, effects, seed)
        held_s, latency_s, stretch = of_blocks(cluster, plan.tiling, effects)
        return cls(**without, ring_hold_s=held_s, latency_s=latency_s, stretch=stretch, effects=effects)


@lru_cache(maxsize=2)  # one window is simulated under many plans, one after the other
def _without_blocks(
    cluster: Cluster, halved: bool, iterations: int, first: int, scenario: Scenario, effects: Effects, seed: int
) -> dict[str, Any]:
    """Those of the costs that are the same whatever the blocks, if these are whole, or if they are halves."""
    count = iterations + 1
    n, alone = cluster.workers, cluster.workers == 1
    time = Timeline.of(cluster, scenario, first=first, iterations=count)
    jitter = effects.compute_factors(seed=seed, first=first, iterations=count, workers=n)
    constant = not scenario.changes and not effects.jitter
    leader, worker_class = _steady_classes(cluster) if constant else _classes(cluster, time, jitter)
    rates = effects.rate_factors(seed=seed, first=first, iterations=count)[:, None]
    up, down = time.up_bytes_per_s[:, leader] * rates, time.down_bytes_per_s[:, leader] * rates
    share, members = cluster.share[leader], np.bincount(worker_class)
    if cluster.servers and halved:  # each class pulls by itself, over its own links
        host = link = np.arange(len(leader))
    else:
        host, link = _group(np.concatenate([up, down, share[None]]).T)
    # A class pushes in unison: a server's downlink carries all its members at once. What a host sends to itself
    # stays off the link; over all workers that is a factor of (n-1)/n.
    crowd = members * ((n - 1) / n) * (1.0 + effects.incast * max(0, n - 2))
    hop, hops = cluster.overhead_s[1], 2 * (cluster.nodes - 1)
    messages = np.rint(cluster.servers * (1.0 - share))
    remote = cluster.remote[leader]
    served = (members[:, None] - np.eye(len(leader))) * (share > 0)  # workers of a class, by a host of another
    return {
        "worker_class": worker_class,
        "leader": leader,
        "link": link,
        "compute": time.slowdown[:, leader] * jitter[:, leader],
        "up_bytes_per_s": up,
        "down_bytes_per_s": down[:, host],
        "ring_s_per_byte": (hops / cluster.nodes / np.minimum(up, down)).max(axis=1) + cluster.local_s_per_byte,
        "push_up_s_per_byte": remote / up,
        "push_down_s_per_byte": crowd[None, :, None] * (share[host] / down[:, host])[:, None, :],
        "pull_up_s_per_byte": (n - 1) * share / up,
        "pull_down_s_per_byte": remote[host] / down[:, host],
        "own_pull_up_s_per_byte": served * (share / up)[:, None, :],
        "serves": share > 0,
        "link_serves": share[host] > 0,
        "push_hold_s": np.where(alone, 0.0, cluster.overhead_s[0] / 2 + messages * hop),
        "pull_hold_s": 0.0 if alone else cluster.overhead_s[0] / 2 + (n - 1) * hop,
        "own_pull_hold_s": np.where(served > 0, cluster.overhead_s[0] / 2 + served * hop, 0.0),
    }


def of_blocks(cluster: Cluster, tiling: Tiling, effects: Effects) -> tuple[Floats, Floats, Floats]:
    """Those of the costs that each block has of its own: `ring_hold_s`, `latency_s`, `stretch`."""
    half = np.where(tiling.halves & (cluster.servers == 0), 0.5, 1.0)  # of an all-reduce; a push goes one way anyway
    stretch = effects.stretch(tiling.nbytes) * half
    if cluster.workers == 1:
        return np.zeros(len(half)), np.zeros(len(half)), stretch
    held_s = cluster.overhead_s[0] + half * cluster.ring_hops_s + effects.overhead_s(tiling.nbytes)
    latency_s = half * cluster.latency_s * (1 if cluster.servers else 2 * (cluster.nodes - 1))
    return held_s, latency_s, stretch


def all_alike(cluster: Cluster) -> bool:
    """Whether every worker and its links are like every other's."""
    return len(_steady_classes(cluster)[0]) == 1


@lru_cache(maxsize=256)
def _steady_classes(cluster: Cluster) -> tuple[Ints, Ints]:
    return _group(np.concatenate([cluster.table, cluster.share[None]]).T)


def _classes(cluster: Cluster, time: Timeline, jitter: Floats) -> tuple[Ints, Ints]:
    columns = [time.slowdown * jitter, time.up_bytes_per_s, time.down_bytes_per_s, cluster.share[None]]
    return _group(np.concatenate(columns).T)


def _group(looks: Floats) -> tuple[Ints, Ints]:
    """Group equal rows: the first row of each group, and the group of each row, groups by first appearance."""
    if (looks == looks[0]).all():
        return np.zeros(1, dtype=np.int64), np.zeros(len(looks), dtype=np.int64)
    number: dict[tuple[float, ...], int] = {}  # np.unique of a few rows costs as much as a simulation
    group = [number.setdefault(tuple(row), len(number)) for row in looks.tolist()]
    first = [group.index(index) for index in range(len(number))]
    return np.array(first, dtype=np.int64), np.array(group, dtype=np.int64)
