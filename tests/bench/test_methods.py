"""Ways to train: which there are, what the installed DDP adds to them, and what is left of a search."""

import inspect
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from torch.nn.parallel import DistributedDataParallel

from autobyte.bench.methods import BUCKETS_MIB, Method, methods, offered, training
from autobyte.bench.networks import make


def named(**changes: Any) -> dict[str, Method]:
    how: dict[str, Any] = {"engine": "nccl", "tuners": ["twin"], "windows": 2, "servers": True} | changes
    found = methods(**({"wire_dtypes": [None, "bf16"]} | how))
    assert len({method.name for method in found}) == len(found)
    return {method.name: method for method in found}


def test_all_ways_are_measured_and_the_default_comes_before_what_may_be_left_out() -> None:
    found = named()
    assert list(found)[:3] == ["compute", "DDP default", "AutoByte"]
    for suffix in ("", ", bf16"):
        assert {f"DDP {mib} MiB{suffix}" for mib in BUCKETS_MIB} <= found.keys()
        assert found[f"AutoByte twin{suffix}"].wire_dtype == (suffix[2:] or None)
    assert {found[name].engine for name in ("AutoByte", "AutoByte twin")} == {"nccl"}
    assert found["AutoByte auto"].engine == "auto"  # which hears host memory, too
    assert found["AutoByte over host memory"].engine == "allreduce"
    assert found["AutoByte servers"].engine == "ps"
    assert "AutoByte servers" not in named(servers=False)


def test_what_ddp_offers_is_what_its_constructor_takes() -> None:
    best = Method("DDP 4 MiB", "ddp", None, {"bucket_cap_mb": 4})
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    tried = offered(best, has_buffers=True)
    assert all(method.arguments.keys() <= known.keys() for method in tried)
    for option in ("batched_grad_copy", "bucket_cap_mb_list", "gradient_as_bucket_view", "static_graph"):
        assert any(option in method.arguments for method in tried) == (option in known)
    assert [method.name for method in tried if "buffers" in method.name] == ["DDP 4 MiB, buffers not sent"]
    assert not [method for method in offered(best, has_buffers=False) if "buffers" in method.name]
    assert all(
        method.arguments["bucket_cap_mb"] == 4
        for method in tried
        if "MiB, " in method.name[:11] and "bucket_cap_mb_list" not in method.arguments
    )


def test_what_a_search_has_found_is_measured_again_without_searching() -> None:
    auto = named()["AutoByte auto"]
    assert auto.searches
    found = auto.settled({"partition_bytes": 4096, "credit_bytes": 4096, "policy": "usbyte"})
    assert (found.name, found.policy, found.tuner, found.searches) == ("AutoByte auto", "usbyte", None, False)
    default = auto.settled({"partition_bytes": 4096, "credit_bytes": 4096})  # JSON leaves the usual policy out
    assert default.policy == "bytescheduler"
    assert auto.settled(None) is auto


def trained(rank: int, method: Method) -> list[float]:
    """Steps with gradients that differ from rank to rank; afterwards the model's parameters."""
    network = make("small:cnn", torch.device("cpu"), batch=2).of(2, seed=rank)
    with training(network, method) as (step, optimizer):
        for _ in range(3):
            step()
        assert step.host_s > 0
        if optimizer is not None:
            optimizer.flush()
        parameters = [float(p.detach().double().sum()) for p in step.passes.model.parameters()]
    assert all(p.grad is None for p in network.model.parameters())  # a copy was trained
    dist.barrier()
    return parameters


@pytest.mark.parametrize(
    "method",
    [
        Method("DDP default", "ddp"),
        Method("DDP 1 MiB, bf16", "ddp", "bf16", {"bucket_cap_mb": 1}),
        Method("AutoByte", "autobyte", engine="ordered"),
        Method("AutoByte, bf16", "autobyte", "bf16", engine="allreduce"),
    ],
    ids=lambda method: method.name,
)
def test_every_way_keeps_ranks_alike(method: Method) -> None:
    first, second = Ranks(trained, 2, method).results()
    assert first == second


def test_compute_alone_keeps_nobody_alike() -> None:
    first, second = Ranks(trained, 2, Method("compute", "compute")).results()
    assert first != second
