"""What parameters were before steps that a device has not finished: they can be undone, though the host went on."""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.optim import Optimizer

from autobyte.torch.model.former import Former

KEPT = 2  # steps at most: the one that the device works on, and the one that the host has enqueued behind it

Hyper = list[dict[str, Any]]  # hyper-parameters of every group


class Unfinished:
    """Copies of parameters and optimizer state, one for each step that a device has not finished.

    >>> unfinished = Unfinished(optimizer)
    >>> unfinished.keep(hyper, whole)          # before the step's updates are enqueued
    >>> unfinished.undo()                      # a step was never whole: parameters are what they were before it

    They are made on the device's stream, behind the step before, and nobody waits for them. Where the host is further
    ahead than copies reach, a step has none; it cannot be undone if it turns out to be the first that is not whole.

    Args:
        optimizer: its parameters and state are kept.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._free = [Former(optimizer) for _ in range(KEPT)]
        self._steps: deque[_Unfinished] = deque()

    def keep(self, hyper: Hyper, whole: Callable[[], bool], *, copy: bool = True) -> None:
        """Copy parameters and state, before a step changes them.

        Args:
            hyper: of the step.
            whole: tells whether all averages of the step are in place; nobody waits.
            copy: whether they are still what they were before the step.
        """
        self._forget_whole()
        former = self._free.pop() if copy and self._free else None
        if former is not None:
            former.keep(parameter for group in self._optimizer.param_groups for parameter in group["params"])
        self._steps.append(_Unfinished(former, hyper, whole))

    def undo(self) -> tuple[int, Hyper] | None:
        """Make parameters and state what they were before the first step that is not whole.

        Returns:
            how many steps are undone, and the hyper-parameters of the first of them; None if it has no copies.
        """
        self._forget_whole()
        if not self._steps:
            return 0, []
        first, undone = self._steps[0], len(self._steps)
        if first.former is None:
            return None
        first.former.bring_back()
        while self._steps:
            self._forget(self._steps.popleft())
        return undone, first.hyper

    def _forget_whole(self) -> None:
        while self._steps and self._steps[0].whole():
            self._forget(self._steps.popleft())

    def _forget(self, step: "_Unfinished") -> None:
        if step.former is not None:
            step.former.forget()
            self._free.append(step.former)


class _Unfinished(NamedTuple):
    """A step, what was before it if that is kept, and what tells whether it is whole."""

    former: Former | None
    hyper: Hyper
    whole: Callable[[], bool]
