"""Names of blocks in the trace of PyTorch's profiler."""

from collections.abc import Callable, Sequence

from autobyte.internals import is_profiled, show_span
from autobyte.scheduler.block import Block, Collective
from autobyte.scheduler.engines.base import Done
from autobyte.units import format_bytes


def shown(block: Block, names: Callable[[], Sequence[str]], done: Done) -> Done:
    """Show a block by its name from now on until it is done, if a profiler runs; what is to be told that it is.

    Args:
        block: that starts.
        names: of tensors.
        done: is told, too.
    """
    if not is_profiled():
        return done
    end = show_span(label(block, names()))

    def over(block: Block, error: Exception | None) -> None:
        end()
        done(block, error)

    return over


def label(block: Block, names: Sequence[str]) -> str:
    """A block's name: its place in the plan, what it holds, and how much.

    Args:
        block: of which parts may be halves of an all-reduce.
        names: of tensors; empty where they are not known.
    """
    tensors = list(dict.fromkeys(segment.tensor for segment in block.segments))
    first = names[tensors[0]] if tensors[0] < len(names) else f"tensor {tensors[0]}"
    held = first + (" …" if len(tensors) > 1 else "")
    half = "" if block.op is Collective.ALL_REDUCE else f", {block.op.value}"
    return f"autobyte block {block.index}{half}: {held} {format_bytes(block.nbytes)}"
