"""One rank of a measurement of Horovod: trains an emulated PyTorch model in one way, and times its steps.

    python -m autobyte.bench.horovod_rank SPEC

as `autobyte bench --frontend horovod` starts it on every host. Horovod moves gradients by gloo, as AutoByte does.
"""

import json
import os
import sys
from typing import Any

import psutil
import torch.distributed as dist

from autobyte.bench.front_rank import begin, told
from autobyte.bench.torch_loop import model_of, sgd, times, train_by_autobyte, trained
from autobyte.exchange.connect import own_address


def main(text: str) -> None:
    """Train as a spec says; rank 0 prints the times of steps."""
    spec = json.loads(text)
    if spec["way"] == "autobyte":
        train_by_autobyte(spec)
        return
    begin()
    _meet()
    import horovod.torch as hvd  # noqa: PLC0415 - it reads the environment

    hvd.init()
    model = model_of(spec)
    told(times(spec, model, hvd.DistributedOptimizer(sgd(model), named_parameters=trained(model))))


def _meet() -> None:
    """Say in the environment what `horovodrun` would: who this rank is, and where ranks find each other."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts  # noqa: PLC0415
    from horovod.runner.http.http_server import RendezvousServer  # noqa: PLC0415

    rank, size, host = dist.get_rank(), dist.get_world_size(), own_address()
    hosts: list[Any] = [None] * size
    dist.all_gather_object(hosts, host)
    place: list[Any] = [None]
    if rank == 0:
        server = RendezvousServer()
        place = [server.start()]
        server.init(get_host_assignments(parse_hosts(",".join(f"{each}:1" for each in hosts)), size))
    dist.broadcast_object_list(place)
    variables: dict[str, Any] = {"RANK": rank, "SIZE": size, "LOCAL_RANK": 0, "LOCAL_SIZE": 1, "HOSTNAME": host}
    variables |= {"CROSS_RANK": rank, "CROSS_SIZE": size, "CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo"}
    variables["GLOO_IFACE"] = next(
        name for name, held in psutil.net_if_addrs().items() if host in (each.address for each in held)
    )
    variables |= {"GLOO_RENDEZVOUS_ADDR": hosts[0], "GLOO_RENDEZVOUS_PORT": place[0]}
    os.environ |= {f"HOROVOD_{name}": str(value) for name, value in variables.items()}


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)  # Horovod's threads outlive the interpreter's
