"""How long a GPU takes for an operation: a start, then whichever is slower, computing or moving bytes.

The constants were fitted by `tools/fit_roofline.py` to PipeDream's published per-module measurements of seven
convolutional networks (github.com/msr-fiddle/pipedream, MIT; fp32, one run each, GPU not stated; the rates are those
of a V100). What the profiler adds, 0.25 ms to every module's forward and the input's copy to the GPU at 8 GB/s, was
fitted too and left out. docs/models.md says how far off the rest is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autobyte.models.ops import Op


@dataclass(frozen=True)
class Rate:
    """What one kind of operation reaches: time = overhead_s + max(flops / flops_per_s, bytes / bytes_per_s).

    Reference: Williams, Waterman, Patterson, "Roofline", CACM 2009.
    """

    flops_per_s: float
    bytes_per_s: float
    overhead_s: float


Rates = Mapping[str, Rate]

#: Winograd saves multiplications: its rate counts the plain convolution's, and so may exceed what the GPU can do.
FORWARD: Rates = {
    "memory": Rate(math.inf, 738e9, 4.3e-6),
    "conv1x1": Rate(11.8e12, 738e9, 102e-6),
    "winograd": Rate(27.8e12, 149e9, 102e-6),
    "conv": Rate(13.2e12, 149e9, 102e-6),
    "matmul": Rate(13.6e12, 738e9, 102e-6),
}

#: Two products, hence twice the overhead: the gradient of the weights and that of the inputs.
BACKWARD: Rates = {
    "memory": Rate(math.inf, 738e9, 4.3e-6),
    "conv1x1": Rate(9.71e12, 738e9, 204e-6),
    "winograd": Rate(31.3e12, 74.6e9, 204e-6),
    "conv": Rate(10.7e12, 74.6e9, 204e-6),
    "matmul": Rate(14.0e12, 738e9, 204e-6),
}


def forward_s(op: Op, *, rates: Rates = FORWARD) -> float:
    """Predict the forward pass of an operation (s)."""
    rate = rates[op.kind]
    return rate.overhead_s + max(op.flops / rate.flops_per_s, op.forward_bytes / rate.bytes_per_s)


def backward_s(op: Op, *, rates: Rates = BACKWARD) -> float:
    """Predict the backward pass of an operation (s), the gradients of its weights and of its inputs."""
    rate = rates[op.kind]
    return rate.overhead_s + max(op.gradients * op.flops / rate.flops_per_s, op.backward_bytes / rate.bytes_per_s)
