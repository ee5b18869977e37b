"""What a message costs: a start-up and a time per byte, T(s) = a + s/B; from a cluster, or fitted to measurements."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from autobyte.errors import InputError
from autobyte.job import Cluster, Floats, Job

FEWEST_POINTS, LEAST_SPREAD = 8, 2.0  # messages, and largest over smallest, that a line can be fitted to


@dataclass(frozen=True)
class AlphaBeta:
    """The linear model of communication, as MG-WFBP and US-Byte plan with it.

    Args:
        start_s: a, time that a message holds the link beyond its bytes (s).
        s_per_byte: 1/B, of gradient (s/byte).
        latency_s: from leaving the link to being in place; delays without holding (s).

    Raises:
        InputError: a number that is negative or not finite.

    Reference: Sarvotham et al.; MG-WFBP (INFOCOM'19), eq. 2; US-Byte (TPDS'24), sec. 3.
    """

    start_s: float
    s_per_byte: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("start_s", "s_per_byte", "latency_s"):
            if not 0 <= getattr(self, name) < np.inf:
                raise InputError(f"{name} must be a finite number of at least 0, got {getattr(self, name)}")

    @classmethod
    def of(cls, cluster: Cluster, *, waits: bool = False) -> Self:
        """What an all-reduce, or a push and its pull, costs on a cluster.

        Args:
            cluster: workers, servers and links; the slowest link counts.
            waits: whether a message waits for the one before to be in place, so that the latency holds the link too.
        """
        if cluster.workers == 1:
            return cls(0.0, 0.0)
        per_block, per_hop = cluster.overhead_s
        if not cluster.servers:
            start_s, latency_s = per_block + cluster.ring_hops_s, 2 * (cluster.nodes - 1) * cluster.latency_s
        else:  # a push to every other server, a pull by every other worker
            pushed = float(np.rint(cluster.servers * (1.0 - cluster.share)).max())
            start_s, latency_s = per_block + (pushed + cluster.workers - 1) * per_hop, cluster.latency_s
        s_per_byte = cluster.seconds_per_byte + cluster.local_s_per_byte
        return cls(start_s + waits * latency_s, s_per_byte, latency_s)

    @classmethod
    def fit(cls, nbytes: Sequence[float], seconds: Sequence[float]) -> Self:
        """Fit a line to measured messages by least squares of relative errors.

        Args:
            nbytes: size of each message (bytes).
            seconds: how long each held the link (s).

        Raises:
            InputError: too few messages, too like in size, or times that no line with a, 1/B ≥ 0 goes through.
        """
        sizes, times = np.asarray(nbytes, dtype=float), np.asarray(seconds, dtype=float)
        if sizes.shape != times.shape or sizes.ndim != 1:
            raise InputError(f"each message needs a size and a time, got {sizes.size} sizes and {times.size} times")
        bad = np.flatnonzero(~((sizes > 0) & (times > 0) & np.isfinite(sizes) & np.isfinite(times)))
        if len(bad):
            raise InputError(
                f"message {bad[0]} has {sizes[bad[0]]:g} bytes and took {times[bad[0]]:g} s: not positive"
            )
        if len(sizes) < FEWEST_POINTS:
            raise InputError(f"a cost model needs {FEWEST_POINTS} messages at least, got {len(sizes)}; measure more")
        if sizes.max() < LEAST_SPREAD * sizes.min():
            span = f"{sizes.min():.0f} to {sizes.max():.0f} bytes"
            raise InputError(
                f"a cost model needs messages of different sizes, got {span}; measure some twice as large"
            )
        from scipy.optimize import nnls  # noqa: PLC0415, takes 0.4 s to import

        line = np.stack([np.ones_like(sizes), sizes], axis=1) / times[:, None]
        (start_s, s_per_byte), _ = nnls(line, np.ones_like(times))
        if not s_per_byte:
            raise InputError("larger messages took no more time than smaller ones; measure again")
        return cls(float(start_s), float(s_per_byte))

    def seconds(self, nbytes: float) -> float:
        """How long a message holds the link (s)."""
        return self.start_s + nbytes * self.s_per_byte


@dataclass(frozen=True)
class Timetable:
    """When every gradient is ready and how urgent it is, on the slowest worker; tensors in the order of first use.

    Args:
        tensor: those with elements, shape [n].
        ready_s: end of their layer's backward pass, from the beginning of the backward pass (s), not increasing.
        tail_s: from the beginning of their layer's forward pass to the end of the step, if nothing waits (s), not
            increasing.
        nbytes: on the wire.
        kind: dtype on the wire, as a number.
        compute_s: the whole backward and forward pass (s).
    """

    tensor: np.typing.NDArray[np.int64]
    ready_s: Floats
    tail_s: Floats
    nbytes: Floats
    kind: np.typing.NDArray[np.int64]
    compute_s: float

    @classmethod
    def of(cls, job: Job) -> Self:
        """Work out a job's."""
        model, gradients, slow = job.model, job.gradients, max(job.cluster.slowdown)
        tensor = np.flatnonzero(gradients.numel)
        layer = gradients.layer[tensor]
        ready = slow * np.cumsum(model.backward_s[::-1])[::-1]
        tail = slow * np.cumsum(model.forward_s[::-1])[::-1]
        nbytes = gradients.nbytes[tensor].astype(float)
        return cls(tensor, ready[layer], tail[layer], nbytes, gradients.kind[tensor], slow * model.compute_s)
