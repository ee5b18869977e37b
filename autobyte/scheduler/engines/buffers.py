"""What of the gradients travels in a block: views where that is possible, staging where blocks fuse or compress."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from autobyte.errors import InputError, unknown
from autobyte.internals import copy_each
from autobyte.job import ITEMSIZE
from autobyte.scheduler.block import Block
from autobyte.scheduler.engines.shares import Shares
from autobyte.scheduler.engines.streams import Event, Streams

_strided = torch.strided  # a look-up less at every gradient


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
        self._gradients: list[Tensor | None] = [None] * tensors  # in their shapes, or flat where these have gaps
        self._shaped = [True] * tensors
        self._scale = scale
        self._wire_dtype: torch.dtype | None = getattr(torch, wire_dtype) if wire_dtype else None
        self._staging: dict[int, _Staging] = {}
        self.streams = streams
        self.shares = Shares()
        self._complete: list[Event | None] = [None] * tensors  # when a gradient is complete
        self._arrived: list[Event | None] = [None] * tensors  # when the last of its blocks so far is in place
        self._latest: Event | None = None  # when the sums of the block that came last are in place
        self._arrivals = 0  # blocks whose arrival was said so far
        self._seen = 0, 0  # then all sums of so many tensors were seen to be in place

    def put(self, tensor: int, gradient: Tensor, *, marked: bool = True) -> None:
        """Say where a gradient lies. It is averaged and summed in place.

        Args:
            tensor: whose it is.
            gradient: complete, as soon as the device has done what it was given.
            marked: whether to mark that moment now, and not with others in `mark`.

        Raises:
            InputError: it is sparse, or its elements do not lie next to each other.
        """
        shaped = gradient.is_contiguous() if gradient.layout is _strided else False
        put = gradient.data if shaped else flat(gradient)  # of its own version: what the user does stays visible
        if shaped is not self._shaped[tensor]:
            self._shaped[tensor] = shaped
            for staging in self._staging.values():
                staging.places = []
        self._gradients[tensor] = put
        if marked:
            self.mark([tensor])

    def mark(self, tensors: Sequence[int]) -> None:
        """Say that gradients are complete, as soon as the device has done what it was given."""
        if self.streams is not None:
            event = self.streams.mark(
                [each for each in map(self._gradients.__getitem__, tensors) if each is not None]
            )
            for tensor in tensors:
                self._complete[tensor] = event

    @property
    def averages(self) -> bool:
        """Whether `take` changes gradients."""
        return self._scale is not None

    def forget(self, tensors: Iterable[int]) -> None:
        """Let go of gradients: their memory is the caller's again."""
        for tensor in tensors:
            self._gradients[tensor] = None

    def complete(self, block: Block) -> list[Event]:
        """When the gradients of a block are complete."""
        events = dict.fromkeys(self._complete[segment.tensor] for segment in block.segments)
        return [event for event in events if event is not None]

    def arrive(self, block: Block, event: Event) -> None:
        """Say when the sums of a block will be in place; blocks come in the order in which they will be."""
        self._latest = event
        for segment in block.segments:
            self._arrived[segment.tensor] = event
        self._arrivals += 1

    @property
    def whole(self) -> bool:
        """Whether all sums that are on their way are in place; nobody waits."""
        if self.streams is None:
            return True
        arrivals, (then, seen) = self._arrivals, self._seen
        first = seen if then == arrivals else 0  # nobody looks twice
        while first < len(self._arrived) and self.arrived([first]):
            first += 1
        self._seen = arrivals, first
        return first == len(self._arrived)

    def whole_later(self) -> Callable[[], bool]:
        """What tells whether all sums that were on their way by now are in place, whatever follows; nobody waits."""
        latest = self._latest

        def over() -> bool:
            try:
                return latest is None or latest.is_over()
            except Exception:  # of the network: told to whoever waits
                return False

        return over

    def arrived(self, tensors: Iterable[int]) -> bool:
        """Whether sums that are on their way are in place; nobody waits. Those that failed never are."""
        if self.streams is None:
            return True
        try:
            events = set(map(self._arrived.__getitem__, tensors))  # one for all tensors of a block
            return all(event is None or event.is_over() for event in events)
        except Exception:  # of the network: told to whoever waits
            return False

    def follow(self, tensor: int) -> Event | None:
        """Let what the model's stream is given next wait for a tensor's sums, which are on their way.

        Returns:
            when they are in place, which may be over; None where nothing has been on its way yet.
        """
        event = self._arrived[tensor]
        if event is not None and self.streams is not None:
            self.streams.wait(event)
        return event

    def recut(self) -> None:
        """Let go of staging: blocks are cut in another way from now on, and none is under way."""
        self._staging.clear()

    def release(self) -> None:
        """Let go of gradients and staging: others have them from now on."""
        self.recut()
        self._gradients = [None] * len(self._gradients)

    @property
    def staged_bytes(self) -> int:
        """Memory that staging takes, beside the gradients."""
        return sum(staging.room.nbytes for staging in self._staging.values())

    def take(self, block: Block) -> Tensor:
        """The flat tensor that travels for a block, averaged."""
        pieces = self.pieces(block)
        if self._is_staged(pieces):
            staging = self._staged(block, pieces)
            travelling = staging.room
            copy_each(staging.places, pieces)
        else:
            travelling = pieces[0].view(-1)
        if self._scale is not None:
            # as DDP: the plain reducer multiplies, its compression hooks divide
            travelling.mul_(self._scale) if self._wire_dtype is None else travelling.div_(round(1 / self._scale))
        return travelling

    def room(self, block: Block) -> Tensor:
        """Where a block's sums are to be put before `give`: nothing is packed, nothing averaged."""
        pieces = self.pieces(block)
        return self._staged(block, pieces).room if self._is_staged(pieces) else pieces[0].view(-1)

    def give(self, block: Block) -> None:
        """Put what has travelled back into the gradients."""
        if block.index not in self._staging:
            return
        pieces = self.pieces(block)
        if self._is_staged(pieces):
            copy_each(pieces, self._staged(block, pieces).places)

    def pieces(self, block: Block) -> list[Tensor]:
        """The parts of gradients that a block holds; a whole gradient has its shape."""
        gradients, pieces, staging = self._gradients, list[Tensor](), self._staging.get(block.index)
        if staging is not None and staging.block is block and staging.whole:
            return [gradients[tensor] for tensor in staging.whole]  # type: ignore[misc]  # all were put
        for segment in block.segments:
            gradient = gradients[segment.tensor]
            assert gradient is not None, f"tensor {segment.tensor} travels before it was put"
            whole = segment.stop - segment.start == gradient.numel()
            pieces.append(gradient if whole else gradient.view(-1)[segment.start : segment.stop])
        return pieces

    def _is_staged(self, pieces: list[Tensor]) -> bool:
        return len(pieces) > 1 or self._wire_dtype not in (None, pieces[0].dtype)

    def _staged(self, block: Block, pieces: list[Tensor]) -> "_Staging":
        dtype = self._wire_dtype or pieces[0].dtype
        staging = self._staging.get(block.index)
        if staging is None or staging.block is not block or staging.room.dtype != dtype:
            room = torch.empty(sum(piece.numel() for piece in pieces), dtype=dtype, device=pieces[0].device)
            staging = self._staging[block.index] = _Staging(block, room)
        if not staging.places:
            whole = (piece is self._gradients[at.tensor] for piece, at in zip(pieces, block.segments, strict=True))
            staging.whole = [segment.tensor for segment in block.segments] if all(whole) else []
            parts = torch.split_with_sizes(staging.room, [piece.numel() for piece in pieces])
            staging.places = [part.view(piece.shape) for part, piece in zip(parts, pieces, strict=True)]
        return staging


@dataclass
class _Staging:
    """Where a block is packed, step after step.

    Args:
        block: that is packed.
        room: what travels, shape [numel].
        places: views of `room`, one for each segment, in the shapes of the pieces; none where these have changed.
        whole: the tensors, where the block holds each as a whole.
    """

    block: Block
    room: Tensor
    places: list[Tensor] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)


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
