"""Moments of a model's computing: by the host's clock, or by events where the host runs ahead of a device."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch

from autobyte.scheduler.engines.cuda import CudaStreams
from autobyte.scheduler.engines.streams import Event, Streams

Mark = Any  # a moment: of one kind of `Marks`, and for that alone to read


class Marks(ABC):
    """Marks moments, and tells later how far apart they are."""

    free: bool  # whether it costs next to nothing

    @abstractmethod
    def now(self) -> Mark:
        """The moment at which what the model was given so far has been computed. Nobody waits for it."""

    @abstractmethod
    def seconds(self, marks: Sequence[Mark]) -> list[float] | None:
        """When moments were, by a clock of their own (s); None while one of them has not come.

        Raises:
            Exception: what comes before one of them has failed.
        """


class HostMarks(Marks):
    """The host's clock, where the thread that trains computes."""

    free = True

    now = staticmethod(time.perf_counter)

    def seconds(self, marks: Sequence[Mark]) -> list[float] | None:
        """The times."""
        return list(marks)


class StreamMarks(Marks):
    """Events of the stream on which the model computes.

    Args:
        mark: records one.
    """

    free = False

    def __init__(self, mark: Callable[[], Event]) -> None:
        self._mark = mark

    def now(self) -> Mark:
        """An event."""
        return self._mark()

    def seconds(self, marks: Sequence[Mark]) -> list[float] | None:
        """Times since the first."""
        if not all(mark.is_over() for mark in marks):
            return None
        return [marks[0].elapsed_s(mark) for mark in marks]


def marks_of(streams: Streams | None, device: torch.device) -> Marks:
    """How moments of a model's computing are marked.

    Args:
        streams: on which it computes, if they are known.
        device: that computes.
    """
    if streams is None and device.type == "cuda":
        streams = CudaStreams(device)
    return HostMarks() if streams is None else StreamMarks(streams.mark)
