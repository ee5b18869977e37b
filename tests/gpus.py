"""Stand-ins for CUDA's streams and events, which note what they are told: whatever is enqueued is over at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

GPU = torch.device("cuda", 0)
Call = tuple[Any, ...]


class Stream:
    """A stream; `log` has what was given to all of them, in that order."""

    log: ClassVar[list[Call]] = []
    current: ClassVar[list["Stream"]] = []

    def __init__(self, device: torch.device | None = None, priority: int = 0, name: str = "communication") -> None:
        self.name, self.device, self.priority = name, device, priority

    def wait_event(self, moment: "Moment") -> None:
        assert moment.recorded, "an event that was not recorded yet is no wait at all"
        self.log.append(("wait", self.name, moment))

    def wait_stream(self, stream: "Stream") -> None:
        self.log.append(("follow", self.name, stream.name))


class Moment:
    """An event: until it is recorded, waiting for it is no wait; `over` is what a query says."""

    always_over: ClassVar[bool] = True

    def __init__(self, enable_timing: bool = False) -> None:
        self.recorded, self.over, self.enable_timing = False, self.always_over, enable_timing

    def record(self, stream: Stream) -> None:
        self.recorded, self.over = True, self.always_over
        Stream.log.append(("record", stream.name, self))

    def query(self) -> bool:
        return self.over

    def elapsed_time(self, later: "Moment") -> float:
        return 2.5


class Ranks:
    """As NCCL on the current stream, it has nothing to say of what it was given.

    Args:
        backend: sums, for it; None is one rank alone.
    """

    def __init__(self, backend: Any = None) -> None:
        self._backend = backend
        self.called: list[str] = []
        self.lost = False  # its kernels wait for a rank that is gone

    def size(self) -> int:
        return 1 if self._backend is None else self._backend.size()

    def allreduce(self, tensors: list[Tensor], options: Any) -> None:
        self._launch("all-reduce", options)
        if self._backend is not None and not self.lost:
            self._backend.allreduce(tensors, options).wait()

    def _reduce_scatter_base(self, share: Tensor, parts: Tensor, options: Any) -> None:
        self._launch("reduce-scatter", options)
        if self._backend is None:
            share.copy_(parts)
        elif not self.lost:
            self._backend._reduce_scatter_base(share, parts, options).wait()

    def _allgather_base(self, whole: Tensor, share: Tensor, options: Any) -> None:
        self._launch("all-gather", options)
        if self._backend is None:
            whole.copy_(share)
        elif not self.lost:
            self._backend._allgather_base(whole, share, options).wait()

    def abort(self) -> None:
        self.called.append("abort")

    def shutdown(self) -> None:
        self.called.append("shutdown")

    def _launch(self, what: str, options: Any) -> None:
        assert not options.asyncOp
        Stream.log.append((what, Stream.current[-1].name))


@contextmanager
def on(stream: Stream) -> Iterator[None]:
    Stream.current.append(stream)
    yield
    Stream.current.pop()


def stand_in(put: Callable[[Any, str, Any], object] = setattr) -> None:
    """Take the places of what PyTorch has for CUDA."""
    Stream.log.clear()
    Stream.current[:] = [Stream(GPU, name="model")]
    put(torch.cuda, "Stream", Stream)
    put(torch.cuda, "Event", Moment)
    put(torch.cuda, "stream", on)
    put(torch.cuda, "current_stream", lambda device: Stream.current[-1])
    put(torch.cuda, "is_current_stream_capturing", lambda: False)
    put(Tensor, "record_stream", lambda tensor, stream: Stream.log.append(("keep", stream.name)))
