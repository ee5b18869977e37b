"""When all sums of a step are in place, where only streams know it."""

import pytest
import torch

from autobyte.scheduler.block import Block, Segment
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.streams import HostEvent, HostStreams

BLOCKS = [Block(0, (Segment(1, 0, 4), Segment(0, 0, 2)), 24), Block(1, (Segment(0, 2, 4),), 8)]


def test_without_streams_all_that_has_arrived_is_in_place() -> None:
    assert Buffers(tensors=2, scale=None).whole


def test_a_step_is_whole_when_the_last_block_of_every_tensor_is_in_place() -> None:
    buffers, (first, last) = arriving()
    assert not buffers.whole
    last.happen()
    assert not buffers.whole  # tensor 1 is in the first block alone
    first.happen()
    assert buffers.whole


def test_the_next_step_is_not_whole_because_the_last_one_was() -> None:
    buffers, events = arriving()
    for event in events:
        event.happen()
    assert buffers.whole
    later = HostEvent()
    buffers.arrive(BLOCKS[1], later)
    assert not buffers.whole
    later.happen()
    assert buffers.whole


def test_a_step_with_a_block_that_failed_never_is_whole() -> None:
    buffers, (first, last) = arriving()
    last.happen()
    first.happen(ConnectionError("a peer is gone"))
    assert not buffers.whole
    assert not buffers.whole


def test_nobody_looks_twice_at_sums_that_were_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers, (first, last) = arriving()
    last.happen()
    assert not buffers.whole
    looked: list[int] = []
    arrived = buffers.arrived
    monkeypatch.setattr(buffers, "arrived", lambda tensors: looked.extend(tensors) or arrived(tensors))
    assert not buffers.whole
    first.happen()
    assert buffers.whole
    assert looked == [1, 1]  # tensor 0 was in place


def arriving() -> tuple[Buffers, list[HostEvent]]:
    """Buffers of a step whose two blocks are on their way, and when each is in place."""
    streams = HostStreams()
    buffers = Buffers(tensors=2, scale=None, streams=streams)
    streams.close()  # what is marked is complete
    for tensor in range(2):
        buffers.put(tensor, torch.ones(4))
    events = [HostEvent(), HostEvent()]
    for block, event in zip(BLOCKS, events, strict=True):
        buffers.arrive(block, event)
    return buffers, events
