"""Passes on what the exchange tells of a step to the wrapper's parts, most of which are made after the exchange."""

from collections.abc import Callable, Sequence

from torch import Tensor
from torch.distributed.algorithms.join import Join, Joinable

from autobyte.exchange.tuning.online import Online
from autobyte.torch.exchange.listener import Listener
from autobyte.torch.exchange.resume import Resumption
from autobyte.torch.exchange.verify import Verification
from autobyte.torch.model.times import LayerTimes
from autobyte.torch.model.updates import Updates


class Listeners(Listener):
    """Passes on what the exchange tells to those parts that exist by now.

    Args:
        joinable: the wrapper, for which torch's `Join` tells ranks without inputs that a step begins.
    """

    def __init__(self, joinable: Joinable) -> None:
        self._joinable = joinable
        self._updates: Updates | None = None
        self._online: Online | None = None
        self._resumption: Resumption | None = None

    def start(
        self,
        updates: Updates,
        verification: Verification,
        resumption: Resumption,
        *,
        read: Callable[[], None],
        dropped: Callable[[], None],
    ) -> None:
        """Tell these parts from now on; the first step may begin after that."""
        self._read, self._dropped = read, dropped
        self._updates = updates
        self._resumption = resumption
        if verification.active:
            self.leaves = verification.keep

    def measure(self, times: LayerTimes, layer_of: Sequence[int]) -> None:
        """Mark when gradients are complete, from now on.

        Args:
            times: of the layers.
            layer_of: the index of the layer of every gradient that travels, by place.
        """
        self.complete = times.gradients(layer_of)

    def tune(self, online: Online) -> None:
        """Ask this part what there is to announce, from the next step on."""
        self._online = online

    def begins(self) -> bool:
        """Tell ranks whose inputs have ended, by torch's `Join`; whether there can be any."""
        return Join.notify_join_context(self._joinable) is not None

    def backward(self) -> None:
        """Take updates that are still due from the step before."""
        if self._updates is not None:
            self._updates.settle()

    def dropped(self) -> None:
        """Give the open step up."""
        self._dropped()

    def read(self) -> None:
        """Clip averages, which somebody reads."""
        self._read()

    def announces(self) -> bool:
        """Whether rank 0 has an answer, or a window may end."""
        return self._online is not None and self._online.announces()

    def loaded(self) -> Tensor | None:
        """What this rank trains, if it has loaded something."""
        return None if self._resumption is None else self._resumption.note()
