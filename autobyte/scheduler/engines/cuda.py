"""CUDA's streams and events. No GPU has run this file yet: its calls and their order are tested on stand-ins.

It is short enough to be read beside CUDA's rules. What depends on them, the order of launches, waits and events, is
shared with streams in host memory, and tested there.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from autobyte.scheduler.engines.streams import Event, Streams, Work


class CudaStreams(Streams):
    """Streams of one GPU. Communication has a high priority: its kernels start as soon as there is room.

    Args:
        device: the GPU.
    """

    ahead = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._communication = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self.error: Exception | None = None  # why what is awaited will not come
        self.unused: list[torch.cuda.Event] = []  # to be recorded again

    def mark(self, written: Iterable[Tensor] = ()) -> Event:
        """Record an event on the current stream of the thread that calls: in a hook, that of the backward pass."""
        return CudaEvent(torch.cuda.current_stream(self.device), self)

    def enqueue(self, work: Work, after: Iterable[Event], used: Iterable[Tensor] = ()) -> Event:
        """Run work with the communication stream as the current one: its kernels queue there."""
        for event in after:
            assert isinstance(event, CudaEvent)
            self._communication.wait_event(event.event)
        for tensor in used:
            tensor.record_stream(self._communication)
        with torch.cuda.stream(self._communication):
            work()
        return CudaEvent(self._communication, self)

    def wait(self, event: Event) -> None:
        """Let the current stream wait; the host goes on.

        Raises:
            Exception: with which waits were given up, if this one was not over by then.
        """
        assert isinstance(event, CudaEvent)
        if self.error is not None:
            event.is_over()
        torch.cuda.current_stream(self.device).wait_event(event.event)

    def give_up(self, error: Exception) -> None:
        """Take no event for over from now on that was not seen to be: kernels that are aborted end, too."""
        self.error = error

    def close(self) -> None:
        """Do nothing: streams end with the process."""


class CudaEvent(Event):
    """An event of CUDA's, with its time. It is recorded when it is made: to wait for one that is not is no wait."""

    def __init__(self, stream: torch.cuda.Stream, streams: CudaStreams) -> None:
        self._streams = streams
        try:
            self.event = streams.unused.pop()
        except IndexError:  # not looked at before: another thread may take the last
            self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.event.record(stream)
        self._over = False

    def __del__(self) -> None:
        self._streams.unused.append(self.event)  # what waits for it by now has seen this record of it

    def is_over(self) -> bool:
        """Whether the device has got there.

        Raises:
            Exception: with which waits were given up, before this event was seen to be over.
        """
        if not self._over:
            over = bool(self.event.query())  # type: ignore[no-untyped-call]
            if self._streams.error is not None:  # looked at behind the query: an abort that follows ends kernels
                raise self._streams.error
            self._over = over
        return self._over

    def elapsed_s(self, later: Event) -> float:
        """Time to a later event, as the device took it (s)."""
        assert isinstance(later, CudaEvent)
        return float(self.event.elapsed_time(later.event)) / 1e3
