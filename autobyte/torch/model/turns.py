"""Streams of a GPU that copy and update the same parameters, one after the other."""

from collections.abc import Iterable

import torch


class Turns:
    """Whose turn it is: on every GPU the current stream runs behind the one that had the parameters before.

    A user may call layers under streams of his own. Then a layer can be copied on one stream and updated on another,
    which knows nothing of the copy. On the CPU there is one thread, and nothing to do.

    >>> turns = Turns(parameter.device for parameter in model.parameters())
    >>> turns.take()                           # what is enqueued next runs behind all that followed an earlier call

    Args:
        devices: of the parameters.
    """

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._latest: dict[torch.device, torch.cuda.Stream | None] = {
            device: None for device in devices if device.type == "cuda"
        }
        #: Where parameters were updated last, and an event behind it; empty on the CPU.
        self.updated: dict[torch.device, tuple[torch.cuda.Stream, torch.cuda.Event]] = {}

    def take(self) -> None:
        """Let the current streams wait for those that were current at the call before; the host goes on."""
        for device, latest in self._latest.items():
            current = torch.cuda.current_stream(device)
            if latest is not None and latest != current:
                current.wait_stream(latest)
            self._latest[device] = current

    def done(self) -> None:
        """Parameters were updated on the current streams: `follow` waits for what is enqueued there by now."""
        for device in self._latest:
            stream = torch.cuda.current_stream(device)
            if device not in self.updated:
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            else:
                _, event = self.updated[device]
            event.record(stream)
            self.updated[device] = stream, event

    def follow(self) -> None:
        """Let the current streams wait for the latest update, not for what its stream was given since."""
        for device, (stream, event) in self.updated.items():
            current = torch.cuda.current_stream(device)
            if current != stream and not torch.cuda.is_current_stream_capturing():  # it begins when all is over
                current.wait_event(event)
