"""One rank of a measurement of BytePS: trains an emulated PyTorch model in one way, and times its steps.

    python -m autobyte.bench.byteps_rank SPEC

as `autobyte bench --frontend byteps` starts it on every host. BytePS's own ways cut gradients by its partition. Its
priority and credit are left out: they act on what waits to be copied to the host, and where a rank has one device
nothing waits there. Its GPU part is a stand-in (`tools/byteps`).
"""

import json
import os
import sys
import time
from itertools import pairwise
from typing import Any

import torch

from autobyte.bench.front_rank import Spec, begin, chosen, told
from autobyte.bench.servers import cluster
from autobyte.scheduler.engines.byteps_store import ENVIRONMENT, own_shared_memory
from autobyte.torch.profiling.emulate import EmulatedModel
from autobyte.units import MIB

PARTITIONS = {"byteps": 4_096_000, "byteps-1mib": MIB}  # by way (bytes): BytePS's own default, and a small one


def main(text: str) -> None:
    """Train as a spec says; rank 0 prints the times of steps."""
    spec = json.loads(text)
    if spec["way"] == "autobyte":
        begin()
        _by_autobyte(spec)
        return
    own_shared_memory()  # before there are threads
    begin()
    for name in [name for name in os.environ if name.startswith("BYTEPS_")]:
        del os.environ[name]
    partition = {"BYTEPS_PARTITION_BYTES": str(PARTITIONS[spec["way"]])}
    with cluster("import byteps.server", ENVIRONMENT | partition):
        told(_times(spec, *_by_byteps(spec)))


def _by_autobyte(spec: Spec) -> None:
    import autobyte.torch as ab  # noqa: PLC0415 - it loads Numba, of which BytePS's ways need nothing

    model = _model(spec)
    optimizer = ab.DistributedOptimizer(_sgd(model), model, **chosen(spec))
    told(_times(spec, model, optimizer), optimizer.report())
    optimizer.close()


def _by_byteps(spec: Spec) -> tuple[EmulatedModel, Any]:
    """The model and its optimizer."""
    import byteps.torch as bps  # noqa: PLC0415 - it reads the environment

    bps.init()
    model = _model(spec)
    named = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    return model, bps.DistributedOptimizer(_sgd(model), named)


def _model(spec: Spec) -> EmulatedModel:
    from autobyte.models import find  # noqa: PLC0415

    model = EmulatedModel(find(spec["model"]).scaled(**spec["scales"]), torch.device("cpu"))
    model.autobyte_average = True  # BytePS divides sums, too
    return model


def _sgd(model: EmulatedModel) -> torch.optim.Optimizer:
    return torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=1e-3)


def _times(spec: Spec, model: EmulatedModel, optimizer: Any) -> list[float]:
    """How long steps take, from beginning to beginning (s)."""
    began = []
    for _ in range(spec["warmup"] + spec["steps"] + 1):
        began.append(time.perf_counter())
        optimizer.zero_grad()
        model(torch.zeros(1)).backward()
        optimizer.step()
    return [after - before for before, after in pairwise(began)][spec["warmup"] :]


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)  # BytePS's threads outlive the interpreter's
