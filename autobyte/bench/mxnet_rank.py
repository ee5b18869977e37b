"""One rank of a measurement of MXNet's Gluon: trains an emulated model over one store, and times its steps.

    python -m autobyte.bench.mxnet_rank SPEC

as `autobyte bench --frontend mxnet` starts it on every host. A layer sleeps in MXNet's dependency engine, where it
reads its parameters and writes its gradients; `gluon.Trainer`, stores, communication and SGD are real.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch.distributed as dist

import autobyte
from autobyte.bench.front_rank import Spec, begin, chosen, told
from autobyte.scheduler.engines.carriers import environment
from autobyte.torch.exchange.connect import own_address
from autobyte.torch.profiling.emulate import Device

VALUE = 1e-3  # of all gradients
SERVE = f"import runpy; runpy.run_path({str(Path(autobyte.__file__).parent / 'mxnet/names.py')!r})['restore'](); "
SERVE += "import mxnet"  # which serves, or schedules, where the environment says so


def main(text: str) -> None:
    """Train as a spec says; rank 0 prints the times of steps."""
    spec = json.loads(text)
    begin()
    if spec["way"] in ("dist_sync", "p3"):
        with _cluster({"DMLC_PS_VAN_TYPE": "p3"} if spec["way"] == "p3" else {}):
            import_module("autobyte.mxnet")  # gives NumPy the names that MXNet takes from it
            told(_times(spec, import_module("mxnet").kv.create("dist_sync")))
        return
    import autobyte.mxnet as ab  # noqa: PLC0415

    store = ab.KVStore(**chosen(spec))
    steps_s = _times(spec, store)
    told(steps_s, store.averaging.report() if store.averaging is not None else None)
    store.close()


@contextmanager
def _cluster(variables: dict[str, str]) -> Iterator[None]:
    """MXNet's own servers, one beside every worker, and its scheduler beside the first. Collective."""
    host = own_address()
    place: list[Any] = [None]
    if dist.get_rank() == 0:
        with socket.create_server((host, 0)) as free:
            place = [(host, free.getsockname()[1])]
    dist.broadcast_object_list(place)
    root, port = place[0]
    known = {"workers": dist.get_world_size(), "root": root, "port": port, "host": host, "rank": dist.get_rank()}
    processes = [
        subprocess.Popen([sys.executable, "-c", SERVE], env=environment(role, known) | variables)
        for role in (["scheduler", "server"] if dist.get_rank() == 0 else ["server"])
    ]
    os.environ |= environment("worker", known) | variables
    try:
        yield
    finally:
        for process in processes:
            process.kill()


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
    """Put into MXNet's engine what takes so long, and writes gradients at its end."""
    from autobyte.mxnet.dependencies import hold, memory  # noqa: PLC0415

    def begin(release: Callable[[], None]) -> None:
        device.busy(seconds)
        for gradient in gradients:
            memory(gradient).fill(VALUE)
        release()

    hold(signal, begin, beside=gradients, reads=reads)


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)  # MXNet's threads outlive the interpreter's
