"""What of the gradients travels in a block: views where that is possible, staging where blocks fuse or compress."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from autobyte.errors import InputError, unknown
from autobyte.internals import copy_each
from autobyte.job import ITEMSIZE
from autobyte.scheduler.block import Block, Segment
from autobyte.scheduler.engines.shares import Shares
from autobyte.scheduler.engines.streams import Event, Streams


class Buffers:
    """The gradients of one rank, flat.

    >>> buffers = Buffers(tensors=2, scale=1 / world_size)
    >>> buffers.put(0, parameter.grad)
    >>> travelling = buffers.take(block)       # averaged, ready to be summed in place
    >>> buffers.give(block)                    # the sum goes back to where the gradients are

    A block of one segment is a view of its gradient, and nothing is copied. A fused block is staged, and so is every
    block that is compressed.

    Args:
        tensors: how many gradients there are.
        scale: what each is multiplied by before the sum, 1 / world size as DDP does; None leaves it as it is.
        wire_dtype: what gradients travel as; None sends them as they are.
        streams: of the device that computes gradients; None where they are complete when they are put.
    """

    def __init__(
        self, *, tensors: int, scale: float | None, wire_dtype: str | None = None, streams: Streams | None = None
    ) -> None:
        if wire_dtype is not None and wire_dtype not in ITEMSIZE:
            raise unknown("wire dtype", wire_dtype, ITEMSIZE)
        self._flat: list[Tensor | None] = [None] * tensors
        self._scale = scale
        self._wire_dtype: torch.dtype | None = getattr(torch, wire_dtype) if wire_dtype else None
        self._staging: dict[int, Tensor] = {}
        self.streams = streams
        self.shares = Shares()
        self._complete: list[Event | None] = [None] * tensors  # when a gradient is complete
        self._arrived: list[Event | None] = [None] * tensors  # when the last of its blocks so far is in place

    def put(self, tensor: int, gradient: Tensor) -> None:
        """Say where a gradient lies. It is averaged and summed in place.

        Raises:
            InputError: it is sparse, or its elements do not lie next to each other.
        """
        self._flat[tensor] = put = flat(gradient)
        if self.streams is not None:
            self._complete[tensor] = self.streams.mark(put)

    @property
    def averages(self) -> bool:
        """Whether `take` changes gradients."""
        return self._scale is not None

    def forget(self, tensor: int) -> None:
        """Let go of a gradient: its memory is the caller's again."""
        self._flat[tensor] = None

    def complete(self, block: Block) -> list[Event]:
        """When the gradients of a block are complete."""
        return [event for segment in block.segments if (event := self._complete[segment.tensor]) is not None]

    def arrive(self, block: Block, event: Event) -> None:
        """Say when the sums of a block will be in place; blocks come in the order in which they will be."""
        for segment in block.segments:
            self._arrived[segment.tensor] = event

    def arrived(self, tensors: Iterable[int]) -> bool:
        """Whether sums that are on their way are in place; nobody waits. Those that failed never are."""
        try:
            return all(event is None or event.is_over() for event in map(self._arrived.__getitem__, tensors))
        except Exception:  # of the network: told to whoever waits
            return False

    def follow(self, tensor: int) -> Event | None:
        """Let what the model's stream is given next wait for a tensor's sums, which are on their way.

        Returns:
            when they will be in place; None if they are.
        """
        event = self._arrived[tensor]
        if event is not None and self.streams is not None:
            self.streams.wait(event)
        return event

    def recut(self) -> None:
        """Let go of staging: blocks are cut in another way from now on, and none is under way."""
        self._staging.clear()

    @property
    def staged_bytes(self) -> int:
        """Memory that staging takes, beside the gradients."""
        return sum(staged.nbytes for staged in self._staging.values())

    def take(self, block: Block) -> Tensor:
        """The flat tensor that travels for a block, averaged."""
        pieces = self.pieces(block)
        if len(pieces) == 1 and self._wire_dtype in (None, pieces[0].dtype):
            travelling = pieces[0]
        else:
            travelling = self._stage(block, pieces)
        if self._scale is not None:
            # as DDP: the plain reducer multiplies, its compression hooks divide
            travelling.mul_(self._scale) if self._wire_dtype is None else travelling.div_(round(1 / self._scale))
        return travelling

    def room(self, block: Block) -> Tensor:
        """Where a block's sums are to be put before `give`: nothing is packed, nothing averaged."""
        pieces = self.pieces(block)
        if len(pieces) == 1 and self._wire_dtype in (None, pieces[0].dtype):
            return pieces[0]
        return self._staged(block, pieces)

    def give(self, block: Block) -> None:
        """Put what has travelled back into the gradients."""
        staged = self._staging.get(block.index)
        pieces = self.pieces(block)
        if staged is None or (len(pieces) == 1 and self._wire_dtype in (None, pieces[0].dtype)):
            return
        copy_each(pieces, list(torch.split_with_sizes(staged, [piece.numel() for piece in pieces])))

    def pieces(self, block: Block) -> list[Tensor]:
        """The parts of gradients that a block holds."""
        return list(self._pieces(block.segments))

    def _pieces(self, segments: tuple[Segment, ...]) -> Iterator[Tensor]:
        for segment in segments:
            gradient = self._flat[segment.tensor]
            assert gradient is not None, f"tensor {segment.tensor} travels before it was put"
            whole = segment.stop - segment.start == gradient.numel()
            yield gradient if whole else gradient[segment.start : segment.stop]

    def _stage(self, block: Block, pieces: list[Tensor]) -> Tensor:
        return torch.cat(pieces, out=self._staged(block, pieces))

    def _staged(self, block: Block, pieces: list[Tensor]) -> Tensor:
        numel, dtype = sum(piece.numel() for piece in pieces), self._wire_dtype or pieces[0].dtype
        staged = self._staging.get(block.index)
        if staged is None or staged.numel() != numel or staged.dtype != dtype:
            staged = self._staging[block.index] = torch.empty(numel, dtype=dtype, device=pieces[0].device)
        return staged


def flat(gradient: Tensor) -> Tensor:
    """A gradient's elements in the order in which they lie in memory, without a copy; shape [numel].

    Raises:
        InputError: it is sparse, or its elements do not lie next to each other.
    """
    if gradient.layout is not torch.strided:
        raise InputError("sparse gradients cannot be cut into blocks: make the embedding with sparse=False")
    if gradient.is_contiguous():
        return gradient.data.view(-1)  # of its own version: what the user does to the gradient stays visible
    dense = sorted(zip(gradient.stride(), gradient.shape, strict=True))
    expected = 1
    for stride, size in dense:
        if size > 1 and stride != expected:
            raise InputError("a gradient's elements must lie next to each other in memory")
        expected *= size
    return gradient.data.as_strided((gradient.numel(),), (1,))
