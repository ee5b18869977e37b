"""One rank of a measurement of BytePS: trains an emulated PyTorch model in one way, and times its steps.

    python -m autobyte.bench.byteps_rank SPEC

as `autobyte bench --frontend byteps` starts it on every host. BytePS's own ways cut gradients by its partition. Its
priority and credit are left out: they act on what waits to be copied to the host, and where a rank has one device
nothing waits there. Its GPU part is a stand-in (`tools/byteps`).
"""

import json
import os
import sys
from typing import Any

from autobyte.bench.front_rank import Spec, begin, told
from autobyte.bench.servers import cluster
from autobyte.bench.torch_loop import model_of, sgd, times, train_by_autobyte, trained
from autobyte.scheduler.engines.byteps_store import ENVIRONMENT, own_shared_memory
from autobyte.torch.profiling.emulate import EmulatedModel
from autobyte.units import MIB

PARTITIONS = {"byteps": 4_096_000, "byteps-1mib": MIB}  # by way (bytes): BytePS's own default, and a small one


def main(text: str) -> None:
    """Train as a spec says; rank 0 prints the times of steps."""
    spec = json.loads(text)
    if spec["way"] == "autobyte":
        train_by_autobyte(spec)
        return
    own_shared_memory()  # before there are threads
    begin()
    for name in [name for name in os.environ if name.startswith("BYTEPS_")]:
        del os.environ[name]
    partition = {"BYTEPS_PARTITION_BYTES": str(PARTITIONS[spec["way"]])}
    with cluster("import byteps.server", ENVIRONMENT | partition):
        told(times(spec, *_by_byteps(spec)))


def _by_byteps(spec: Spec) -> tuple[EmulatedModel, Any]:
    """The model and its optimizer."""
    import byteps.torch as bps  # noqa: PLC0415 - it reads the environment

    bps.init()
    model = model_of(spec)
    return model, bps.DistributedOptimizer(sgd(model), trained(model))


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)  # BytePS's threads outlive the interpreter's
