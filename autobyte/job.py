"""What is trained, and on what: tensors, layers, model, cluster, job."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from autobyte.errors import InputError, unknown
from autobyte.notebooks import html_table
from autobyte.units import format_bytes, format_rate, format_seconds

#: Bytes of one element of every dtype that can travel.
ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}

LARGEST = 1 << 50  # of all numbers here, far beyond any: bytes must fit into 64 bits, and sums stay finite

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Tensor:
    """One gradient: its name, number of elements, dtype, and the layer that first uses it (0 = first)."""

    name: str
    numel: int
    dtype: str = "float32"
    layer: int = 0

    def __post_init__(self) -> None:
        _check(f"tensor '{self.name}': numel", self.numel, low=0, whole=True)
        if self.dtype not in ITEMSIZE:
            raise InputError(
                f"tensor '{self.name}': dtype '{self.dtype}' does not travel (known: {', '.join(ITEMSIZE)})"
            )


@dataclass(frozen=True)
class Layer:
    """A step of the forward pass: the tensors it needs, its forward and backward time (s)."""

    name: str
    tensors: tuple[Tensor, ...]
    forward_s: float
    backward_s: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", tuple(self.tensors))
        for what in ("forward_s", "backward_s"):
            _check(f"layer '{self.name}': {what}", getattr(self, what), low=0.0)


@dataclass(frozen=True)
class Model:
    """Layers in forward order. A tensor's index is its place in `tensors`, the order of first use.

    Raises:
        InputError: no layers, or a tensor whose `layer` is not the one that holds it.
    """

    name: str
    layers: tuple[Layer, ...]
    batch_size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if not self.layers:
            raise InputError(f"model '{self.name}' has no layers: nothing to train")
        _check(f"model '{self.name}': batch_size", self.batch_size, low=1, whole=True)
        for index, layer in enumerate(self.layers):
            for tensor in layer.tensors:
                if tensor.layer != index:
                    place = f"layer {index} ('{layer.name}')"
                    raise InputError(f"tensor '{tensor.name}' says layer {tensor.layer} but stands in {place}")

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        """Without the hash: another process hashes names otherwise."""
        return {name: value for name, value in vars(self).items() if name != "_hash"}

    def __repr__(self) -> str:
        size = f"{len(self.layers)} layers, {self.parameters:,} parameters"
        return f"Model({self.name!r}, {size}, batch_size={self.batch_size})"

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.layers, self.batch_size))  # once: models are keys of many caches

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor, in the order of first use."""
        return tuple(tensor for layer in self.layers for tensor in layer.tensors)

    @cached_property
    def forward_s(self) -> Floats:
        """Forward time per layer (s), shape [layers]."""
        return np.array([layer.forward_s for layer in self.layers])

    @cached_property
    def backward_s(self) -> Floats:
        """Backward time per layer (s), shape [layers]."""
        return np.array([layer.backward_s for layer in self.layers])

    @cached_property
    def parameters(self) -> int:
        """Elements of all tensors together."""
        return sum(tensor.numel for tensor in self.tensors)

    @property
    def compute_s(self) -> float:
        """C, one forward and one backward pass (s)."""
        return float(self.forward_s.sum() + self.backward_s.sum())

    @classmethod
    def build(
        cls,
        name: str,
        layers: Iterable[tuple[str, Sequence[tuple[str, int]], float, float]],
        *,
        batch_size: int,
        dtype: str = "float32",
    ) -> Self:
        """Make a model from rows (layer, [(tensor, numel), ...], forward_s, backward_s)."""
        table = (
            Layer(layer, tuple(Tensor(t, numel, dtype, index) for t, numel in tensors), forward_s, backward_s)
            for index, (layer, tensors, forward_s, backward_s) in enumerate(layers)
        )
        return cls(name, tuple(table), batch_size)

    def scaled(self, *, time: float = 1.0, size: float = 1.0) -> Self:
        """The same model with every time multiplied by `time` and every tensor's numel by `size`."""
        _check("time scale", time, low=0.0)
        _check("size scale", size, low=0.0)
        layers = tuple(
            replace(
                layer,
                tensors=tuple(
                    replace(t, numel=max(1, round(t.numel * size)) if t.numel else 0) for t in layer.tensors
                ),
                forward_s=layer.forward_s * time,
                backward_s=layer.backward_s * time,
            )
            for layer in self.layers
        )
        return replace(self, layers=layers)


@dataclass(frozen=True)
class Cluster:
    """Workers, their links and their speed. A list of one value stands for the same on every worker.

    >>> Cluster(8, servers=8, up_bytes_per_s=(1.25e9,), down_bytes_per_s=(1.25e9,)).architecture
    'ps'

    Args:
        workers: n.
        servers: parameter servers, server i on worker i's host; 0 is ring all-reduce.
        up_bytes_per_s: payload rate out of every worker's host, shape [workers].
        down_bytes_per_s: payload rate into every worker's host, shape [workers].
        slowdown: compute times are multiplied by this, shape [workers].
        latency_s: one way, per hop; delays a block without holding the link.
        overhead_s: time (per block, per hop) that a block holds the link beyond its bytes.
        gpus_per_node: g, workers that share a host and its links; all-reduce is then on two levels: within a host,
            then among the hosts, then within a host again.
        local: within a host, payload rate of a worker (bytes/s), and time per hop (s).

    Raises:
        InputError: a count, rate or time that cannot be, or a list of the wrong length.

    The default latency and overheads follow what US-Byte's authors measured for one all-reduce under
    Horovod and NCCL (start-up of 557, 949 and 1319 µs on 2, 4 and 8 workers: 0.5 ms + 60 µs per hop, here halved
    into latency and hold).
    """

    workers: int
    servers: int = 0
    up_bytes_per_s: tuple[float, ...] = (1.25e9,)
    down_bytes_per_s: tuple[float, ...] = (1.25e9,)
    slowdown: tuple[float, ...] = (1.0,)
    latency_s: float = 30e-6
    overhead_s: tuple[float, float] = (500e-6, 30e-6)
    gpus_per_node: int = 1
    local: tuple[float, float] = (10e9, 5e-6)

    def __post_init__(self) -> None:
        _check("workers", self.workers, low=1, whole=True)
        _check("servers", self.servers, low=0, whole=True)
        if self.servers > self.workers:
            raise InputError(f"servers stand on the workers' hosts: at most {self.workers}, got {self.servers}")
        for name in ("up_bytes_per_s", "down_bytes_per_s", "slowdown"):
            object.__setattr__(self, name, _per_worker(name, getattr(self, name), self.workers))
        _check("latency_s", self.latency_s, low=0.0)
        object.__setattr__(self, "overhead_s", tuple(self.overhead_s))
        if len(self.overhead_s) != 2:
            raise InputError(f"overhead_s is two times, per block and per hop, got {self.overhead_s}")
        for value in self.overhead_s:
            _check("overhead_s", value, low=0.0)
        self._check_nodes()

    def __repr__(self) -> str:
        links = [*self.up_bytes_per_s, *self.down_bytes_per_s]
        low, high = format_rate(min(links)), format_rate(max(links))
        rates = low if low == high else f"{low} to {high}"
        return f"Cluster({self.workers} workers, {self.architecture}, {rates})"

    def _check_nodes(self) -> None:
        _check("gpus_per_node", self.gpus_per_node, low=1, whole=True)
        if self.workers % self.gpus_per_node:
            raise InputError(f"gpus_per_node must divide {self.workers} workers, got {self.gpus_per_node}")
        if self.servers and self.gpus_per_node > 1:
            raise InputError(f"gpus_per_node is for all-reduce; with servers it is 1, got {self.gpus_per_node}")
        object.__setattr__(self, "local", tuple(self.local))
        if len(self.local) != 2 or not self.local[0] > 0 or not 0 <= self.local[1] < math.inf:
            raise InputError(f"local is a positive rate and a time per hop, got {self.local}")

    @classmethod
    def uniform(
        cls,
        workers: int,
        bytes_per_s: float,
        *,
        architecture: str = "allreduce",
        slowdown: float = 1.0,
        latency_s: float = 30e-6,
        overhead_s: tuple[float, float] = (500e-6, 30e-6),
    ) -> Self:
        """Identical workers on identical links; `architecture="ps"` puts a server on every host (the paper's)."""
        if architecture not in ARCHITECTURES:
            raise unknown("architecture", architecture, ARCHITECTURES)
        servers = workers if architecture == "ps" else 0
        rate = (bytes_per_s,)
        return cls(workers, servers, rate, rate, (slowdown,), latency_s, overhead_s)

    @property
    def architecture(self) -> str:
        """`ps` or `allreduce`."""
        return "ps" if self.servers else "allreduce"

    @cached_property
    def table(self) -> Floats:
        """Rate out, rate in, slowdown of every worker, shape [3, workers]."""
        return np.array([self.up_bytes_per_s, self.down_bytes_per_s, self.slowdown])

    @cached_property
    def share(self) -> Floats:
        """The part of every block that the server on a worker's host keeps, shape [workers]."""
        return np.array([1 / self.servers if index < self.servers else 0.0 for index in range(self.workers)])

    @cached_property
    def remote(self) -> Floats:
        """The part of every block that leaves a worker's host for the servers, and comes back, shape [workers]."""
        return 1.0 - self.share if self.workers > 1 else np.zeros(1)

    @cached_property
    def traffic(self) -> Floats:
        """Bytes that cross a host's link, in either direction, per byte of gradient, shape [workers]."""
        if self.servers:  # pushes of its worker, and pulls from its server by all the others
            return self.remote + self.share * (self.workers - 1)
        return np.full(self.workers, 2 * (self.nodes - 1) / self.nodes)

    @property
    def nodes(self) -> int:
        """m, hosts."""
        return self.workers // self.gpus_per_node

    @property
    def local_s_per_byte(self) -> float:
        """Time that a byte of gradient takes within the hosts, before and after it travels among them."""
        return 2 * (self.gpus_per_node - 1) / self.gpus_per_node / self.local[0]

    @property
    def ring_hops_s(self) -> float:
        """Time that the hops of an all-reduce hold the ring, beyond the time per block."""
        return 2 * (self.nodes - 1) * self.overhead_s[1] + 2 * (self.gpus_per_node - 1) * self.local[1]

    @cached_property
    def seconds_per_byte(self) -> float:
        """Time that the slowest link is busy per byte of gradient."""
        rate = np.minimum(self.up_bytes_per_s, self.down_bytes_per_s)
        return float((self.traffic / rate).max())


ARCHITECTURES = ("allreduce", "ps")


@dataclass(frozen=True, eq=False)
class Gradients:
    """What travels in a step, tensor by tensor, in the order of first use.

    Args:
        names: of the tensors.
        layer: that first uses each, shape [tensors].
        numel: elements, shape [tensors].
        kind: dtype on the wire, as a number; tensors of one kind may share a block, shape [tensors].
        itemsize: bytes on the wire of one element, shape [tensors].
    """

    names: tuple[str, ...]
    layer: Ints
    numel: Ints
    kind: Ints
    itemsize: Ints

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"Gradients({len(self)} tensors, {format_bytes(self.total_bytes)})"

    @cached_property
    def nbytes(self) -> Ints:
        """Bytes on the wire, shape [tensors]."""
        return self.numel * self.itemsize

    @cached_property
    def total_bytes(self) -> int:
        """Bytes on the wire of all tensors together."""
        return int(self.nbytes.sum())


@lru_cache(maxsize=256)
def _gradients(model: Model, wire_dtype: str | None) -> Gradients:
    return _of_tensors(model.tensors, wire_dtype)  # hundreds of tensors to hash, where a model has its hash at hand


@lru_cache(maxsize=256)
def _of_tensors(tensors: tuple[Tensor, ...], wire_dtype: str | None) -> Gradients:
    dtypes = [wire_dtype or tensor.dtype for tensor in tensors]
    return Gradients(
        names=tuple(tensor.name for tensor in tensors),
        layer=np.array([tensor.layer for tensor in tensors], dtype=np.int64),
        numel=np.array([tensor.numel for tensor in tensors], dtype=np.int64),
        kind=np.array([list(ITEMSIZE).index(dtype) for dtype in dtypes], dtype=np.int64),
        itemsize=np.array([ITEMSIZE[dtype] for dtype in dtypes], dtype=np.int64),
    )


@dataclass(frozen=True)
class Job:
    """A model trained on a cluster.

    Args:
        model: what is trained.
        cluster: on what.
        accumulation: A, backward passes per step; gradients travel after the last.
        wire_dtype: what gradients are sent as; None sends them as they are.
        clips: gradients are clipped by their norm: the next forward pass begins when that is known.
    """

    model: Model
    cluster: Cluster
    accumulation: int = 1
    wire_dtype: str | None = None
    clips: bool = False

    def __post_init__(self) -> None:
        _check("accumulation", self.accumulation, low=1, whole=True)
        if self.wire_dtype is not None and self.wire_dtype not in ITEMSIZE:
            raise unknown("wire dtype", self.wire_dtype, ITEMSIZE)

    def _repr_html_(self) -> str:
        model, cluster = self.model, self.cluster
        rows = [
            ("model", f"{model.parameters:,} parameters in {len(model.layers)} layers"),
            ("batch", f"{model.batch_size} a worker, {self.samples:,} a step"),
            ("compute", format_seconds(model.compute_s)),
            ("cluster", repr(cluster).removeprefix("Cluster(").removesuffix(")")),
            ("gradients", f"{format_bytes(self.gradients.total_bytes)} as {self.wire_dtype or 'they are'}"),
        ]
        return html_table(model.name, rows)

    @cached_property
    def gradients(self) -> "Gradients":
        """What travels; one object for all jobs of the same tensors and wire dtype, whatever their times."""
        return _gradients(self.model, self.wire_dtype)

    @property
    def samples(self) -> int:
        """Samples that one step of the whole job trains on."""
        return self.model.batch_size * self.cluster.workers * self.accumulation

    def to_json(self) -> dict[str, Any]:
        """What names the job, as plain JSON; lists of equal values are written once."""
        cluster = self.cluster
        return (
            {
                "model": self.model.name,
                "parameters": self.model.parameters,
                "batch_size": self.model.batch_size,
                "compute_s": self.model.compute_s,
                "architecture": cluster.architecture,
                "workers": cluster.workers,
                "servers": cluster.servers,
                "up_bytes_per_s": _short(cluster.up_bytes_per_s),
                "down_bytes_per_s": _short(cluster.down_bytes_per_s),
                "slowdown": _short(cluster.slowdown),
                "latency_s": cluster.latency_s,
                "overhead_s": list(cluster.overhead_s),
                "accumulation": self.accumulation,
                "wire_dtype": self.wire_dtype,
            }
            | (
                {"gpus_per_node": cluster.gpus_per_node, "local": list(cluster.local)}
                if cluster.gpus_per_node > 1
                else {}
            )
            | ({"clips": True} if self.clips else {})
        )


def _per_worker(name: str, value: Iterable[float], workers: int) -> tuple[float, ...]:
    values = tuple(float(v) for v in value)
    if len(values) == 1:
        values *= workers
    if len(values) != workers:
        raise InputError(f"{name} needs one value, or one for each of {workers} workers, got {len(values)}")
    for v in values:
        if not v > 0 or (name == "slowdown" and math.isinf(v)):
            raise InputError(f"{name} must be positive, got {v}")
    return values


def _short(values: Sequence[float]) -> float | str | list[float | str]:
    """Equal values once; infinity as text, which JSON does not have."""
    plain = ["inf" if math.isinf(value) else value for value in values]
    return plain[0] if len(set(plain)) == 1 else plain


def _check(what: str, value: float, *, low: float, whole: bool = False) -> None:
    if LARGEST < value < math.inf:
        raise InputError(f"{what} must be at most {LARGEST:,}, got {Decimal(value):.6g}")
    if not low <= value < math.inf or (whole and value != int(value)):
        kind = "a whole number" if whole else "a finite number"
        raise InputError(f"{what} must be {kind} of at least {low:g}, got {value}")
