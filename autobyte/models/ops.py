"""What one operation of a network computes and moves: FLOPs, and bytes through the GPU's memory, in fp32.

Bytes are an operation's own passes over its operands: nothing is fused with its neighbours, as in eager PyTorch.
"""

from dataclasses import dataclass

FLOAT = 4  # bytes of an element

#: Passes over the output, (forward, backward), of operations that compute next to nothing.
PASSES = {
    "relu": (2, 3),  # read and write; read output and gradient, write gradient
    "gelu": (2, 3),
    "tanh": (2, 3),
    "dropout": (2, 2),
    "copy": (2, 2),
    "scale": (4, 2),  # divide, then add a mask, which needs no gradient
    "sum": (3, 0),  # read two, write one; both get the same gradient
    "add": (3, 3),  # a residual: where the paths part, backward sums their gradients
    "concat": (2, 3),  # copy; sum with the gradient of the other readers
    "batchnorm": (3, 5),  # read for the statistics, read, write; read both operands twice, write
    "layernorm": (3, 5),
    "softmax": (3, 3),
    "loss": (5, 3),  # log-softmax and the pick of the label
}


@dataclass(frozen=True)
class Op:
    """One operation.

    Args:
        kind: what limits it: `conv1x1`, `winograd`, `conv`, `matmul`, or `memory`, which computes next to nothing.
        flops: of the forward pass, 2 per multiply-add; of convolutions and matrix products only.
        forward_bytes: read and written in the forward pass.
        backward_bytes: read and written in the backward pass.
        gradients: how many gradients backward computes, each as much work as forward.
    """

    kind: str
    flops: float
    forward_bytes: float
    backward_bytes: float
    gradients: int = 2


def elementwise(what: str, elements: int) -> Op:
    """Pass over the output, of that many elements, as often as `PASSES` says."""
    forward, backward = PASSES[what]
    return Op("memory", 0, FLOAT * forward * elements, FLOAT * backward * elements)


def maxpool(inputs: int, outputs: int) -> Op:
    """Pool `inputs` elements to `outputs`, with 8-byte indices that backward scatters along, into zeros."""
    return Op("memory", 0, FLOAT * (inputs + 3 * outputs), FLOAT * (2 * inputs + 3 * outputs))


def avgpool(inputs: int, outputs: int) -> Op:
    """Average `inputs` elements to `outputs`."""
    return Op("memory", 0, FLOAT * (inputs + outputs), FLOAT * (inputs + outputs))


def embedding(table: int, outputs: int) -> Op:
    """Gather `outputs` elements; backward scatters them into a dense gradient of the whole table, zeroed first."""
    return Op("memory", 0, FLOAT * 2 * outputs, FLOAT * (table + 3 * outputs))


def matmul(rows: int, inner: int, columns: int, *, batch: int = 1) -> Op:
    """Multiply [rows, inner] by [inner, columns], `batch` times over."""
    moved = FLOAT * batch * (rows * inner + inner * columns + rows * columns)
    return Op("matmul", 2.0 * batch * rows * inner * columns, moved, 2 * moved)


def conv(
    channels: int, out: int, kernel: int, *, stride: int, pixels_in: int, pixels_out: int, first: bool = False
) -> Op:
    """Convolve `channels` into `out` channels with a square kernel; pixels are batch x height x width.

    `first` says that the input is data, which needs no gradient.
    """
    depth = channels * kernel * kernel
    moved = FLOAT * (channels * pixels_in + depth * out + out * pixels_out)
    gradients = 1 if first else 2
    return Op(
        _algorithm(depth, out, kernel, stride), 2.0 * depth * out * pixels_out, moved, gradients * moved, gradients
    )


def _algorithm(depth: int, out: int, kernel: int, stride: int) -> str:
    """Guess what cuDNN picks: Winograd and FFT need stride 1, and pay off where both sides are wide."""
    if kernel == 1:
        return "conv1x1"
    return "winograd" if stride == 1 and depth >= 1024 and out >= 64 else "conv"
