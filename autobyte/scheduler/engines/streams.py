"""Streams and events: queues of work on a device, and moments in them that other queues can wait for.

A GPU computes while the host runs ahead. Whatever depends on its results is therefore put into a queue (a stream)
behind them, and the host waits for nothing. There are two implementations: CUDA's in `cuda.py`, and one in host
memory here, on which all that depends on the order of launches, waits and events is tested without a GPU.
"""

import queue
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar

import torch
from torch import Tensor

Work = Callable[[], None]

POLL_S = 0.1  # after which a wait on the host looks whether it was given up


class Event(ABC):
    """A moment in a stream."""

    @abstractmethod
    def is_over(self) -> bool:
        """Whether the stream has got there; nobody waits.

        Raises:
            Exception: of the work before it, if that has failed.
        """

    @abstractmethod
    def elapsed_s(self, later: "Event") -> float:
        """Time from this event to a later one (s); both are over."""


class Streams(ABC):
    """The stream on which the model computes, and one beside it for communication.

    `ahead` says whether the thread that trains runs ahead of the model's stream: `wait` then returns at once, and
    what it is given next may compute with whatever lies in memory if communication fails.
    """

    ahead: ClassVar[bool]

    @abstractmethod
    def mark(self, written: Iterable[Tensor] = ()) -> Event:
        """Record an event behind all that the model's stream has been given so far; in `work`, behind what that does.

        Args:
            written: what is complete at that moment.
        """

    @abstractmethod
    def enqueue(self, work: Work, after: Iterable[Event], used: Iterable[Tensor] = ()) -> Event:
        """Put work into the communication stream, behind events; return the moment at which it is done.

        Args:
            work: enqueues kernels and collectives.
            after: what it must wait for.
            used: memory that must not be given to others before the work is done.
        """

    @abstractmethod
    def wait(self, event: Event) -> None:
        """Let the model's stream wait for an event: what it is given next runs after that.

        Raises:
            Exception: of the work before it, or with which waits were given up, where that is known by now.
        """

    @abstractmethod
    def give_up(self, error: Exception) -> None:
        """Let no wait go on: what is awaited, and was not seen to be over, will not come."""

    @abstractmethod
    def close(self) -> None:
        """Let go of threads; work that has begun may still go on."""


class HostEvent(Event):
    """An event of `HostStreams`."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._error: Exception | None = None
        self._at_s = 0.0

    def happen(self, error: Exception | None = None) -> None:
        """The stream has got here; an error says that the work before it failed."""
        self._at_s, self._error = time.perf_counter(), error
        self._over.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait on the host; whether it is over in time.

        Raises:
            Exception: of the work before it, if that has failed.
        """
        self._over.wait(timeout_s)
        return self.is_over()

    def is_over(self) -> bool:
        """Whether the stream has got there."""
        over = self._over.is_set()
        if over and self._error is not None:
            raise self._error
        return over

    def elapsed_s(self, later: Event) -> float:
        """Time to a later event (s)."""
        assert isinstance(later, HostEvent)
        return later._at_s - self._at_s


class HostStreams(Streams):
    """Streams in host memory: a stream is a thread with a queue, and work may be as late as it likes.

    The model computes on the thread that trains, so its results are there when `mark` is called. To stand for a GPU,
    `mark` can hide them: what was written holds NaN until the event happens, later, on a thread of its own. Whoever
    reads memory without waiting for its event then computes with NaN. `compute` puts work before later marks, as a
    kernel is before them. `waits` counts the events that the model's stream has waited for: there a GPU waits, and
    the thread that trains goes on.

    Args:
        late: called before an event of the model's stream happens, and before work of the communication stream
            begins; it may sleep.
        hide: hide what was written until its event happens.
        timeout_s: of waits on the host.
    """

    ahead = False

    def __init__(self, *, late: Work | None = None, hide: bool = False, timeout_s: float = 120.0) -> None:
        self._late = late
        self._hide = hide
        self._timeout_s = timeout_s
        self._given_up: Exception | None = None
        self.waits = 0
        self._computes = late is not None or hide  # so events of the model's stream happen later
        self._compute, self._communication = _Queue("compute"), _Queue("communication")

    def mark(self, written: Iterable[Tensor] = ()) -> Event:
        """Record an event on the model's stream."""
        if not self._computes or self._communication.is_current:
            event = HostEvent()
            event.happen()
            return event
        hidden = [(tensor, tensor.clone()) for tensor in written] if self._hide else []
        for tensor, _ in hidden:
            tensor.fill_(torch.nan)

        def appear() -> None:
            self._sleep()
            for tensor, value in hidden:
                tensor.copy_(value)

        return self._compute.put(appear, ())

    def compute(self, work: Work) -> None:
        """Put work into the queue of the model's stream; it stands for a kernel."""
        self._computes = True
        self._compute.put(work, ())

    def enqueue(self, work: Work, after: Iterable[Event], used: Iterable[Tensor] = ()) -> Event:
        """Put work into the queue of the communication thread."""

        def later() -> None:
            self._sleep()
            work()

        return self._communication.put(later, after)

    def wait(self, event: Event) -> None:
        """Wait on the host: the thread that trains is the model's stream.

        Raises:
            TimeoutError: the event does not happen in time.
            Exception: of the work before it, if that has failed.
        """
        assert isinstance(event, HostEvent)
        if event.is_over():
            return
        self.waits += 1
        until = time.monotonic() + self._timeout_s
        while not event.wait(POLL_S):
            if self._given_up is not None:
                raise self._given_up
            if time.monotonic() > until:
                raise TimeoutError(f"a stream did not get there within {self._timeout_s:g} s")

    def give_up(self, error: Exception) -> None:
        """End waits, now and from now on, with an error."""
        self._given_up = error

    def close(self) -> None:
        """Let the threads end, when they have done what they were given."""
        self._compute.close()
        self._communication.close()

    def _sleep(self) -> None:
        if self._late is not None:
            self._late()


def are_working() -> bool:
    """Whether a stream in host memory is doing something: in the network, say, where only its end can stop it."""
    return any(queue.is_working for queue in list(_queues))


class _Queue:
    """A thread that does one thing after the other."""

    def __init__(self, name: str) -> None:
        self._items: queue.SimpleQueue[tuple[Work, list[HostEvent], HostEvent] | None] = queue.SimpleQueue()
        self._works = False
        _queues.add(self)
        self._thread = threading.Thread(target=self._run, name=f"autobyte-{name}", daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether its work is what calls."""
        return threading.current_thread() is self._thread

    @property
    def is_working(self) -> bool:
        """Whether it does something, or is to do it."""
        return self._works or not self._items.empty()

    def put(self, work: Work, after: Iterable[Event]) -> HostEvent:
        event = HostEvent()
        self._items.put((work, [each for each in after if isinstance(each, HostEvent)], event))
        return event

    def close(self) -> None:
        self._items.put(None)

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            work, after, event = item
            try:
                for each in after:
                    each.wait()
                self._works = True
                work()
            except Exception as error:  # told to whoever waits for the event, and for those behind it
                event.happen(error)
            else:
                event.happen()
            finally:
                self._works = False


_queues: "weakref.WeakSet[_Queue]" = weakref.WeakSet()
