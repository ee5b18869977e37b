"""A profiler shows each block by its name until it is done, on every engine; without one, nothing is done for it."""

from collections import Counter

import pytest
import torch
from faulty import make_model, train, wrapped
from ranks import on_ranks
from torch._C._profiler import _ExperimentalConfig

from autobyte.scheduler.block import Block, Collective, Segment
from autobyte.scheduler.engines.labels import label, shown


def test_a_name_says_which_block_what_it_holds_and_how_much() -> None:
    fused = Block(3, (Segment(1, 0, 8), Segment(0, 0, 2)), 40)
    assert label(fused, ["first", "second"]) == "autobyte block 3: second … 40 B"
    assert label(fused, []) == "autobyte block 3: tensor 1 … 40 B"  # names are not known yet
    half = Block(0, (Segment(0, 0, 2), Segment(0, 2, 4)), 16, op=Collective.ALL_GATHER)
    assert label(half, ["first"]) == "autobyte block 0, all-gather: first 16 B"


def test_without_a_profiler_whoever_waits_is_told_directly() -> None:
    def done(block: Block, error: Exception | None) -> None:
        raise AssertionError("nobody is told yet")

    assert shown(Block(0, (Segment(0, 0, 2),), 8), list, done) is done


@pytest.mark.parametrize("engine", ["allreduce", "dear", "ps", "ordered"])
def test_in_a_trace_every_block_of_a_step_has_its_name(engine: str) -> None:
    for expected, seen in on_ranks(_traced, 2, engine):
        assert seen == expected


def _traced(rank: int, engine: str) -> tuple[Counter[str], Counter[str]]:
    model = make_model()
    optimizer = wrapped(model, engine)
    train(model, optimizer, rank, range(2))
    optimizer.flush()  # else blocks of this step may start when the profiler runs
    training = optimizer.training
    assert training is not None
    with torch.profiler.profile(experimental_config=_ExperimentalConfig(profile_all_threads=True)) as profiler:
        train(model, optimizer, rank, range(2, 4))
        optimizer.flush()
        plan = training.session.plan
    names = plan.job.gradients.names
    seen = [event for event in profiler.events() or () if event.name.startswith("autobyte block")]
    assert all(event.time_range.elapsed_us() > 0 for event in seen)
    optimizer.close()
    return Counter(2 * [label(block, names) for block in plan.tiling.blocks]), Counter(event.name for event in seen)
