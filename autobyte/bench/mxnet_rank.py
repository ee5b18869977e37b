"""One rank of a measurement of MXNet's Gluon: trains an emulated model over one store, and times its steps.

    python -m autobyte.bench.mxnet_rank SPEC

as `autobyte bench --frontend mxnet` starts it on every host. A layer sleeps in MXNet's dependency engine, where it
reads its parameters and has its gradients: zeros, which no store changes, so nothing writes what a GPU would have
written. `gluon.Trainer`, stores, communication and SGD are real.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import autobyte
from autobyte.bench.front_rank import Spec, begin, chosen, told
from autobyte.bench.servers import cluster
from autobyte.torch.profiling.emulate import Device

SERVE = f"import runpy; runpy.run_path({str(Path(autobyte.__file__).parent / 'mxnet/names.py')!r})['restore'](); "
SERVE += "import mxnet"  # which serves, or schedules, where the environment says so


def main(text: str) -> None:
    """Train as a spec says; rank 0 prints the times of steps."""
    spec = json.loads(text)
    begin()
    if spec["way"] in ("dist_sync", "p3"):
        with cluster(SERVE, {"DMLC_PS_VAN_TYPE": "p3"} if spec["way"] == "p3" else {}):
            import_module("autobyte.mxnet")  # gives NumPy the names that MXNet takes from it
            told(_times(spec, import_module("mxnet").kv.create("dist_sync")))
        return
    import autobyte.mxnet as ab  # noqa: PLC0415

    store = ab.KVStore(**chosen(spec))
    steps_s = _times(spec, store)
    told(steps_s, store.averaging.report() if store.averaging is not None else None)
    store.close()


def _times(spec: Spec, store: Any) -> list[float]:
    """How long steps take, by when the losses of two are known (s)."""
    import mxnet as mx  # noqa: PLC0415

    from autobyte.models import find  # noqa: PLC0415

    profile = find(spec["model"]).scaled(**spec["scales"])
    parameters = [
        [mx.gluon.Parameter(tensor.name, shape=(tensor.numel,)) for tensor in layer.tensors]
        for layer in profile.layers
    ]
    flat = [each for layer in parameters for each in layer]
    for parameter in flat:
        parameter.initialize(mx.init.Zero(), ctx=mx.cpu())
    trainer = mx.gluon.Trainer(flat, "sgd", {"learning_rate": 1e-3}, kvstore=store)
    signal, loss = mx.nd.zeros((1,)), mx.nd.zeros((1,))
    passes = list(zip(profile.layers, parameters, strict=True))
    device, known = Device(), [time.perf_counter()]
    for _ in range(spec["warmup"] + spec["steps"]):
        for layer, held in passes:
            _compute(signal, device, layer.forward_s, reads=[each.data() for each in held])
        _compute(loss, device, 0.0, reads=[signal])
        for layer, held in reversed(passes):
            _compute(signal, device, layer.backward_s, gradients=[each.grad() for each in held])
        for parameter in flat:
            parameter.data()._fresh_grad = True
        trainer.step(1)
        loss.wait_to_read()
        known.append(time.perf_counter())
    mx.nd.waitall()
    return [after - before for before, after in pairwise(known)][spec["warmup"] :]


def _compute(
    signal: Any, device: Device, seconds: float, *, reads: Sequence[Any] = (), gradients: Sequence[Any] = ()
) -> None:
    """Put into MXNet's engine what takes so long, and has gradients at its end."""
    from autobyte.mxnet.dependencies import hold  # noqa: PLC0415

    def begin(release: Callable[[], None]) -> None:
        device.busy(seconds)
        release()

    hold(signal, begin, beside=gradients, reads=reads)


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)  # MXNet's threads outlive the interpreter's
