"""Table II from measurements: a pinned vector, ratios without units, costs told apart, changes noticed."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobyte.bound import bound_s
from autobyte.config import Config, Space
from autobyte.errors import InputError
from autobyte.features.runtime import State, Watch
from autobyte.features.schema import CANDIDATE, GROUPS, PAPER, RATIOS, ROWS, VERSION, Choice, place
from autobyte.features.static import Static
from autobyte.features.vector import candidates, describe
from autobyte.job import Cluster, Job, Model
from autobyte.models import load
from autobyte.scenario import Change, Scenario
from autobyte.simulator.effects import Effects
from autobyte.simulator.world import World
from autobyte.trace import Measurement

RECORDED = Path(__file__).parent.parent / "data" / "features.json"  # make record
CONFIGS = (Config(4_000_000, 16_000_000), Config(1 << 20, 1 << 22), Config(1 << 16, 1 << 20))
VGG16 = Job(load("vgg16"), Cluster.uniform(8, 1.25e9))


def state_of(job: Job, *configs: Config, **world: Any) -> State:
    """What windows under some configs show, one after the other."""
    watch, run = Watch(job.model), World(job, **world)
    return [watch.add(run.measure(config, iterations=10, warmup=2)) for config in configs or CONFIGS[:1]][-1]


def recorded() -> dict[str, Any]:
    """Every number that describes a fixed job, by name."""
    cluster = Cluster(4, 4, (1.25e9, 1.25e9, 6e8, 1.25e9), (1.25e9,), (1.0, 1.3, 1.0, 1.0))
    state = state_of(Job(load("resnet50"), cluster, accumulation=2), *CONFIGS[:2])
    vector, asked = describe(state), candidates(state, CONFIGS)
    tables = {"layer": vector.layer[-3:], "bandwidth": [vector.bandwidth], "static": [vector.static]}
    groups = {
        group: {c.name: [round(float(row[i]), 6) for row in rows] for i, c in enumerate(GROUPS[group])}
        for group, rows in (tables | {"candidate": asked.table}).items()
    }
    return {"version": VERSION, **groups, "floor_s": [round(float(s), 9) for s in asked.floor_s]}


def test_the_vector_of_a_fixed_job_is_what_was_recorded() -> None:
    known, now = json.loads(RECORDED.read_text()), recorded()
    assert now.keys() == known.keys()
    for group, columns in known.items():
        if not isinstance(columns, dict):
            assert now[group] == pytest.approx(columns)
            continue
        assert list(now[group]) == list(columns), group  # names, in order
        for name, values in columns.items():
            assert now[group][name] == pytest.approx(values, rel=1e-5, abs=1e-6), name


def test_names_are_unique_and_choices_know_them() -> None:
    for group, columns in GROUPS.items():
        names = [column.name for column in columns]
        assert len(set(names)) == len(names)
        assert all(column.unit and column.says for column in columns)
        for choice in (PAPER, RATIOS):
            assert [names[i] for i in choice.places(group)] == list(getattr(choice, group))
    with pytest.raises(InputError, match=r"schema 1 have no 'speed' in group 'static'"):
        Choice((), (), ("speed",), ())


@pytest.mark.parametrize("workers", [1, 2, 64])
@pytest.mark.parametrize("layers", [1, 5, ROWS, 300])
def test_workers_and_layers_may_be_any_number(workers: int, layers: int) -> None:
    rows = [(f"l{i}", [("w", 100_000)], 1e-3, 2e-3) for i in range(layers)]
    model = Model.build("any", rows, batch_size=8)
    state = state_of(Job(model, Cluster.uniform(workers, 1.25e8)))
    vector, asked = describe(state), candidates(state, CONFIGS)
    assert vector.layer.shape == (ROWS, len(GROUPS["layer"]))
    assert vector.layer[:, place("layer", "present")].sum() == min(layers, ROWS)
    for values in (vector.layer, vector.bandwidth, vector.static, asked.table, asked.floor_s):
        assert np.isfinite(values).all()


def test_pooling_keeps_sums() -> None:
    static = Static(load("bert-large"))
    assert static.layers > ROWS
    assert static.pooled(static.layer_bytes).sum() == pytest.approx(static.total_bytes)
    assert len(static.pooled(static.layer_bytes)) == ROWS
    assert np.diff(static.groups).max() == 1


def test_ratios_do_not_depend_on_the_unit_of_time() -> None:
    slow = Cluster.uniform(8, 1.25e8, latency_s=300e-6, overhead_s=(5e-3, 3e-4))
    fast = Cluster.uniform(8, 1.25e9, latency_s=30e-6, overhead_s=(5e-4, 3e-5))
    seen = []
    for cluster, time in ((slow, 10.0), (fast, 1.0)):
        job = Job(VGG16.model.scaled(time=time), cluster)
        state = replace(state_of(job), block_s=cluster.overhead_s[0])  # one window cannot tell it from the default
        state = replace(state, byte_s=cluster.seconds_per_byte, mean_byte_s=cluster.seconds_per_byte)
        vector, asked = describe(state), candidates(state, CONFIGS)
        tables = {"layer": vector.layer, "bandwidth": vector.bandwidth, "static": vector.static}
        tables["candidate"] = asked.table
        seen.append([values[..., RATIOS.places(group)] for group, values in tables.items()])
    for a, b in zip(*seen, strict=True):
        assert np.allclose(a, b, atol=1e-9)


@pytest.mark.parametrize("gbit", [0.5, 3, 25, 100])
@pytest.mark.parametrize("name", ["vgg16", "densenet121"])
def test_without_overhead_and_window_the_floor_is_the_bound(name: str, gbit: float) -> None:
    cluster = Cluster.uniform(8, gbit * 1.25e8, latency_s=0.0, overhead_s=(0.0, 0.0))
    job = Job(load(name), cluster, accumulation=2)
    state = replace(state_of(job), block_s=0.0, byte_s=cluster.seconds_per_byte)
    assert state.accumulation == 2
    pooled = len(job.model.layers) > ROWS  # rows of several layers: a little less detail
    floor = candidates(state, [Config(4096, 1)]).floor_s[0]
    assert floor == pytest.approx(bound_s(job), rel=0.02 if pooled else 1e-5)


def test_two_configs_tell_what_a_block_costs_from_what_a_byte_costs() -> None:
    cluster = Cluster.uniform(8, 1.25e9, overhead_s=(2e-3, 0.0))
    job = replace(VGG16, cluster=cluster)
    one, two = state_of(job, CONFIGS[0]), state_of(job, *CONFIGS[:2])
    assert one.block_s == pytest.approx(Cluster(8).overhead_s[0] + 14 * Cluster(8).overhead_s[1])  # the default
    assert two.block_s == pytest.approx(2e-3, rel=0.06)
    assert two.byte_s == pytest.approx(cluster.seconds_per_byte, rel=0.02)
    assert (one.configs, two.configs) == (1, 2)


def test_crowding_is_told_from_a_slow_link() -> None:
    few, many = Config(1 << 20, 1 << 20), Config(1 << 20, 16 << 20)
    crowded = state_of(VGG16, *CONFIGS[:2], few, many, effects=Effects(inflight_bytes=2**25))
    assert crowded.crowding == pytest.approx(2**-25, rel=0.5)
    assert crowded.byte_s == pytest.approx(VGG16.cluster.seconds_per_byte, rel=0.1)
    assert state_of(VGG16, *CONFIGS[:2], few, many).crowding == 0
    rising = candidates(crowded, [few, many]).table[:, place("candidate", "crowding")]
    assert 0 < rising[0] < rising[1]


@pytest.mark.parametrize(
    "change", [Change(at=30, up=3.75e8, down=3.75e8), Change(at=30, slowdown=1.5), Change(at=30, workers=6)]
)
def test_a_job_that_is_not_what_it_was_begins_a_new_regime(change: Change) -> None:
    watch, world = Watch(VGG16.model), World(VGG16, scenario=Scenario("a change", (change,)))
    configs = [CONFIGS[0], CONFIGS[1], Config(1 << 22, 1 << 23), CONFIGS[0], CONFIGS[1]]
    states = [watch.add(world.measure(config, iterations=10, warmup=2)) for config in configs]
    assert [state.regime for state in states] == [0, 0, 0, 1, 1]


def test_links_that_become_much_faster_begin_a_new_regime() -> None:
    """As a link that was down and is up again: weighed by relative misfits, the fast window would explain itself."""
    slow, watch = replace(VGG16, cluster=Cluster.uniform(8, 1.25e8)), Watch(VGG16.model)
    for job in (slow, VGG16):
        state = watch.add(World(job).measure(CONFIGS[0], iterations=10, warmup=2))
    assert state.regime == 1
    assert state.byte_s == pytest.approx(VGG16.cluster.seconds_per_byte, rel=0.01)


def test_noise_begins_no_new_regime() -> None:
    watch, world = Watch(VGG16.model), World(VGG16, effects=Effects(jitter=0.087, cross_traffic=0.02))
    states = [watch.add(world.measure(CONFIGS[i % 2], iterations=10, warmup=2)) for i in range(20)]
    assert states[-1].regime == 0
    assert {state.drift for state in states} == {0.0}


def faded(*configs: Config, by: float, rest: int) -> Iterator[tuple[State, float]]:
    """States while links fade by a part in every window, and rest from one on; what a byte costs then (s)."""
    watch = Watch(VGG16.model)
    for number, config in enumerate(configs):
        job = replace(VGG16, cluster=Cluster.uniform(8, 1.25e9 * (1 - by) ** min(number, rest)))
        yield watch.add(World(job).measure(config, iterations=10, warmup=2)), job.cluster.seconds_per_byte


def test_links_that_fade_are_not_taken_for_blocks_that_cost() -> None:
    """Many blocks first, then fewer: as if blocks cost nothing, if links were what they had been."""
    few, many = CONFIGS[:2]
    told = list(faded(many, *[few] * 7, by=0.07, rest=99))
    assert all(state.byte_s == pytest.approx(byte_s, rel=0.05) for state, byte_s in told)
    assert [state.drift > 0 for state, _ in told] == [False] * 4 + [True] * 4
    assert all(list(state.seen) == [few] for state, _ in told[4:])  # the other ran on faster links


def test_links_that_have_faded_rest() -> None:
    told = list(faded(*CONFIGS[:2] * 8, by=0.07, rest=8))
    assert told[8][0].drift > 0
    assert told[-1][0].drift == 0
    assert told[-1][0].regime > told[8][0].regime
    assert told[-1][0].byte_s == pytest.approx(told[-1][1], rel=0.01)


def test_what_travels_counts_not_what_the_model_has() -> None:
    half = state_of(replace(VGG16, wire_dtype="float16"))
    assert half.static.total_bytes == pytest.approx(2 * VGG16.model.parameters)
    assert half.byte_s == pytest.approx(VGG16.cluster.seconds_per_byte, rel=0.01)


def test_fusion_makes_fewer_blocks() -> None:
    static, size = Static(load("densenet121")), 1 << 22
    apart, fused = (static.blocks(Config(size, size, knobs={"fusion": on})).sum() for on in (0, 1))
    assert fused == pytest.approx(static.total_bytes / size)
    assert apart > 10 * fused


def _broken(**values: Any) -> Measurement:
    window = World(VGG16).measure(CONFIGS[0], iterations=10, warmup=2)
    assert window.stats is not None
    changed = {
        name: np.where(np.arange(getattr(window.stats, name).size).reshape(getattr(window.stats, name).shape) == 3,
                       value, getattr(window.stats, name))
        for name, value in values.items()
    }  # fmt: skip
    return replace(window, stats=replace(window.stats, **changed))


def test_statistics_that_cannot_be_are_named() -> None:
    window = World(VGG16).measure(CONFIGS[0], iterations=10, warmup=2)
    assert window.stats is not None
    rows = window.stats.backward_s[:, :3]
    for bad, message in (
        (replace(window, stats=None), r"the window at iteration 0 has no runtime statistics"),
        (_broken(backward_s=np.nan), r"backward_s of worker 0, layer 3 is nan"),
        (_broken(forward_s=-1.0), r"forward_s of worker 0, layer 3 is -1\.0"),
        (_broken(up_bytes_per_s=0.0), r"up_bytes_per_s of worker 3 is 0\.0"),
        (_broken(samples_per_s=np.inf), r"samples_per_s of worker 3 is inf"),
        (
            replace(window, stats=replace(window.stats, forward_s=rows, backward_s=rows)),
            r"forward_s has shape \(8, 3\)",
        ),
    ):
        with pytest.raises(InputError, match=message):
            Watch(VGG16.model).add(bad)


def test_the_floor_finds_good_configs_in_a_plain_world() -> None:
    grid = Space().grid()
    state = state_of(VGG16)
    asked = candidates(state, grid)
    assert asked.table.shape == (304, len(CANDIDATE))
    order = np.argsort(asked.floor_s)
    world = World(VGG16)
    best, default = (world.measure(config, iterations=1).mean_s for config in (grid[order[0]], Space().default))
    assert best < 0.9 * default


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(recorded(), indent=1) + "\n")
