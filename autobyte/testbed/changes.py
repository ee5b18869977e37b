"""A scenario on real links: rates that change while a command runs."""

import time
from collections.abc import Callable

from autobyte.errors import InputError
from autobyte.job import Cluster
from autobyte.scenario import Scenario
from autobyte.testbed.hosts import Testbed, checked_rate


def follow(
    testbed: Testbed, scenario: Scenario, *, iteration_s: float, clock: Callable[[], float] = time.monotonic
) -> Callable[[], None]:
    """Make what changes the links when it is time to; to be called again and again (`Launch.wait(meanwhile=…)`).

    A command does not say which iteration it is in, so an iteration of the scenario is a fixed time, from now on.
    Rates are nominal, those of the testbed now are the ones that "50%" is a part of.

    Raises:
        InputError: the scenario changes what a testbed cannot, or a host that there is not.
    """
    if not iteration_s > 0:
        raise InputError(f"an iteration of the scenario must take time, got {iteration_s:g} s")
    for change in scenario.changes:
        if change.slowdown is not None or change.workers is not None:
            raise InputError(f"scenario '{scenario.name}': on a testbed only rates change, not slowdown or workers")
    up, down = zip(*(testbed.rates(host) for host in range(testbed.hosts)), strict=True)
    base = Cluster(testbed.hosts, 0, up, down)
    for change in scenario.changes:
        then = scenario.cluster(base, change.at)
        for rate in (*then.up_bytes_per_s, *then.down_bytes_per_s):
            checked_rate(rate)
    last = -1
    began_s = clock()

    def now() -> None:
        nonlocal last
        iteration = int((clock() - began_s) / iteration_s)
        if iteration == last:
            return
        last = iteration
        cluster = scenario.cluster(base, iteration)
        for host, rates in enumerate(zip(cluster.up_bytes_per_s, cluster.down_bytes_per_s, strict=True)):
            if rates != testbed.rates(host):
                testbed.shape(host, up=rates[0], down=rates[1])

    now()
    return now
