"""What the numbers of a feature vector are: names, units, order, version; and which of them a network takes in.

Columns come in four groups, one for each branch of the network (AutoByte, fig. 4a). Every group has the raw values of
Table II and scale-free ones beside them, ratios to compute time or to wire time: a network that takes in ratios alone
cannot tell a fast cluster from a slow one with the same shape, and so need not have seen either.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autobyte.errors import InputError
from autobyte.job import Ints

VERSION = 1
ROWS = 64  # layers; longer lists are pooled, shorter ones begin with rows of zeros


@dataclass(frozen=True)
class Column:
    """One number of a group: its name, its unit, and what it says."""

    name: str
    unit: str
    says: str


def _columns(*rows: tuple[str, str, str]) -> tuple[Column, ...]:
    return tuple(Column(*row) for row in rows)


#: Per layer, in the order of the backward pass; shape [ROWS, len(LAYER)].
LAYER = _columns(
    ("backward_s", "log10 s", "T, backward time, mean over workers"),
    ("backward_slowest_s", "log10 s", "T, backward time on the slowest worker"),
    ("forward_s", "log10 s", "forward time, mean over workers"),
    ("nbytes", "log10 B", "gradient on the wire"),
    ("present", "0 or 1", "whether there is such a layer"),
    ("backward_part", "log1p", "backward time by mean layer time, slowest worker"),
    ("forward_part", "log1p", "forward time by mean layer time, slowest worker"),
    ("wire_part", "log1p", "time on the wire by mean layer time"),
)

#: B_d and B_u; any number of workers is summed up.
BANDWIDTH = _columns(
    ("up_mean", "log10 B/s", "B_u, mean over workers"),
    ("up_least", "log10 B/s", "B_u of the slowest link"),
    ("up_most", "log10 B/s", "B_u of the fastest link"),
    ("down_mean", "log10 B/s", "B_d, mean over workers"),
    ("down_least", "log10 B/s", "B_d of the slowest link"),
    ("down_most", "log10 B/s", "B_d of the fastest link"),
    ("wire_by_compute", "log", "all bytes on the slowest link, by compute"),
    ("block_by_compute", "log", "what a block costs beyond its bytes, by compute"),
    ("link_spread", "log", "mean link by slowest link"),
    ("configs_seen", "log2", "how many configs the costs of blocks and bytes were learned from"),
)

#: Static: n, l, arc, m; and the shape of the job.
STATIC = _columns(
    ("workers", "log2", "n"),
    ("layers", "log2", "l"),
    ("allreduce", "0 or 1", "arc"),
    ("ps", "0 or 1", "arc"),
    ("servers_part", "1", "servers by workers"),
    ("resnet50", "0 or 1", "m"),
    ("vgg16", "0 or 1", "m"),
    ("alexnet", "0 or 1", "m"),
    ("other_model", "0 or 1", "m, none that the network was trained on"),
    ("slowest_by_mean", "log", "compute of the slowest worker by the mean"),
    ("forward_by_compute", "1", "part of the forward pass in compute"),
    ("accumulation", "log2", "backward passes per step"),
    ("step_by_floor", "log", "what configs took by the floor of the step, mean"),
    ("step_by_floor_spread", "log", "deviation of that among configs"),
    ("variation", "1", "deviation of step times by their mean"),
)

#: ⟨S_p, S_c⟩, and what they come to in this job; shape [configs, len(CANDIDATE)].
CANDIDATE = _columns(
    ("partition", "log2 B", "S_p"),
    ("credit", "log2", "S_c by S_p"),
    ("floor_by_compute", "log", "the floor of the step by compute"),
    ("busy_by_floor", "1", "time that the slowest link is busy by the floor"),
    ("overhead_by_busy", "1", "part of that which blocks cost beyond their bytes"),
    ("block_by_floor", "log", "a full block on the link by the floor"),
    ("window_by_floor", "log1p", "a full credit on the link by the floor, in thousandths"),
    ("behind_by_floor", "1", "what the floor has of waiting behind less urgent blocks"),
    ("compute_by_floor", "1", "compute by the floor"),
    ("tail_by_floor", "1", "part of the floor from the last gradient that decides it"),
    ("largest", "log2", "S_p by the largest tensor"),
    ("whole_part", "1", "part of the blocks that are smaller than S_p"),
    ("crowding", "log1p", "by what part bytes cost more, as the credit lets more into flight"),
)

GROUPS = {"layer": LAYER, "bandwidth": BANDWIDTH, "static": STATIC, "candidate": CANDIDATE}


def place(group: str, name: str) -> int:
    """Where a column stands in its group."""
    return [column.name for column in GROUPS[group]].index(name)


@dataclass(frozen=True)
class Choice:
    """Which columns of each group enter a network, by name and in order; part of what a network's weights record."""

    layer: tuple[str, ...]
    bandwidth: tuple[str, ...]
    static: tuple[str, ...]
    candidate: tuple[str, ...]

    def __post_init__(self) -> None:
        for group, columns in GROUPS.items():
            known = [column.name for column in columns]
            for name in getattr(self, group):
                if name not in known:
                    raise InputError(f"features of schema {VERSION} have no '{name}' in group '{group}'")

    def places(self, group: str) -> Ints:
        """The places of a group's chosen columns."""
        return self._places[group]

    @cached_property
    def _places(self) -> dict[str, Ints]:
        return {group: np.array([place(group, name) for name in getattr(self, group)], np.int64) for group in GROUPS}


#: Table II as published: raw values only.
PAPER = Choice(
    layer=("backward_s", "backward_slowest_s", "present"),
    bandwidth=("up_mean", "up_least", "up_most", "down_mean", "down_least", "down_most"),
    static=("workers", "layers", "allreduce", "ps", "resnet50", "vgg16", "alexnet", "other_model"),
    candidate=("partition", "credit"),
)

#: Ours: nothing that has a unit of time or of bytes.
RATIOS = Choice(
    layer=("present", "backward_part", "forward_part", "wire_part"),
    bandwidth=("wire_by_compute", "block_by_compute", "link_spread", "configs_seen"),
    static=(
        *("workers", "allreduce", "ps", "servers_part", "slowest_by_mean", "forward_by_compute", "accumulation"),
        *("step_by_floor", "step_by_floor_spread", "variation"),
    ),
    candidate=tuple(column.name for column in CANDIDATE[1:]),
)
