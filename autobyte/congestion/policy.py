"""The network at work, in NumPy: no PyTorch is loaded where a rate is only to be chosen."""

from collections.abc import Mapping

import numpy as np

from autobyte.congestion.senses import Values
from autobyte.errors import InputError

#: Shapes of a head's arrays: the weights of the objective and the features have a layer each (MOCC, sec. 4.2).
WISH, SEEN, JOINT = 16, 48, 32
SHAPES = {
    "wish.weight": (WISH, 3),
    "wish.bias": (WISH,),
    "seen.weight": (SEEN, 30),
    "seen.bias": (SEEN,),
    "joint.weight": (JOINT, WISH + SEEN),
    "joint.bias": (JOINT,),
    "out.weight": (1, JOINT),
    "out.bias": (1,),
}
#: Without the sub-network of the objective, as in the release: weights and features in one layer
PLAIN = {"both.weight": (WISH + SEEN, 33), "both.bias": (WISH + SEEN,)} | {
    name: shape for name, shape in SHAPES.items() if name.startswith(("joint", "out"))
}
HEADS = ("actor", "critic")


class RatePolicy:
    """Actor and critic of one network.

    >>> policy = shipped()
    >>> policy.action(np.zeros((1, 33), dtype=np.float32))  # shape [1]

    Args:
        arrays: by name, such as `actor.wish.weight`, and `log_std`.

    Raises:
        InputError: an array that is missing, of another shape, or not finite.
    """

    def __init__(self, arrays: Mapping[str, Values]) -> None:
        shapes = PLAIN if "actor.both.weight" in arrays else SHAPES
        wanted = {f"{head}.{name}": shape for head in HEADS for name, shape in shapes.items()} | {"log_std": (1,)}
        self.arrays: dict[str, Values] = {}
        for name, shape in wanted.items():
            if name not in arrays or arrays[name].shape != shape or not np.isfinite(arrays[name]).all():
                raise InputError(f"the policy needs finite numbers of shape {list(shape)} as '{name}'")
            self.arrays[name] = np.ascontiguousarray(arrays[name], dtype=np.float32)
        self._plain = shapes is PLAIN
        self.log_std = float(self.arrays["log_std"][0])

    def action(self, inputs: Values) -> Values:
        """The mean action; inputs have shape [n, 33], the answer [n]."""
        return self._head("actor", inputs)

    def value(self, inputs: Values) -> Values:
        """What the critic expects; inputs have shape [n, 33], the answer [n]."""
        return self._head("critic", inputs)

    def _head(self, head: str, inputs: Values) -> Values:
        if self._plain:
            hidden = np.tanh(self._layer(f"{head}.both", inputs))
        else:
            wish, seen = self._layer(f"{head}.wish", inputs[:, :3]), self._layer(f"{head}.seen", inputs[:, 3:])
            hidden = np.tanh(np.concatenate([wish, seen], axis=1))
        out: Values = self._layer(f"{head}.out", np.tanh(self._layer(f"{head}.joint", hidden)))[:, 0]
        return out

    def _layer(self, name: str, inputs: Values) -> Values:
        layer: Values = inputs @ self.arrays[f"{name}.weight"].T + self.arrays[f"{name}.bias"]
        return layer
