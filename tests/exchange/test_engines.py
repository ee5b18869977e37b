"""Engines are found by name; `nccl` is refused where it cannot be used, and trains on stand-ins for a GPU."""

import os
import re
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from faulty import SMALL, by_ddp, compare, make_model, state, train
from gpus import Moment, stand_in
from gpus import Ranks as Nccl
from ranks import Ranks, on_ranks

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.exchange import engines
from autobyte.exchange.engines import ENGINES, connector
from autobyte.exchange.tuning.online import Online
from autobyte.internals import own_gloo
from autobyte.torch.exchange import lookout, ways
from autobyte.torch.exchange.ways import not_nccl_because, resolve


def test_engines_of_other_packages_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "moves.py").write_text("def connect(training, timeout):\n    return training, timeout\n")
    info = tmp_path / "moves-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moves\nVersion: 1.0\n")
    points = ["mine = moves:connect", "ps = moves:connect", "gone = not_there:connect"]
    (info / "entry_points.txt").write_text("\n".join(["[autobyte.engines]", *points]))
    monkeypatch.syspath_prepend(tmp_path)
    assert connector("mine").__module__ == "moves"
    assert connector("ps") is ENGINES["ps"]  # theirs takes no name of ours
    with pytest.raises(InputError, match=r"^engine 'gone' cannot be loaded from not_there:connect: "):
        connector("gone")
    with pytest.raises(InputError, match=r"^unknown engine 'minne'; did you mean 'mine'\? \(known: allreduce, auto,"):
        connector("minne")


class Placed:
    """A parameter that says where it is."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)


ONE: Any = {"0.weight": Placed("cuda:0"), "0.bias": Placed("cuda:0")}
TWO: Any = {"0.weight": Placed("cuda:0"), "0.bias": Placed("cuda:0"), "1.weight": Placed("cuda:1")}
MIXED: Any = {"0.weight": Placed("cuda:0"), "1.weight": Placed("cpu")}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this PyTorch had NCCL, and saw a GPU."""
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(ways, "cuda_backend", lambda group: "nccl")


def refusal(parameters: Any) -> str:
    with pytest.raises(InputError) as refused:
        resolve("nccl", parameters, None)
    assert resolve("auto", parameters, None) == "allreduce"
    return str(refused.value)


def test_auto_is_nccl_where_the_group_has_it_and_parameters_are_on_one_gpu(gpu: None) -> None:
    assert not_nccl_because(ONE, None) == ""
    assert resolve("auto", ONE, None) == resolve("nccl", ONE, None) == "nccl"
    assert resolve("ps", MIXED, None) == "ps"


def test_a_pytorch_without_nccl_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert refusal(ONE) == (
        f"engine='nccl' cannot be used: PyTorch {torch.__version__} has no NCCL; install a build with CUDA; "
        "engine='auto' takes what can be"
    )


def test_gpus_that_are_hidden_are_named(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert ": PyTorch sees no GPU, and CUDA_VISIBLE_DEVICES is ''; engine=" in refusal(ONE)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert ": PyTorch sees no GPU; engine=" in refusal(ONE)


def test_parameters_on_several_devices_are_named(gpu: None) -> None:
    assert ": parameters are on 2 GPUs ('0.weight' on cuda:0 and '1.weight' on cuda:1), and a rank has one;" in (
        refusal(TWO)
    )
    assert ": parameter '1.weight' is on cpu; move the model to a GPU before wrapping it;" in refusal(MIXED)


@pytest.mark.parametrize(("backend", "words"), [("gloo", "'gloo'"), ("", "nothing")])
def test_a_group_without_nccl_is_named(gpu: None, monkeypatch: pytest.MonkeyPatch, backend: str, words: str) -> None:
    monkeypatch.setattr(ways, "cuda_backend", lambda group: backend)
    assert f": the group has {words} for GPUs; call init_process_group('nccl');" in refusal(ONE)


def test_ranks_that_cannot_use_nccl_are_told_before_they_wait_for_each_other() -> None:
    for outcome in Ranks(_refused, 2, timeout_s=30).outcomes():
        assert "engine='nccl' cannot be used: PyTorch " in outcome[0]
        assert outcome[1] == "order='leader' needs an engine whose blocks end on the host: leave it out with 'nccl'"
        assert outcome[2:] == ["allreduce", "allreduce", "allreduce"]


def _refused(rank: int) -> list[str]:
    words = []
    for order in ("planned", "leader"):
        model = make_model()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(InputError) as refused:
            ab.DistributedOptimizer(sgd, model, engine="nccl", order=order)
        words.append(str(refused.value))
    for order in ("planned", "leader"):
        model = make_model()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = ab.DistributedOptimizer(sgd, model, order=order)
        assert optimizer.training is not None
        words.append(optimizer.training.engine)
        if order == "planned":
            words.append(optimizer.state_dict()["autobyte"]["engine"])
        optimizer.close()
    return words


def _with_stand_ins() -> list[Nccl]:
    """Let `nccl` be used by models in host memory; what it sums with, once it is connected."""
    stand_in()
    made: list[Nccl] = []

    def own_nccl(name: str, *, device: torch.device, rank: int, size: int, timeout: timedelta) -> Nccl:
        assert device.type == "cpu"  # where this model is
        made.append(Nccl(own_gloo(name, rank=rank, size=size, timeout=timeout)))
        return made[-1]

    engines.own_nccl = own_nccl
    ways.not_nccl_because = lambda *_: ""
    return made


PLANS = {
    "fused": (SMALL, None),
    "halves": (Config(1024, 1024, "dear"), None),
    "buckets": (Config(4096, 4096, "ddp"), None),
    "bf16": (SMALL, "bf16"),
}


@pytest.mark.parametrize("plan", PLANS)
def test_on_stand_ins_two_ranks_have_ddps_parameters_to_the_bit(plan: str) -> None:
    """Calls and their order are CUDA's; that CUDA does with them what it should, only a GPU can show."""
    assert on_ranks(_trained_on_stand_ins, 2, plan) == ["nccl"] * 2


def _trained_on_stand_ins(rank: int, plan: str) -> str:
    made = _with_stand_ins()
    (config, wire), model = PLANS[plan], make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = ab.DistributedOptimizer(sgd, model, config=config, wire_dtype=wire)
    train(model, optimizer, rank)
    ours = state(model, optimizer)
    compare(ours)
    if wire is None:
        assert all(torch.equal(a, b) for a, b in zip(ours, by_ddp(rank), strict=True))
    assert optimizer.training is not None
    engine = optimizer.training.engine
    optimizer.close()
    assert [nccl.called for nccl in made] == [["shutdown"]]
    return engine


def test_a_rank_that_is_lost_is_named_and_its_communicator_aborted_within_bounds() -> None:
    """Its peers' kernels never end, and an abort hangs: as NCCL's may."""
    launch = Ranks(_lost, 2, timeout_s=40)
    words, again, called, left_s = launch.outcomes()[0]
    assert re.match(r"rank 0, step 6: (block \d+ of )?tensor '\d\.(weight|bias)'", words), words
    assert "; no word from rank 1" in words
    assert again == (
        "rank 0: parameters cannot be recovered, because the GPU went on when communication failed, and updated them "
        "from averages that never arrived: load a checkpoint"
    )
    assert called == ["abort"]
    assert left_s < 12


def test_what_a_gpu_has_done_without_averages_is_undone_where_copies_are_kept() -> None:
    words, recovered, _, _ = Ranks(_lost, 2, True, timeout_s=40).outcomes()[0]
    assert "; no word from rank 1" in words
    assert recovered == "parameters, state and learning rate of 6 steps; 3 or more were undone"


def _lost(rank: int, undo: bool = False) -> tuple[str, str, list[str], float]:
    made, abort = _with_stand_ins(), Nccl.abort
    Nccl.abort = lambda nccl: (abort(nccl), time.sleep(60))  # type: ignore[method-assign, func-returns-value]
    lookout.ABORT_S = 0.5
    Online.announces = lambda _: False  # type: ignore[method-assign]  # a switch of plans might come between
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = ab.DistributedOptimizer(
        sgd, model, config=SMALL, timeout=timedelta(seconds=2), diagnostics=None, undo=undo
    )
    train(model, optimizer, rank, range(6))
    before = state(model, optimizer)
    momenta = [sgd.state[parameter]["momentum_buffer"].clone() for parameter in model.parameters()]
    if rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    made[0].lost, Moment.always_over = True, False
    began_s = time.monotonic()
    with pytest.raises(ab.CommunicationError) as told:
        for step in range(6, 10_000):
            train(model, optimizer, rank, range(step, step + 1))  # the host runs ahead
            sgd.param_groups[0]["lr"] *= 0.5
            time.sleep(0.05)
    left_s = time.monotonic() - began_s
    if undo:
        taken = step - optimizer.recover()
        assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
        now = [sgd.state[parameter]["momentum_buffer"] for parameter in model.parameters()]
        assert all(torch.equal(one, other) for one, other in zip(momenta, now, strict=True))
        assert sgd.param_groups[0]["lr"] == 0.1
        undone = "3 or more" if taken >= 3 else taken
        recovered = f"parameters, state and learning rate of {optimizer.steps} steps; {undone} were undone"
        return str(told.value), recovered, made[0].called, left_s
    with pytest.raises(ab.CommunicationError) as again:
        optimizer.recover()
    return str(told.value), str(again.value), made[0].called, left_s


def test_a_communicator_that_cannot_be_made_is_one_line_on_every_rank() -> None:
    one, other = map(str, Ranks(_alike, 2, timeout_s=40).outcomes())
    assert one.startswith(
        "rank 0, step 0: could not meet the other ranks: Duplicate GPU detected : rank 0 and rank 1;"
    )
    assert other.startswith("rank 1, step 0: could not meet the other ranks: ")
    assert "\n" not in one + other


def _alike(rank: int) -> str:
    _with_stand_ins()
    made, where = engines.own_nccl, "NCCL error in: NCCLUtils.cpp:94, invalid usage\nLast error:\n"

    def own_nccl(*names: str, **how: Any) -> Any:
        if rank == 0:
            raise RuntimeError(f"{where}Duplicate GPU detected : rank 0 and rank 1")
        return made(*names, **how)

    engines.own_nccl = own_nccl
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ab.CommunicationError) as told:
        ab.DistributedOptimizer(sgd, model, timeout=timedelta(seconds=3), diagnostics=None)
    time.sleep(3 * (1 - rank))  # else the other hears first that its peer is gone
    return str(told.value)


def test_a_step_within_a_cuda_graph_is_refused() -> None:
    for words in on_ranks(_captured, 2):
        assert words == (
            "gradients cannot travel from a CUDA graph, whose replays call no hooks: call backward() and step() "
            "outside of torch.cuda.graph()"
        )


def _captured(rank: int) -> str:
    model = make_model()
    optimizer = ab.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, policy="bytescheduler")
    train(model, optimizer, rank, range(3))
    assert optimizer.training is not None
    optimizer.training.exchange._on_gpu = True
    torch.cuda.is_current_stream_capturing = lambda: True
    with pytest.raises(InputError) as refused:
        train(model, optimizer, rank, range(3, 4))
    torch.cuda.is_current_stream_capturing = lambda: False
    return str(refused.value)


@pytest.mark.parametrize("engine", ["ordered", "nccl"])
def test_all_are_told_of_a_rank_that_has_no_memory_left_for_a_block(engine: str) -> None:
    launch = Ranks(_full, 2, engine, timeout_s=40)
    (other, other_s), (full, full_s) = launch.outcomes()
    named = r"rank 1, step 6: (block \d+ of )?tensor '\d\.(weight|bias)'.*CUDA out of memory"
    assert re.match(named, full), full
    assert re.match(r"rank 0, step 6: ", other), other
    assert re.search(named, other), other
    assert max(other_s, full_s) < 12


def _full(rank: int, engine: str) -> tuple[str, float]:
    made = _with_stand_ins() if engine == "nccl" else []
    Online.announces = lambda _: False  # type: ignore[method-assign]  # a switch of plans might come between
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = ab.DistributedOptimizer(
        sgd, model, config=SMALL, engine="auto" if engine == "nccl" else engine, timeout=timedelta(seconds=3),
        diagnostics=None,
    )  # fmt: skip
    train(model, optimizer, rank, range(6))
    optimizer.flush()
    if rank == 1:
        assert optimizer.training is not None
        optimizer.training.buffers.take = _no_room  # type: ignore[method-assign]
    elif made:  # what the other one does not start never ends here
        made[0].lost, Moment.always_over = True, False
    began_s = time.monotonic()
    with pytest.raises(ab.CommunicationError) as told:
        for step in range(6, 10_000):
            train(model, optimizer, rank, range(step, step + 1))
            time.sleep(0.01)
    took_s = time.monotonic() - began_s
    time.sleep(5 * rank)  # else the other hears first that its connections are closed
    return str(told.value), took_s


def _no_room(block: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
