"""The simulator's cost model fitted to what was measured on a running engine, and the file that keeps it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from scipy.optimize import brentq, least_squares

from autobyte.config import Config
from autobyte.drafts import draft_of
from autobyte.errors import FileError, InputError
from autobyte.job import Cluster, Floats, Job, Model
from autobyte.simulator.effects import Effects
from autobyte.simulator.steady import step_s
from autobyte.units import format_bytes

SCHEMA = 1
PROBE_BYTES = 1 << 22
#: What is measured: one tensor of 4 MiB, behind a moment of compute.
PROBE = Model.build("probe", [("all", [("gradient", PROBE_BYTES // 4)], 1e-3, 1e-3)], batch_size=1)
#: And forty layers of 3 ms with two tensors each: what a tensor costs its rank, in hooks and updates, beside blocks.
BUSY = Model.build(
    "busy", [(f"l{i}", [(f"weight{i}", 25_000), (f"bias{i}", 1_000)], 1e-3, 2e-3) for i in range(40)], batch_size=1
)
AFFINE = 256 << 10  # blocks from this size on cost a time each and a time per byte; the table is for smaller ones
MOST_EXTRA_S, MOST_TENSOR_S = 0.1, 1e-2
NOISE = 0.01

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Sample:
    """A probe under one config: time of a step (s)."""

    block_bytes: int
    credit_bytes: int
    step_s: float


class _CalibrationRecord(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EngineCosts(_CalibrationRecord):
    """What a block costs on one engine.

    Args:
        rate_share: rate that blocks reach, over the payload rate of the links.
        latency_s: one way, per hop; delays a block without holding the link.
        overhead_s: time that a block holds the link beyond its bytes.
        step_s: time of a step beside compute and blocks.
        sharing: blocks that share the wire at a time.
        size_overhead_s: (bytes, seconds) that blocks hold the link beyond all this.
        tensor_s: what a tensor adds to compute, half of it forward.
        error: median of |simulated / measured - 1| over the samples it was fitted to.
    """

    rate_share: Positive
    latency_s: Seconds
    overhead_s: Seconds
    step_s: Seconds
    sharing: Annotated[int, Field(ge=1)] = 1
    size_overhead_s: list[tuple[float, float]] = []
    tensor_s: Seconds = 0.0
    error: Seconds = 0.0

    def price(self, job: Job) -> Job:
        """The job with these costs in place of its cluster's; rates are the links' payload rates."""
        old = job.cluster
        cluster = replace(
            old,
            up_bytes_per_s=tuple(rate * self.rate_share for rate in old.up_bytes_per_s),
            down_bytes_per_s=tuple(rate * self.rate_share for rate in old.down_bytes_per_s),
            latency_s=self.latency_s,
            overhead_s=(self.overhead_s, 0.0),
        )
        layers = []
        for index, layer in enumerate(job.model.layers):
            half_s = len(layer.tensors) * self.tensor_s / 2
            once_s = 0.0 if index else self.step_s / job.accumulation
            layers.append(
                replace(layer, forward_s=layer.forward_s + half_s + once_s, backward_s=layer.backward_s + half_s)
            )
        return replace(job, cluster=cluster, model=replace(job.model, layers=tuple(layers)))

    @property
    def effects(self) -> Effects:
        """What the simulator has to be told beside the job."""
        return Effects(sharing=self.sharing, size_overhead_s=tuple(self.size_overhead_s))

    def seconds(self, job: Job, config: Config) -> float:
        """Time of a steady step of a job on links of payload rates (s)."""
        return step_s(self.price(job), config, effects=self.effects)


class EngineCalibration(_CalibrationRecord):
    """The file. `provenance` says on what it was measured; `samples` are measurements, by engine and probe.

    >>> calibration = EngineCalibration.load("calibration.json")
    >>> calibration.of(job).seconds(job, config)
    """

    kind: Literal["autobyte-calibration"] = "autobyte-calibration"
    schema_version: Annotated[Literal[1], Field(alias="schema")] = 1
    provenance: dict[str, str | float | int]
    engines: dict[Literal["allreduce", "ps"], EngineCosts]
    samples: dict[str, list[tuple[int, int, float]]] = {}

    def of(self, job: Job) -> EngineCosts:
        """The costs of a job's architecture.

        Raises:
            InputError: it was not calibrated.
        """
        architecture = job.cluster.architecture
        for engine, costs in self.engines.items():
            if engine == architecture:
                return costs
        raise InputError(f"the calibration says nothing of '{architecture}'; it has {', '.join(self.engines)}")

    def save(self, path: Path, *, force: bool = False) -> None:
        """Write the file.

        Raises:
            FileError: there is one already and `force` is not set, or it cannot be written.
        """
        if path.exists() and not force:
            raise FileError(f"{path} exists already; choose another name or say --force")
        with draft_of(path) as draft:
            draft.write_text(json.dumps(self.model_dump(by_alias=True), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path | str) -> "EngineCalibration":
        """Read a calibration.

        Raises:
            FileError: it cannot be read, is no calibration, or is of another schema.
        """
        try:
            data: Any = json.loads(Path(path).read_text())
        except OSError as error:
            raise FileError(f"cannot read calibration {path}: {error.strerror}") from None
        except ValueError as error:
            raise FileError(f"{path} is not a calibration: {error}") from None
        if not isinstance(data, dict) or data.get("kind") != "autobyte-calibration":
            raise FileError(f"{path} is not a calibration: make one with `autobyte calibrate`")
        if data.get("schema") != SCHEMA:
            raise FileError(f"calibration {path} has schema {data.get('schema')}; this version reads {SCHEMA}")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise FileError(f"calibration {path}: {place}: {first['msg']} (got {first['input']!r:.60})") from None


def fit(samples: Sequence[Sample], cluster: Cluster, *, sharing: int, busy: Sequence[Sample] = ()) -> EngineCosts:
    """Fit the costs of an engine to the probes' step times.

    Overhead, latency, rate and the time of a step come from blocks whose cost is affine; what smaller ones cost
    beyond that goes into a table.

    Args:
        samples: of `PROBE`, several sizes of blocks, alone and several in flight.
        cluster: that they were measured on, with the links' payload rates.
        sharing: blocks that share the wire at a time.
        busy: of `BUSY`; without them tensors cost nothing beside their bytes.

    Raises:
        InputError: fewer than four samples of blocks of at least 256 KiB, or credits that are all one block.
    """
    affine = [sample for sample in samples if sample.block_bytes >= AFFINE]
    if len(affine) < 4:
        raise InputError(
            f"a calibration needs 4 samples of blocks of at least {format_bytes(AFFINE)}, got {len(affine)}"
        )
    if len(windows := {sample.credit_bytes / sample.block_bytes for sample in affine}) < 2:
        raise InputError(
            f"a calibration needs blocks alone and several in flight, got windows of {windows.pop():g} only"
        )
    job = Job(PROBE, cluster)

    def costs(parameters: Floats, table: Sequence[tuple[float, float]] = ()) -> EngineCosts:
        share, latency_s, overhead_s, beside_s = np.exp(parameters).tolist()
        return EngineCosts(
            rate_share=share, latency_s=latency_s, overhead_s=overhead_s, step_s=beside_s, sharing=sharing,
            size_overhead_s=list(table),
        )  # fmt: skip

    begin = np.log([0.99, 50e-6, 200e-6, 1e-3])
    bounds = np.log([0.5, 1e-7, 1e-6, 1e-5]), np.log([1.05, 5e-3, 2e-2, 2e-2])
    parameters = least_squares(
        lambda x: [deviation(costs(x), job, sample) for sample in affine],
        begin, bounds=bounds, loss="cauchy", f_scale=NOISE, diff_step=1e-2,
    ).x  # fmt: skip
    table: list[tuple[float, float]] = []
    for size in sorted({sample.block_bytes for sample in samples if sample.block_bytes < AFFINE}):
        of_size = [sample for sample in samples if sample.block_bytes == size]

        def off(extra_s: float, size: int = size, of_size: Sequence[Sample] = of_size) -> float:
            priced = costs(parameters, [(size, extra_s)])
            return float(np.median([deviation(priced, job, sample) for sample in of_size]))

        extra_s = brentq(off, 0.0, MOST_EXTRA_S, xtol=1e-6) if off(0.0) < 0 < off(MOST_EXTRA_S) else 0.0
        table.append((float(size), float(extra_s)))
    fitted = costs(parameters, [*table, (float(AFFINE), 0.0)] if any(extra_s for _, extra_s in table) else [])
    if busy:
        fitted = fitted.model_copy(update={"tensor_s": _tensor_s(fitted, Job(BUSY, cluster), busy)})
    error = float(np.median([abs(np.expm1(deviation(fitted, job, sample))) for sample in samples]))
    return fitted.model_copy(update={"error": error})


def _tensor_s(costs: EngineCosts, job: Job, busy: Sequence[Sample]) -> float:
    """What every tensor must add to compute for the simulated probe to take as long (s)."""

    def off(tensor_s: float) -> float:
        priced = costs.model_copy(update={"tensor_s": tensor_s})
        return float(np.median([deviation(priced, job, sample) for sample in busy]))

    return float(brentq(off, 0.0, MOST_TENSOR_S, xtol=1e-6)) if off(0.0) < 0 < off(MOST_TENSOR_S) else 0.0


def deviation(costs: EngineCosts, job: Job, sample: Sample) -> float:
    """Logarithm of simulated over measured."""
    config = Config(sample.block_bytes, sample.credit_bytes, knobs={"fusion": 1})
    return float(np.log(costs.seconds(job, config) / sample.step_s))
