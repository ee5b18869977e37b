"""Reads the profiles that PipeDream's profiler writes: a graph of modules with measured times.

    node2 -- Conv2d(3, 64, ...) -- forward_compute_time=1.2, backward_compute_time=3.4, activation_size=.., ...
    <tab>node1 -- node2

Times are milliseconds per mini-batch, sizes bytes in fp32.

Reference: Narayanan et al., "PipeDream", SOSP'19; github.com/msr-fiddle/pipedream, profiler/.
"""

import heapq
import math
import re
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from autobyte.errors import FileError, InputError
from autobyte.job import LARGEST
from autobyte.models.ops import FLOAT
from autobyte.models.profile import LayerEntry, Profile, TensorEntry

_NODE = re.compile(r"node([0-9]{1,15}) -- (.+?) -- (\w+=.*)")
_EDGE = re.compile(r"\s+node([0-9]{1,15}) -- node([0-9]{1,15})\s*")
_FIELD = re.compile(r"(\w+)=(\[[^\]]*\]|[^,\s]+)")
_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_IMAGE = FLOAT * 3 * 224 * 224


@dataclass(frozen=True)
class Node:
    """A module that was measured. `text` is how PyTorch prints it, `line` where it stands in the file."""

    number: int
    text: str
    forward_s: float
    backward_s: float
    activation_bytes: float
    parameter_bytes: int
    line: int

    @property
    def kind(self) -> str:
        """The module's class: `Conv2d`."""
        return re.split(r"\W", self.text, maxsplit=1)[0]

    @property
    def loads(self) -> bool:
        """Whether this is the input, whose time is that of loading data."""
        return re.fullmatch(r"Input\d*", self.kind) is not None


@dataclass
class Graph:
    """A file as it was read: nodes by number, and the edges into every node with the line that says so."""

    path: Path
    nodes: dict[int, Node] = field(default_factory=dict)
    parents: dict[int, dict[int, int]] = field(default_factory=dict)

    def order(self) -> list[Node]:
        """Sort the nodes so that every one follows its parents; among those free to run, the lowest number first.

        Raises:
            FileError: there is a cycle.
        """
        waiting = {number: len(self.parents.get(number, ())) for number in self.nodes}
        children: dict[int, list[int]] = {number: [] for number in self.nodes}
        for child, parents in self.parents.items():
            for parent in parents:
                children[parent].append(child)
        free = sorted(number for number, left in waiting.items() if not left)
        done = []
        while free:
            number = heapq.heappop(free)
            done.append(self.nodes[number])
            for child in children[number]:
                waiting[child] -= 1
                if not waiting[child]:
                    heapq.heappush(free, child)
        if len(done) < len(self.nodes):
            raise self._cycle({number for number, left in waiting.items() if left})
        return done

    def _cycle(self, stuck: set[int]) -> FileError:
        number, seen = min(stuck), set()
        while number not in seen:  # upstream of a stuck node there is always another one, so this comes round
            seen.add(number)
            number, line = min((parent, line) for parent, line in self.parents[number].items() if parent in stuck)
        return _wrong(self.path, line, f"node{number} comes before itself: the edges form a cycle")


def read_pipedream(path: Path | str, *, batch_size: int | None = None) -> Profile:
    """Read a profile of PipeDream's, nodes in forward order; the input, which is data loading, is left out.

    Modules without parameters stay, as layers without tensors.

    Args:
        path: a `graph.txt`.
        batch_size: samples of a mini-batch; None works it out from the input if that is 3x224x224 images.

    Raises:
        FileError: the file cannot be read, is no such profile, or says something impossible.
        InputError: the batch size is not known.
    """
    graph = read_graph(path)
    nodes = graph.order()
    layers = [_layer(graph.path, node) for node in nodes if not node.loads]
    if not layers:
        raise FileError(f"{path} has an input and no layers")
    provenance: dict[str, str | float | int] = {
        "source": f"PipeDream profile {graph.path.name}",
        "times": "measured per module, with what the profiler adds to each; one run, GPU not stated",
        "left_out": "Input (data loading)",
        "batch_size": "inferred from the input" if batch_size is None else "given",
    }
    batch = _batch(graph.path, nodes) if batch_size is None else batch_size
    if batch < 1:
        raise InputError(f"batch size must be at least 1, got {batch}")
    if batch > LARGEST:
        raise InputError(f"batch size must be at most {LARGEST:,}, got {Decimal(batch):.6g}")
    return Profile(name=_name(graph.path), batch_size=batch, provenance=provenance, layers=layers)


def read_graph(path: Path | str) -> Graph:
    """Read the nodes and edges of a profile, and check that they fit together.

    Raises:
        FileError: the file cannot be read, is no such profile, or says something impossible.
    """
    graph = Graph(Path(path))
    try:
        lines = graph.path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FileError(f"{path} is not a PipeDream profile: not text") from None
    for number, line in enumerate(lines, start=1):
        if match := _NODE.fullmatch(line):
            _add_node(graph, match, number)
        elif match := _EDGE.fullmatch(line):
            graph.parents.setdefault(int(match[2]), {}).setdefault(int(match[1]), number)
        elif line.strip():
            raise _wrong(path, number, f"expected 'nodeN -- Module(...) -- ...' or an edge, got '{line.strip():.60}'")
    if not graph.nodes:
        raise FileError(f"{path} is not a PipeDream profile: it has no nodes")
    _check_edges(graph)
    return graph


def module_parameters(text: str, parameter_bytes: int) -> dict[str, int]:
    """Split a module's parameters into tensors (elements), where the way it prints tells them exactly.

    >>> module_parameters("BatchNorm2d(64, eps=1e-05)", 512)
    {'weight': 64, 'bias': 64}

    Raises:
        InputError: no module prints like this.
    """
    total = parameter_bytes // FLOAT
    split = _printed(text)
    return split if sum(split.values()) == total else {"parameters": total}


def _printed(text: str) -> dict[str, int]:
    if match := re.match(r"Conv2d\(([0-9]{1,15}), ([0-9]{1,15}), kernel_size=\(([0-9]{1,15}), ([0-9]{1,15})\)", text):
        channels, out, height, width = map(int, match.groups())
        groups = re.search(r"groups=([0-9]{1,15})", text)
        parts = int(groups[1]) if groups else 1
        if not parts:
            raise InputError(f"a convolution has at least one group, got groups=0 in '{text:.80}'")
        weight, bias = channels // parts * out * height * width, out
    elif match := re.match(r"Linear\(in_features=([0-9]{1,15}), out_features=([0-9]{1,15})", text):
        weight, bias = int(match[1]) * int(match[2]), int(match[2])
    elif match := re.match(r"BatchNorm2d\(([0-9]{1,15})", text):
        weight = bias = int(match[1])
    else:
        return {}
    return {"weight": weight} if "bias=False" in text else {"weight": weight, "bias": bias}


def _add_node(graph: Graph, match: re.Match[str], line: int) -> None:
    number = int(match[1])
    if number in graph.nodes:
        raise _wrong(graph.path, line, f"node{number} stands already in line {graph.nodes[number].line}")
    fields = dict(_FIELD.findall(match[3]))
    if missing := [name for name in _FIELDS if name not in fields]:
        raise _wrong(graph.path, line, f"node{number} has no {missing[0]}")
    forward, backward, activation, parameters = (_amount(graph.path, line, name, fields[name]) for name in _FIELDS)
    if parameters % FLOAT:
        raise _wrong(graph.path, line, f"parameter_size must be whole fp32 numbers of 4 bytes, got {parameters:g}")
    if parameters > FLOAT * LARGEST:
        raise _wrong(graph.path, line, f"parameter_size must be at most {FLOAT * LARGEST:,}, got {parameters:g}")
    graph.nodes[number] = Node(number, match[2], forward / 1e3, backward / 1e3, activation, int(parameters), line)


def _amount(path: Path, line: int, name: str, text: str) -> float:
    """Read a time or a size; the size of several outputs is a list, `[1.0; 2.0]`."""
    try:
        values = [float(part) for part in text.strip("[]").split(";")]
    except ValueError:
        raise _wrong(path, line, f"{name} is not a number: '{text}'") from None
    for value in (*values, sum(values)):
        if not 0 <= value < math.inf:
            raise _wrong(path, line, f"{name} must be a finite number of at least 0, got {value:g}")
    return sum(values)


def _check_edges(graph: Graph) -> None:
    for child, parents in graph.parents.items():
        for parent, line in parents.items():
            for number in (parent, child):
                if number not in graph.nodes:
                    raise _wrong(graph.path, line, f"there is no node{number}")


def _layer(path: Path, node: Node) -> LayerEntry:
    name = f"node{node.number}"
    try:
        parameters = module_parameters(node.text, node.parameter_bytes) if node.parameter_bytes else {}
    except InputError as error:
        raise _wrong(path, node.line, str(error)) from None
    return LayerEntry(
        name=f"{name}.{node.kind}",
        forward_s=node.forward_s,
        backward_s=node.backward_s,
        tensors=[TensorEntry(name=f"{name}.{short}", numel=numel) for short, numel in parameters.items()],
    )


def _batch(path: Path, nodes: list[Node]) -> int:
    nbytes = sum(node.activation_bytes for node in nodes if node.loads)
    if not nbytes or nbytes % _IMAGE:
        raise InputError(
            f"{path} does not tell its batch size (the input is {nbytes:g} bytes): say it with batch_size"
        )
    return int(nbytes / _IMAGE)


def _name(path: Path) -> str:
    """Name the model after the file, `vgg16.graph.txt`, or after its folder, `vgg16/graph.txt`."""
    stem = path.name.split(".")[0]
    return path.resolve().parent.name if stem == "graph" else stem


def _wrong(path: Path | str, line: int, what: str) -> FileError:
    return FileError(f"{path}, line {line}: {what}")
