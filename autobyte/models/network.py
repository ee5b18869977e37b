"""A network written down: modules with parameters in forward order, and the operations each of them stands for."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from autobyte.job import Layer, Model, Tensor
from autobyte.models.ops import Op
from autobyte.models.roofline import backward_s, forward_s


@dataclass
class Module:
    """A row of the table: the module's name, its parameters by full name, and what it runs."""

    name: str
    parameters: dict[str, int]
    ops: list[Op]


@dataclass
class NetworkTable:
    """Modules with parameters, in the order they are called.

    >>> net = NetworkTable("tiny", 32, (3, 224, 224))
    >>> net.module("fc", {"weight": 10, "bias": 1}, matmul(32, 10, 1))
    >>> net.fold(elementwise("relu", 32))

    Args:
        name: of the model.
        batch_size: samples per step and worker.
        sample: shape of one sample.
        modules: the rows.
    """

    name: str
    batch_size: int
    sample: tuple[int, ...]
    modules: list[Module] = field(default_factory=list)

    def module(self, name: str, parameters: Mapping[str, int], *ops: Op) -> None:
        """Add a module, with the elements of its parameters by short name (`weight`)."""
        self.modules.append(Module(name, {f"{name}.{short}": n for short, n in parameters.items()}, list(ops)))

    def fold(self, *ops: Op) -> None:
        """Add what runs after the last module and has no parameters; no hook separates the two."""
        self.modules[-1].ops.extend(ops)

    @property
    def flops(self) -> float:
        """FLOPs of the forward pass of one sample, 2 per multiply-add; convolutions and matrix products."""
        return sum(op.flops for module in self.modules for op in module.ops) / self.batch_size

    def model(self) -> Model:
        """Put a time on every module."""
        return Model(self.name, tuple(_layer(index, row) for index, row in enumerate(self.modules)), self.batch_size)


def _layer(index: int, row: Module) -> Layer:
    tensors = tuple(Tensor(name, numel, layer=index) for name, numel in row.parameters.items())
    return Layer(row.name, tensors, sum(map(forward_s, row.ops)), sum(map(backward_s, row.ops)))
