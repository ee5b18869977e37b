"""`gluon.Trainer` with AutoByte's store equals plain averaging; what goes wrong is said."""

import os
import re
import signal
import time
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed as dist
from clusters import WITH_MXNET, with_names
from faulty import SMALL, said
from ranks import Ranks, on_ranks

from autobyte.exchange.times import ALONE

pytestmark = WITH_MXNET

IMPORTS = ("autobyte.mxnet", "mxnet.gluon")
STEPS, BATCH = 20, 16


def test_equals_plain_averaging() -> None:
    """To 1e-6 after 20 steps, from other parameters on each rank, with a frozen one; on MXNet's servers, too."""
    for furthest in on_ranks(_parity, 2, timeout_s=120, imports=IMPORTS):
        assert len(furthest) == 5
        assert max(furthest.values()) <= 1e-6, furthest


def _parity(rank: int) -> dict[str, float]:
    ab, mx = with_names()
    furthest = {}
    for optimizer in ("sgd", "adam"):
        plain = _train(rank, _plain(), optimizer)
        for engine in ("allreduce", "kvstore"):
            store = ab.KVStore(engine=engine, config=SMALL, keep=None)
            assert mx.optimizer.SGD().aggregate_num == 1, "else the first of four waits for the last one's average"
            ours = _train(rank, store, optimizer)
            assert len(store.averaging.connection.times._alone) == ALONE, "forward passes that show what they compute"
            store.close()
            furthest[f"{optimizer} {engine}"] = float(np.abs(ours - plain).max())
    rows = [torch.empty(len(ours)) for _ in range(2)]
    dist.all_gather(rows, torch.from_numpy(ours))
    furthest["ranks"] = float((rows[0] - rows[1]).abs().max())
    return furthest


def _train(rank: int, store: Any, optimizer: str, steps: int = STEPS) -> npt.NDArray[np.float32]:
    _, mx = with_names()
    from mxnet import autograd, gluon  # noqa: PLC0415

    net = _net(rank)
    trainer = gluon.Trainer(list(net.collect_params().values()), optimizer, {"learning_rate": 0.05}, kvstore=store)
    loss_of = gluon.loss.L2Loss()
    for step in range(steps):
        rows = np.random.default_rng(100 * step + rank)
        data, wanted = rows.normal(size=(BATCH, 8)), rows.normal(size=(BATCH, 2))
        with autograd.record():
            loss = loss_of(net(mx.nd.array(data)), mx.nd.array(wanted))
        loss.backward()
        trainer.step(BATCH)
    return np.concatenate([each.data().asnumpy().reshape(-1) for each in net.collect_params().values()])


def _net(rank: int) -> Any:
    _, mx = with_names()
    from mxnet import gluon  # noqa: PLC0415

    mx.random.seed(rank)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(32, activation="tanh", in_units=8), gluon.nn.Dense(32, in_units=32))
    net.add(gluon.nn.Dense(2, in_units=32))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    net[1].bias.grad_req = "null"  # is sent from rank 0, and stays
    return net


def _plain() -> Any:
    """A store that averages at once, by torch.distributed."""
    _, mx = with_names()

    class Plain(mx.kv.KVStoreBase):  # type: ignore[misc]
        type, rank, num_workers = "dist_plain", dist.get_rank(), dist.get_world_size()

        @staticmethod
        def is_capable(capability: str) -> bool:
            return False

        def broadcast(self, key: int, value: Any, out: Any, priority: int = 0) -> None:
            travelling = torch.from_numpy(value.asnumpy())
            dist.broadcast(travelling, 0)
            for each in out:
                each[:] = mx.nd.array(travelling.numpy())

        def pushpull(self, key: int, value: Any, out: Any = None, priority: int = 0) -> None:
            travelling = torch.from_numpy(value[0].asnumpy()).div_(dist.get_world_size())
            dist.all_reduce(travelling)
            value[0][:] = mx.nd.array(travelling.numpy())

    return Plain()


def test_a_parameter_that_comes_or_goes_is_named() -> None:
    """And a store that is closed within such a step ends, where its gradients were held."""
    old, gone, come, devices, device, compression, closed, spoilt = on_ranks(_changes, 1, imports=IMPORTS)[0]
    assert old == "mxnet 1.8.0 is too old, 1.9 works: pip install --upgrade mxnet"
    assert gone == "parameter 1 had a gradient in the first step, and has none in this one"
    assert come == "parameter 7 has a gradient, and had none in the first step: make another store"
    assert devices == "parameter 0 is on 2 devices; start one process for each"
    assert device == "parameter 0 is on gpu(0): AutoByte averages arrays of mx.cpu() alone"
    assert compression.startswith("compression_params={'type': '2bit'} is for MXNet's own stores")
    assert closed == "the store is closed within a step: not all gradients are handed in"
    assert spoilt == "[nan nan nan]"


def _changes(rank: int) -> list[str]:
    ab, mx = with_names()

    said, version, mx.__version__ = [], mx.__version__, "1.8.0"
    with pytest.raises(ValueError) as error:
        ab.KVStore(keep=None)
    said.append(str(error.value))
    mx.__version__ = version
    store = ab.KVStore(keep=None)
    gradients = [mx.nd.ones((3,)) for _ in range(2)]
    for key, gradient in enumerate(gradients):
        store.pushpull(key, gradient)
    for key, values in ((0, gradients[0]), (7, gradients[1]), (0, gradients)):
        if key == 0 and values is gradients[0]:
            store.pushpull(key, values)
        with pytest.raises(ValueError) as error:
            store.pushpull(key, values)
        said.append(str(error.value))
    on_gpu = SimpleNamespace(context=mx.gpu(0))
    with pytest.raises(ValueError) as error:
        store.pushpull(0, on_gpu)
    said.append(str(error.value))
    with pytest.raises(ValueError) as error:
        store.set_gradient_compression({"type": "2bit"})
    said.append(str(error.value))
    with pytest.raises(RuntimeError) as closing:
        store.close()
    return [*said, str(closing.value), str(gradients[0].asnumpy())]


def test_averages_come_as_the_forward_pass_needs_them() -> None:
    """In the opposite order of gradients, whatever that of `Trainer` is; it may sort parameters by name."""
    assert on_ranks(_in_order, 1, imports=IMPORTS) == [([2, 0, 1], [2, 0, 1])]


def _in_order(rank: int) -> tuple[list[int], list[int]]:
    """Keys in the order of the plan, and as averages come in the third step."""
    ab, mx = with_names()
    from autobyte.mxnet.dependencies import Release, hold  # noqa: PLC0415

    def compute(release: Release) -> None:
        time.sleep(0.02)
        release()

    store, device = ab.KVStore(keep=None, config=SMALL), mx.nd.zeros((1,))
    gradients, came = [mx.nd.ones((40,)) for _ in range(3)], []
    for step in range(3):
        for key in (1, 0, 2):
            hold(device, compute, beside=[gradients[key]])
        for key, gradient in enumerate(gradients):
            store.pushpull(key, gradient)
        if step == 1:
            store.averaging.wait = partial(_noted, came, store.averaging.wait)
    mx.nd.waitall()
    keys = [int(spec.name.removeprefix("parameter ")) for spec in store.averaging.specs]
    store.close()
    return keys, [keys[place] for place in came[-3:]]


def _noted(places: list[int], wait: Any, place: int) -> Any:
    places.append(place)
    return wait(place)


@pytest.mark.parametrize(
    ("kind", "own", "theirs"),
    [
        ("other shape", "parameter 0 (16, 8) float32", "parameter 0 (32, 8) float32"),
        ("more", "parameter 2 (2, 32) float32", "a gradient of parameter 0 (32, 8) float32"),
        ("fewer gradients", "no more gradients", "a gradient of parameter 1 (32,) float32"),
    ],
)
def test_another_model_is_named(kind: str, own: str, theirs: str) -> None:
    """Rank 1's: all ranks end in their first step."""
    first, second = Ranks(_another, 2, kind, timeout_s=60, imports=IMPORTS).outcomes()
    unlike = "CommunicationError: ranks [1] have a model unlike rank 0's; rank "
    assert said(first) == f"{unlike}0 has {theirs}"
    assert said(second) == f"{unlike}1 has {own} where rank 0 has {theirs}"


def _another(rank: int, kind: str) -> None:
    ab, mx = with_names()
    from mxnet import autograd, gluon  # noqa: PLC0415

    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16 if rank and kind == "other shape" else 32, in_units=8))
    if rank and kind == "more":
        net.add(gluon.nn.Dense(2, in_units=32))
    net.initialize()
    if rank and kind == "fewer gradients":
        net[0].bias.grad_req = "null"
    store = ab.KVStore(keep=None, timeout=timedelta(seconds=10), config=SMALL)
    trainer = gluon.Trainer(list(net.collect_params().values()), "sgd", kvstore=store)
    for _ in range(2):
        with autograd.record():
            loss = net(mx.nd.ones((3, 8))).sum()
        loss.backward()
        trainer.step(3)


def test_sparse_gradients_are_refused() -> None:
    """By `Trainer`, in one line."""
    (outcome,) = Ranks(_sparse, 1, imports=IMPORTS).outcomes()
    assert re.search("Cannot use .* with sparse gradients$", said(outcome)), outcome


def _sparse(rank: int) -> None:
    ab, _ = with_names()
    from mxnet import gluon  # noqa: PLC0415

    net = gluon.nn.Embedding(20, 4, sparse_grad=True)
    net.initialize()
    gluon.Trainer(net.collect_params(), "sgd", kvstore=ab.KVStore(keep=None)).step(1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_killed_or_stopped_is_named(number: signal.Signals) -> None:
    """The loop of the one that is left goes on to its next call, which raises."""
    ranks = Ranks(_goes, 2, number, timeout_s=60, imports=IMPORTS)
    try:
        outcome = said(ranks._outcome(0))
    finally:
        ranks.kill()
    assert re.match(r"CommunicationError: rank 0, step \d+: .*no word from rank 1", outcome), outcome


def _goes(rank: int, number: signal.Signals) -> None:
    ab, _ = with_names()
    dist.barrier()  # until all have imported MXNet, which may take longer than the timeout
    store = ab.KVStore(keep=None, timeout=timedelta(seconds=3), config=SMALL)
    _train(rank, store, "sgd", 4)
    if rank == 1:
        os.kill(os.getpid(), number)
    _train_on(rank, store)


def _train_on(rank: int, store: Any) -> None:
    _, mx = with_names()

    shapes = [spec.shape for spec in store.averaging.specs]
    for _ in range(50):
        for key, shape in zip(store._places, shapes, strict=True):
            store.pushpull(key, gradient := mx.nd.ones(shape))
        gradient.wait_to_read()
