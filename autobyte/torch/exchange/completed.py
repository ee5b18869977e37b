"""The gradients of a step that backward passes have completed: which travel, who reads them, who has changed them."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import Tensor, nn

from autobyte.exchange.progress import Progress
from autobyte.internals import after_backward, backward_pass
from autobyte.torch.exchange import refusals
from autobyte.torch.model.awaited import Awaited
from autobyte.torch.model.pending import as_they_are

Complete = tuple[int, Tensor, int]  # a gradient's place, the gradient, and its version when it was complete


class Completed:
    """Gradients in the order in which they became complete.

    Args:
        parameters: name and parameter of every gradient that travels.
        frozen: parameters that do not travel.
        progress: knows whether the step is open.
        arrive: waits for the average at a place, before the step is closed.
        drop: gives the open step up.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        frozen: Mapping[str, nn.Parameter],
        progress: Progress,
        arrive: Callable[[nn.Parameter], None],
        drop: Callable[[], None],
    ) -> None:
        self.names, self.parameters = list(parameters), list(parameters.values())  # both by place
        self.place = {id(parameter): place for place, parameter in enumerate(self.parameters)}
        self.gradients: list[Complete] = []
        self.bears_changes = False  # whether averages that were read may be changed, as DDP's may be
        self.awaited = Awaited(self.parameters, arrive)
        self._frozen = frozen
        self._progress = progress
        self._drop = drop
        self._pass = -1  # the backward pass behind which reads are seen
        self._sent = 0  # how many of them travel
        self._read: set[int] = set()  # places of averages that were read
        self._changed = False

    def begin(self) -> None:
        """A step begins."""
        self._read.clear()

    def watch(self) -> None:
        """See reads of gradients when the backward pass that calls this is over, if one does."""
        now = backward_pass()
        if now >= 0 and now != self._pass:
            self._pass = now
            after_backward(self._watch)

    def _watch(self) -> None:
        if self._progress.open:
            self.awaited.set()

    def send(self, travel: Callable[[Sequence[Complete]], list[Complete]]) -> None:
        """Let those travel that do not travel yet.

        Args:
            travel: lets them, and returns what does, which is `.grad` from now on.
        """
        first, self._sent = self._sent, len(self.gradients)
        if first < self._sent:
            self.gradients[first:] = travel(self.gradients[first:])

    def missing(self) -> list[str]:
        """Names of gradients that are not complete, or lie in the user's buffers."""
        if len(self.gradients) == len(self.names):
            return []
        complete = {place for place, _, _ in self.gradients}
        return [name for place, name in enumerate(self.names) if place not in complete]

    def note_read(self, place: int) -> None:
        """An average was read, in place: who changes it from now on changes the average."""
        self._read.add(place)

    def is_untouched(self, complete: Complete) -> bool:
        """Whether a gradient is what it was when it was complete."""
        place, gradient, version = complete
        with as_they_are():
            return self.parameters[place].grad is gradient and gradient._version == version

    def give_up(self, gradients: Iterable[tuple[nn.Parameter, Tensor]] | None = None) -> bool:
        """A backward pass finds an open step that has all its gradients: give the step up where all were let go of.

        A loop does so by the model's `zero_grad()`, or an optimizer does between its own two passes.

        Args:
            gradients: of the step, by default those that were complete.

        Returns:
            whether it was given up.
        """
        if gradients is None:
            gradients = [(self.parameters[place], gradient) for place, gradient, _ in self.gradients]
        of = dict(gradients)
        with as_they_are():
            now = [parameter.grad for parameter in self.parameters]
            if not of or any(parameter.grad is gradient for parameter, gradient in of.items()):
                return False
            for parameter in self.parameters:
                parameter.grad = of.get(parameter)
        self._drop()
        with as_they_are():
            for parameter, gradient in zip(self.parameters, now, strict=True):
                parameter.grad = gradient
        return not self._progress.open

    def unwatch(self) -> None:
        """Let nobody wait: what trains the model reads gradients before the step, and does not use them."""
        self.awaited.restore()
        self.awaited = Awaited((), lambda _: None)

    def check(self, *, ahead: bool, norm_known: bool = False) -> None:
        """Refuse gradients that were changed while they travel, and those of parameters that were frozen.

        Args:
            ahead: of `step()`: they will be looked at once more.
            norm_known: the norm of averages comes from what has travelled.

        Raises:
            InputError: there are some.
        """
        self.awaited.restore()
        complete = self.gradients
        if not ahead:
            self.gradients, self._sent = [], 0
        for index, (place, gradient, version) in enumerate(complete):
            parameter = self.parameters[place]
            if (now := parameter.grad) is not gradient or gradient._version != version:
                if not self.bears_changes or place not in self._read or now is None or norm_known:
                    raise refusals.changed(self.names[place], parameter)
                complete[index] = place, now, now._version
                self._changed = True
        for name, parameter in self._frozen.items():
            if parameter.grad is not None:
                raise refusals.thawed(name)

    def has_changed(self) -> bool:
        """Whether averages were changed before the step that used them, since this was asked last."""
        changed, self._changed = self._changed, False
        return changed
