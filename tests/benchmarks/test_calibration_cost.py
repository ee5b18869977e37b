"""What blocks cost on shaped links, as a calibration finds it: little, on an idle machine."""

from dataclasses import replace
from statistics import median

import pytest
from beds import needs_namespaces

from autobyte.bench.bench import PAYLOAD, Cell
from autobyte.bench.calibration import Engine, calibrate
from autobyte.config import Config
from autobyte.simulator.calibrate import PROBE
from autobyte.simulator.steady import step_s
from autobyte.units import KIB, MIB

RATE = 5e7  # bytes/s


@needs_namespaces
@pytest.mark.parametrize("engine", ["allreduce", "ordered"])
def test_blocks_add_at_most_5_percent_to_a_step(engine: Engine) -> None:
    made = calibrate(
        hosts=2, rate=RATE, engines=(engine,), sizes=(MIB, 512 * KIB, 256 * KIB), steps=2,
        progress=lambda what: lambda done, total, part: None,
    )  # fmt: skip
    probe_s = 4 * PROBE.parameters / (RATE * PAYLOAD)  # two ranks: every byte goes once in either direction
    over = median(measured_s / probe_s for *_, measured_s in made.samples[f"{engine} probe"])
    job = Cell("vgg16", 2, RATE, compute_s=0.1, size_scale=0.01).job(servers=False, wire_dtype=None)
    costs = made.of(job)
    free = replace(job, cluster=replace(job.cluster, latency_s=0.0, overhead_s=(0.0, 0.0)))
    least_s = step_s(free, Config(MIB, MIB), effects=costs.effects)  # on such links if blocks cost nothing
    priced_s = step_s(costs.price(job), Config(MIB, MIB), effects=costs.effects)
    print(f"\n{engine}: probe {over:.3f} x its bytes (at most 1.06), step {priced_s / least_s:.3f} x (at most 1.05)")
    assert over < 1.06
    assert priced_s == pytest.approx(least_s, rel=0.05)
