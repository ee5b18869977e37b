"""What one rank has noted, as plain JSON, and the trace that the first rank makes of all of them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobyte.job import Floats
from autobyte.torch.model.timeline import Activity
from autobyte.trace import BlockSpan, Span, Trace

Moved = Callable[[Floats], Floats]


def part_of(
    rank: int,
    layers: Sequence[str],
    activities: Sequence[Activity],
    blocks: Sequence[tuple[BlockSpan, Sequence[str]]],
    moved: Moved,
) -> dict[str, Any]:
    """One rank's spans.

    Args:
        rank: as torchrun numbers it.
        layers: their names.
        activities: of the thread that trains.
        blocks: that travelled, and the names of the layers whose gradients each of them held.
        moved: from this rank's clock to the first rank's.
    """
    times = moved(np.array([each[3:] for each in activities]).reshape(-1, 2)).tolist()
    travelled = [(b.ready_s, b.start_s, b.sent_s, b.done_s) for b, _ in blocks]
    moments = moved(np.array(travelled).reshape(-1, 4)).tolist()
    return {
        "rank": rank,
        "layers": list(layers),
        "activities": [[*each[:3], *at_s] for each, at_s in zip(activities, times, strict=True)],
        "blocks": [
            [block.step, block.block, block.nbytes, list(names), *at_s]
            for (block, names), at_s in zip(blocks, moments, strict=True)
        ],
    }


def merged(parts: Sequence[dict[str, Any]], about: dict[str, Any]) -> Trace:
    """The trace of some ranks; it begins at time 0.

    Args:
        parts: of the ranks, as `part_of` makes them.
        about: what the file says of the job.
    """
    trace = Trace(about=dict(about))
    began_s = min((row[3] for part in parts for row in part["activities"]), default=0.0)
    for part in parts:
        rank, names = part["rank"], part["layers"]
        places = _in_order_of_calls(part)
        rows = {"wait": trace.waits, "step": trace.steps}
        for phase, layer, step, start_s, stop_s in part["activities"]:
            place, name = (places[layer], names[layer]) if layer >= 0 else (-1, "")
            row = rows.get(phase, trace.spans)
            row.append(Span(rank, step, phase, place, name, start_s - began_s, stop_s - began_s))
        index = {name: places[layer] for layer, name in enumerate(names)}
        for step, block, nbytes, held, *at_s in part["blocks"]:
            layers = tuple(sorted({index[name] for name in held if name in index}))
            trace.blocks.append(BlockSpan(rank, step, block, nbytes, layers, *(each - began_s for each in at_s)))
    return trace


def _in_order_of_calls(part: dict[str, Any]) -> dict[int, int]:
    """The place of every layer in the order of first calls; those that were not called come behind."""
    called = [layer for phase, layer, *_ in part["activities"] if phase == "forward" and layer >= 0]
    order = dict.fromkeys([*called, *range(len(part["layers"]))])
    return {layer: place for place, layer in enumerate(order)}
