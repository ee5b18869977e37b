"""How many environment steps a second, and how long the library takes for a rate; each test prints it."""

import math
import statistics
import time

import numpy as np

from autobyte.congestion.algos import make_control
from autobyte.congestion.batch import LinkBatch
from autobyte.congestion.datapath.measure import run_over_relay
from autobyte.congestion.datapath.relay import Hop
from autobyte.congestion.objectives import Objective
from autobyte.congestion.paths import Bottleneck, Interval, RateProfile, Route
from autobyte.congestion.ranges import MBIT, range_of
from autobyte.congestion.service import Service
from autobyte.congestion.sharing import share_link


def test_100_000_environment_steps_a_second() -> None:
    batch, rates = LinkBatch(range_of("paper").draw, 256, seed=0), []
    batch.pace = 0.9 * batch.capacity_per_s
    batch.step(np.zeros(256))  # compiled
    for _ in range(5):
        began_s = time.thread_time()  # of this thread: other work on the machine is not its own
        for _ in range(100):
            batch.step(np.zeros(256))
        rates.append(25_600 / (time.thread_time() - began_s))
    print(f"\nenvironment steps a second on one core: {statistics.median(rates):,.0f} (at least 100,000)")
    assert statistics.median(rates) >= 100_000


def test_a_rate_takes_50_microseconds() -> None:
    service, spent, end_s = Service(), [], 0.0
    flow = service.register(Objective(0.8, 0.1, 0.1))
    for number in range(2000):
        interval = Interval(end_s, end_s + 0.05, 10, 9, 1, 0.05 + 0.01 * math.sin(number), 0.01, 0.04)
        end_s = interval.end_s
        began_s = time.thread_time()
        service.report(flow, interval)
        service.rate(flow)
        spent.append(time.thread_time() - began_s)
    print(f"\na report and a rate: {1e6 * statistics.median(spent):.0f} µs (at most 50)")
    assert statistics.median(spent) <= 50e-6


def test_mocc_has_five_times_cubics_goodput_where_one_percent_is_lost_and_as_much_as_simulated() -> None:
    goodput = {}
    for name in ("cubic", "mocc"):
        control = make_control(name, Objective(0.8, 0.1, 0.1))
        goodput[name] = run_over_relay(
            Hop(6.25e6, 0.025, 500, 0.01), control, seconds=16.0, settled_s=8.0
        ).bytes_per_s
    link, control = (
        Bottleneck(RateProfile.steady(50 * MBIT), 500, 0.01),
        make_control("mocc", Objective(0.8, 0.1, 0.1)),
    )
    simulated = share_link(link, [(Route(0.05), control)], seconds=16.0, settled_s=8.0)[0].bytes_per_s
    times, share = goodput["mocc"] / goodput["cubic"], goodput["mocc"] / simulated
    print(f"\nmeasured: {times:.1f} times CUBIC's goodput (at least 5), {share:.3f} of the simulator's (0.9 to 1.1)")
    assert times >= 5
    assert 0.9 <= share <= 1.1
