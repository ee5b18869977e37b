"""Gradients of a model on a GPU travel from host memory: copies leave beside backward, and averages come back."""

import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from autobyte.scheduler.engines.buffers import flat

Arrived = Callable[[], None]
_Copied = tuple[torch.device, torch.cuda.Event]


class Mirrors:
    """A copy in pinned host memory of every gradient that lies elsewhere, one for each parameter.

    A copy is taken on a stream of its own, behind what the current stream has been given so far; a thread waits for
    it and then says that the gradient is complete. What comes back is copied on the current stream, so that the
    update which is issued next sees it. On a slow network the way over the bus, at tens of gigabytes a second, is
    short.

    Args:
        parameters: whose gradients travel.
        everywhere: mirror those in host memory, too; for tests.
        failed: told if a copy fails.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        failed: Callable[[Exception], None],
        everywhere: bool = False,
    ) -> None:
        self._mirrors = {
            name: torch.empty(parameter.numel(), dtype=parameter.dtype, device="cpu", pin_memory=parameter.is_cuda)
            for name, parameter in parameters.items()
            if everywhere or parameter.device.type != "cpu"
        }
        self._failed = failed
        self._away: dict[str, Tensor] = {}  # gradients that are to come back
        self._waiting: queue.SimpleQueue[tuple[list[_Copied], Arrived] | None] = queue.SimpleQueue()
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._thread: threading.Thread | None = None
        if self._mirrors:
            self._thread = threading.Thread(target=self._tell, name="autobyte-mirrors", daemon=True)
            self._thread.start()

    def __contains__(self, name: str) -> bool:
        """Whether a parameter's gradient has a mirror."""
        return name in self._mirrors

    def leave(self, name: str, gradient: Tensor) -> Tensor:
        """Begin to copy a gradient.

        Returns:
            the copy, shape [numel]; complete when what `then` is given next is called.
        """
        self._away[name] = gradient
        self._copy(self._mirrors[name], gradient)
        return self._mirrors[name]

    def then(self, arrived: Arrived) -> None:
        """Call something, from a thread, when every copy that has begun is complete; now if there are no mirrors."""
        if self._thread is None:
            arrived()
            return
        copied = []
        for device, stream in self._streams.items():
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(stream)
            copied.append((device, event))
        self._waiting.put((copied, arrived))

    def settle(self, timeout_s: float) -> bool:
        """Wait until all that was asked for has been called; whether it has been, in time."""
        if self._thread is None or not self._thread.is_alive():
            return True
        settled = threading.Event()
        self._waiting.put(([], settled.set))
        return settled.wait(timeout_s)

    def bring(self, names: Iterable[str]) -> None:
        """Copy averages back into the gradients that left, on the current stream."""
        for name in names:
            gradient = self._away.pop(name, None)
            if gradient is not None:
                flat(gradient).copy_(self._mirrors[name], non_blocking=True)

    def close(self) -> None:
        """Let the thread end."""
        if self._thread is not None:
            self._waiting.put(None)

    def _copy(self, mirror: Tensor, gradient: Tensor) -> None:
        there: AbstractContextManager[object] = nullcontext()
        if gradient.is_cuda:
            stream = self._stream(gradient.device)
            stream.wait_stream(torch.cuda.current_stream(gradient.device))
            gradient.record_stream(stream)  # its memory is not given away before the copy is over
            there = torch.cuda.stream(stream)
        with there:
            mirror.copy_(flat(gradient), non_blocking=True)

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]

    def _tell(self) -> None:
        while (item := self._waiting.get()) is not None:
            copied, arrived = item
            try:
                for device, event in copied:
                    with torch.cuda.device(device):  # a thread begins on the first one, which may be another rank's
                        event.synchronize()
                arrived()
            except Exception as error:  # of the GPU: the training thread is told
                self._failed(error)
