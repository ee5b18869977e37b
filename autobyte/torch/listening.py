"""Who hears of a step in training: the wrapper's parts, of which most can be made only when training has begun."""

from collections.abc import Mapping

from torch import Tensor
from torch.distributed.algorithms.join import Join, Joinable

from autobyte.torch.exchange.exchange import Listener
from autobyte.torch.exchange.verify import Verification
from autobyte.torch.model.times import LayerTimes
from autobyte.torch.model.updates import Updates
from autobyte.torch.tuning.online import Online


class Listeners(Listener):
    """Passes on what the exchange tells to the parts that are there.

    Args:
        joinable: in whose name ranks without inputs are told that a step begins.
    """

    def __init__(self, joinable: Joinable) -> None:
        self._joinable = joinable
        self._updates: Updates | None = None
        self._verification: Verification | None = None
        self._times: LayerTimes | None = None
        self._layer_of: Mapping[str, int] = {}
        self._online: Online | None = None

    def start(self, updates: Updates, verification: Verification) -> None:
        """The first step may begin."""
        self._updates = updates
        self._verification = verification if verification.active else None

    def measure(self, times: LayerTimes, layer_of: Mapping[str, int]) -> None:
        """Layers are known.

        Args:
            times: of the layers.
            layer_of: the layer of every gradient that travels.
        """
        self._times, self._layer_of = times, layer_of

    def tune(self, online: Online) -> None:
        """From the next step on, ranks announce what they have to say."""
        self._online = online

    def begins(self) -> bool:
        """Tell ranks whose inputs have ended, within torch's `Join`."""
        return Join.notify_join_context(self._joinable) is not None

    def backward(self) -> None:
        """What is due of an earlier step is overdue."""
        if self._updates is not None:
            self._updates.settle()

    def gradient(self, name: str) -> None:
        """Mark the time."""
        if self._times is not None:
            self._times.gradient(self._layer_of[name])

    def leaves(self, name: str, gradient: Tensor) -> None:
        """Keep a copy, while steps are verified."""
        if self._verification is not None:
            self._verification.keep(name, gradient)

    def announces(self) -> bool | None:
        """Whether rank 0 has an answer, or a window may end."""
        return None if self._online is None else self._online.announces()
