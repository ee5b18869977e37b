"""What is known of a job before it runs: the layers' gradients, the blocks they make, which model it is."""

from functools import cached_property

import numpy as np

from autobyte.config import Config
from autobyte.features.schema import ROWS
from autobyte.job import ITEMSIZE, Floats, Ints, Model

KNOWN_MODELS = ("resnet50", "vgg16", "alexnet")  # those that networks are trained on: AutoByte, sec. III-B


class Static:
    """A model, as far as features need it.

    Args:
        model: what is trained.
        wire_bytes: of gradient that travel in a step; 0: as many as the model has.
    """

    def __init__(self, model: Model, *, wire_bytes: int = 0) -> None:
        own = np.array([tensor.numel * ITEMSIZE[tensor.dtype] for tensor in model.tensors], dtype=float)
        scale = wire_bytes / own.sum() if wire_bytes and own.sum() else 1.0
        self.model = model
        self.tensor_bytes: Floats = own * scale
        self.tensor_layer: Ints = np.array([tensor.layer for tensor in model.tensors], dtype=np.int64)
        self.layers = len(model.layers)
        self._cuts: dict[tuple[int, float], tuple[Floats, float]] = {}

    @cached_property
    def layer_bytes(self) -> Floats:
        """Gradient of each layer (bytes), shape [layers]."""
        return self._per_layer(self.tensor_bytes)

    @cached_property
    def total_bytes(self) -> float:
        """Gradient of the whole model (bytes)."""
        return float(self.tensor_bytes.sum())

    @cached_property
    def largest_bytes(self) -> float:
        """The largest tensor (bytes); at least 1."""
        return max(1.0, float(self.tensor_bytes.max(initial=1.0)))

    @cached_property
    def groups(self) -> Ints:
        """The row of each layer, at most ROWS of them, as even as can be; shape [layers]."""
        rows = min(self.layers, ROWS)
        return np.arange(self.layers) * rows // self.layers

    def pooled(self, values: Floats) -> Floats:
        """Sums over the layers of each row; shape [..., layers] to [..., rows]."""
        return np.add.reduceat(values, self._starts, axis=-1)

    @cached_property
    def _starts(self) -> Ints:
        """First layer of each row."""
        return np.searchsorted(self.groups, np.arange(self.groups[-1] + 1))

    @cached_property
    def row_bytes(self) -> Floats:
        """Gradient of each row (bytes), shape [rows]."""
        return self.pooled(self.layer_bytes)

    def row_blocks(self, config: Config) -> tuple[Floats, float]:
        """Blocks of each row, shape [rows], and the part of all that are smaller than a partition; kept."""
        key = config.partition_bytes, config.knobs.get("fusion", 0.0)
        if key not in self._cuts:
            self._cuts[key] = self.pooled(self.blocks(config)), self.whole_part(config)
        return self._cuts[key]

    def blocks(self, config: Config) -> Floats:
        """Blocks that a config makes of each layer, shape [layers].

        With the knob `fusion` small tensors share a block; a layer then has the part of one that its bytes are. Where
        gradients are clipped, some blocks in front are smaller, which is left out.
        """
        if config.knobs.get("fusion", 0.0) >= 0.5:
            return self.layer_bytes / config.partition_bytes
        return self._per_layer(np.ceil(self.tensor_bytes / config.partition_bytes))

    def block_bytes(self, config: Config) -> float:
        """Size of the block that the mean byte travels in."""
        size, total = float(config.partition_bytes), max(self.total_bytes, 1.0)
        if config.knobs.get("fusion", 0.0) >= 0.5:
            return min(size, total)
        whole = np.floor(self.tensor_bytes / size)
        rest = self.tensor_bytes - whole * size
        return max(1.0, float((whole * size * size + rest * rest).sum() / total))

    def whole_part(self, config: Config) -> float:
        """Part of the blocks that are smaller than a partition."""
        pieces = np.ceil(self.tensor_bytes / config.partition_bytes)
        full = np.floor(self.tensor_bytes / config.partition_bytes)
        return float((pieces - full).sum() / max(1.0, pieces.sum()))

    def _per_layer(self, values: Floats) -> Floats:
        sums: Floats = np.bincount(self.tensor_layer, weights=values, minlength=self.layers).astype(float)
        return sums
