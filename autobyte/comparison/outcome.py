"""What compare.json holds, and reading it back."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from autobyte.errors import FileError

KIND = "autobyte-comparison"
SCHEMA = 1

Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]  # bytes/s; a link may be without limit
Ends = Annotated[list[Number], Field(min_length=2, max_length=2)]


class Place(BaseModel):
    """A config; the references have their speed with it."""

    partition_bytes: Count
    credit_bytes: Count


class Reference(Place):
    """The optimum or the best constant."""

    samples_per_s: Positive
    regret: Number


class JobEntry(BaseModel):
    """What names the job."""

    model: str
    architecture: str
    workers: Count
    batch_size: Count
    parameters: int
    up_bytes_per_s: Rate | list[Rate]
    down_bytes_per_s: Rate | list[Rate]
    accumulation: Count
    scenario: str


class Times(BaseModel):
    """Steps to compare with: nothing overlapping, DDP at its best, the bound."""

    fifo_s: Positive
    ddp_best_s: Positive
    bound_s: Positive


class Land(BaseModel):
    """Speeds over the grid, shape [partitions, credits]."""

    partition_bytes: Annotated[list[Count], Field(min_length=1)]
    credit_ratio: Annotated[list[Positive], Field(min_length=1)]
    samples_per_s: list[list[Positive]]

    @model_validator(mode="after")
    def _is_rectangular(self) -> Self:
        shape = [len(row) for row in self.samples_per_s]
        if shape != [len(self.credit_ratio)] * len(self.partition_bytes):
            raise ValueError("a speed for every partition and credit")
        return self


class Weights(BaseModel):
    """What tuners searched for."""

    throughput: Number
    latency: Number
    cost: Number


class Rewarded(BaseModel):
    """A score by these weights, and the rewards that it is made of; not there where only speed was searched."""

    score: Number | None = None
    reward_throughput: Number | None = None
    reward_latency: Number | None = None
    reward_cost: Number | None = None


class TunerEntry(Rewarded):
    """A tuner's medians; `spread` has their 10th and 90th percentiles."""

    name: str
    config: Place
    samples_per_s: Positive
    speedup_over_fifo: Positive
    gap_closed: Number | None
    regret: Number
    iterations: Number
    search_cost_s: Number
    tuner_cpu_s: Number
    switches: Number
    oracle_gap_closed: Number | None = None
    before_cost_s: Number | None = None
    failed_runs: Annotated[int, Field(ge=0)]
    spread: dict[str, Ends]
    regret_curve: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=1)]


class OracleEntry(BaseModel):
    """Speeds of who knows the truth, and what the best constant lacks of the oracle's."""

    samples_per_s: Positive
    all_knowing_samples_per_s: Positive
    best_constant_samples_per_s: Positive
    gap: Number


class CarriedEntry(BaseModel):
    """What configs that are tied before a change lose after it, on average; of the change after which it is most."""

    iteration: Annotated[int, Field(ge=0)]
    ratio_before: Annotated[Number, Field(ge=0)]  # communication / compute; one worker alone sends nothing
    ratio_after: Annotated[Number, Field(ge=0)]
    configs: Count
    loss: Number


class Outcome(BaseModel):
    """The file. It may say more than is needed here."""

    kind: Literal["autobyte-comparison"]
    schema_version: Annotated[Literal[1], Field(alias="schema")]
    what: str  # "simulated"
    job: JobEntry
    budget: Count
    seeds: Count
    changes: list[int]
    references: Times
    optimum: Reference
    best_constant: Reference
    oracle: OracleEntry | None = None
    carried: CarriedEntry | None = None
    objective: Weights | None = None
    landscape: Land
    tuners: Annotated[list[TunerEntry], Field(min_length=1)]


def read_outcome(path: Path) -> dict[str, Any]:
    """Read what `verdict` returned.

    Raises:
        FileError: the file is not there or cannot be read, is something else, is of another schema, or is damaged.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        folder = path.parent
        raise FileError(
            f"no comparison was finished in {folder}; run `autobyte compare --out {folder}` first"
        ) from None
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise FileError(f"{path} is damaged: {error}; run `autobyte compare` again to make it anew") from None
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise FileError(f"{path} is not a comparison; make one with `autobyte compare --out`")
    if data.get("schema") != SCHEMA:
        raise FileError(f"comparison {path} has schema {data.get('schema')}; this version reads {SCHEMA}")
    try:
        Outcome.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise FileError(f"comparison {path}: {place}: {first['msg']} (got {first['input']!r:.60})") from None
    return data
