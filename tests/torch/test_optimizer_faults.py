"""What goes wrong in training: it goes on correctly, or every rank ends in time and says rank, step and tensor."""

import contextlib
import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.internals import default_store
from autobyte.testing import Faults, FaultyEngine
from autobyte.torch.exchange.control import CommunicationError
from autobyte.torch.exchange.training import ENGINES as ENGINES_OF_TRAINING

ENGINES = ("allreduce", "ps")
SMALL = Config(1024, 2048, knobs={"fusion": 1.0})
TIMEOUT = timedelta(seconds=2)
STEPS = 12
WHERE = r"rank {rank}, step \d+: ((block \d+ of )?tensor '\d\.(weight|bias)'|could not )"  # or between two steps


def make_model(width: int = 30) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, width), nn.Tanh(), nn.Linear(width, 20), nn.Tanh(), nn.Linear(20, 4))


def wrapped(
    model: nn.Module, engine: str, timeout: timedelta = TIMEOUT, *, group: dist.ProcessGroup | None = None
) -> ab.DistributedOptimizer:
    keywords: dict[str, Any] = {
        "allreduce": {"config": SMALL},
        "ps": {"config": SMALL, "engine": "ps"},
        "leader": {"config": SMALL, "order": "leader"},
        "dear": {"config": Config(1024, 2048, "dear")},
    }[engine]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return ab.DistributedOptimizer(optimizer, model, timeout=timeout, process_group=group, **keywords)


def rows(rank: int, step: int) -> Tensor:
    return torch.randn(5, 12, generator=torch.Generator().manual_seed(1000 * step + rank))


def train(model: nn.Module, optimizer: Any, rank: int, steps: range = range(STEPS)) -> None:
    for step in steps:
        optimizer.zero_grad()
        model(rows(rank, step)).square().mean().backward()
        optimizer.step()


def state(model: nn.Module, optimizer: ab.DistributedOptimizer) -> list[Tensor]:
    optimizer.flush()
    return [parameter.detach().clone() for parameter in model.parameters()]


def by_ddp(rank: int) -> list[Tensor]:
    model = make_model()
    train(DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rank)
    return [parameter.detach().clone() for parameter in model.parameters()]


def compare(ours: list[Tensor]) -> None:
    for tensor in ours:
        rows = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, tensor)
        assert all(torch.equal(row, tensor) for row in rows)


def at_once(
    function: Callable[..., Any], size: int, cases: Sequence[Any] = (), *arguments: Any, timeout_s: float = 30.0
) -> list[Ranks]:
    """Start every case on both engines; they mostly wait."""
    each = [(case,) for case in cases] or [()]
    return [
        Ranks(function, size, engine, *case, *arguments, timeout_s=timeout_s) for engine in ENGINES for case in each
    ]


def said(outcome: Any) -> str:
    assert isinstance(outcome, BaseException), f"went on: {outcome}"
    return str(outcome)


def test_a_rank_that_is_killed_is_named_by_all_others() -> None:
    """With parameter servers on the ranks' hosts, a server is lost besides."""
    others = [Ranks(_killed, 3, engine, "backward", timeout_s=30) for engine in ("leader", "dear")]
    for ranks in (*at_once(_killed, 3, ("forward", "backward", "after step")), *others):
        outcomes = ranks.outcomes()
        assert outcomes[1] is None
        for rank in (0, 2):
            assert re.match("CommunicationError: " + WHERE.format(rank=rank), said(outcomes[rank])), outcomes[rank]
            assert "no word from rank 1" in said(outcomes[rank])


def _killed(rank: int, engine: str, when: str) -> None:
    model = make_model()
    optimizer = wrapped(model, engine, timedelta(seconds=15))
    train(model, optimizer, rank, range(6))
    if rank == 1:
        place = model[1] if when == "forward" else None
        if place is not None:
            place.register_forward_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        elif when == "backward":
            model[2].weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    train(model, optimizer, rank, range(6, 8))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    train(model, optimizer, rank, range(8, STEPS))
    optimizer.flush()


def test_a_rank_that_is_stopped_for_less_than_the_timeout_changes_nothing() -> None:
    both = at_once(_stopped, 2, (1,), 40.0)
    _stop_and_go([(ranks, 1) for ranks in both], 10.0)
    for ranks in both:
        assert ranks.results() == [True, True]


def test_a_rank_that_is_stopped_for_longer_is_named() -> None:
    """Rank 0 is the host of the store through which the silent one is found out."""
    stopped = [(ranks, rank) for rank in (0, 1) for ranks in at_once(_stopped, 2, (rank,), 2.0)]
    _stop_and_go(stopped, 10.0)
    for ranks, rank in stopped:
        outcomes = ranks.outcomes()
        waited = said(outcomes[1 - rank])
        assert re.match("CommunicationError: " + WHERE.format(rank=1 - rank), waited), waited
        assert f"no word from rank {rank}" in waited or (rank == 0 and "the store at which the ranks met" in waited)
        assert f"rank {rank}, step" in said(outcomes[rank])


def _stop_and_go(stopped: list[tuple[Ranks, int]], seconds: float) -> None:
    until = time.monotonic() + 20
    for ranks, rank in stopped:
        status = Path(f"/proc/{ranks.processes[rank].pid}/status")
        while "State:\tT" not in status.read_text():
            assert time.monotonic() < until
            time.sleep(0.05)
    time.sleep(seconds)
    for ranks, rank in stopped:
        ranks.signal(rank, signal.SIGCONT)


def _stopped(rank: int, engine: str, stopped: int, timeout_s: float) -> bool:
    expected = by_ddp(rank)
    model = make_model()
    optimizer = wrapped(model, engine, timedelta(seconds=timeout_s))
    train(model, optimizer, rank, range(6))
    if rank == stopped:
        model[2].weight.register_hook(_once(lambda: os.kill(os.getpid(), signal.SIGSTOP)))
    train(model, optimizer, rank, range(6, STEPS))
    return all(torch.equal(a, b) for a, b in zip(state(model, optimizer), expected, strict=True))


def _once(action: Any) -> Any:
    left = [action]
    return lambda *_: left.pop()() if left else None


def test_ranks_with_different_models_end_at_once() -> None:
    told = {
        "shapes": (
            r"0.weight \(30, 12\) torch.float32 stride \(12, 1\)$",
            r"0.weight \(31, 12\) torch.float32 stride \(12, 1\) where rank 0 has 0.weight \(30, 12\)",
        ),
        "number": ("nothing$", r"5.weight \(4, 4\) torch.float32 stride \(4, 1\) where rank 0 has nothing$"),
    }
    for how, ranks in zip([*told, *told], at_once(_different, 3, tuple(told), timeout_s=20), strict=True):
        for rank, outcome in enumerate(ranks.outcomes()):
            why = f"CommunicationError: ranks \\[2\\] have a model unlike rank 0's; rank {rank} has "
            assert re.match(why + told[how][rank == 2], said(outcome)), said(outcome)


def _different(rank: int, engine: str, how: str) -> None:
    model = make_model(width=31 if rank == 2 and how == "shapes" else 30)
    if rank == 2 and how == "number":
        model.append(nn.Linear(4, 4))
    wrapped(model, engine)


@pytest.mark.parametrize("refuses", [0, 1])
def test_a_model_that_one_rank_refuses_ends_all_at_once(refuses: int) -> None:
    for ranks in at_once(_refused, 2, (refuses,), timeout_s=20):
        outcomes = [said(outcome) for outcome in ranks.outcomes()]
        assert outcomes[refuses] == "InputError: the optimizer trains no parameter of 'Sequential'"
        assert outcomes[1 - refuses].startswith("CommunicationError: ranks [1] have a model unlike rank 0's; ")


def _refused(rank: int, engine: str, refuses: int) -> None:
    model = make_model()
    wrapped(model.requires_grad_(rank != refuses), engine)


def test_nan_gradients_are_averaged_as_they_are() -> None:
    for ranks in at_once(_nan, 2):
        assert ranks.results() == [[True] * 6] * 2


def _nan(rank: int, engine: str) -> list[bool]:
    model = make_model()
    optimizer = wrapped(model, engine)
    for step in range(4):
        optimizer.zero_grad()
        loss = model(rows(rank, step)).square().mean()
        (loss * float("nan") if rank == 1 and step == 2 else loss).backward()
        optimizer.step()
    return [bool(each.isnan().any()) for each in state(model, optimizer)]


def test_ranks_of_a_group_are_named_as_torchrun_numbers_them() -> None:
    launches = [Ranks(_grouped, 3, engine, timeout_s=30) for engine in (*ENGINES, "leader", "dear")]
    for ranks in launches:
        outcomes = ranks.outcomes()
        assert (outcomes[0], outcomes[2]) == ("was there", None)
        assert re.match("CommunicationError: " + WHERE.format(rank=1), said(outcomes[1])), outcomes[1]
        assert "no word from rank 2" in said(outcomes[1])
        assert "rank 0" not in said(outcomes[1])


def _grouped(rank: int, engine: str) -> str:
    """Ranks 1 and 2 train, 0 has the store; 2 is lost."""
    group, store = dist.new_group([1, 2]), default_store()
    if rank == 0:
        store.wait(["over"], timedelta(seconds=25))
        return "was there"
    model = make_model()
    with pytest.raises(CommunicationError, match=r"ranks \[2\] have settings unlike rank 1's; rank [12] has"):
        ab.DistributedOptimizer(
            torch.optim.SGD(model.parameters()), model, policy=["ddp", "horovod"][rank - 1], process_group=group
        )
    optimizer = wrapped(model, engine, timedelta(seconds=15), group=group)
    train(model, optimizer, rank, range(3))
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        train(model, optimizer, rank, range(3, STEPS))
        optimizer.flush()
    finally:
        store.set("over", "yes")
    return "went on"


def test_a_rank_that_waits_for_one_that_has_failed_hears_of_it() -> None:
    """Rank 0 knows that rank 1 is gone, and does not come to what rank 2 waits for."""
    ranks = Ranks(_waiting, 3, timeout_s=30)
    outcomes = ranks.outcomes()
    assert outcomes[1] is None
    assert "could not share a plan: rank 0 has failed; no word from rank 1" in outcomes[2]


def _waiting(rank: int) -> str:
    model = make_model()
    optimizer = wrapped(model, "allreduce", timedelta(seconds=25))
    assert optimizer.training is not None
    control = optimizer.training.control
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        control.rollcall.alarm("rank 0 has failed")
        time.sleep(6)  # alive, busy with something else
        return ""
    with pytest.raises(CommunicationError) as caught:
        control.share(None)
    return str(caught.value)


def test_an_exception_in_one_rank_ends_the_others() -> None:
    for ranks in at_once(_raising, 3, ("forward", "backward")):
        outcomes = ranks.outcomes()
        assert "RuntimeError: out of luck" in said(outcomes[1])
        for rank in (0, 2):
            assert re.match("CommunicationError: " + WHERE.format(rank=rank), said(outcomes[rank])), outcomes[rank]
            assert "no word from rank 1" in said(outcomes[rank])


def _fail(*_: Any) -> None:
    raise RuntimeError("out of luck")


def _raising(rank: int, engine: str, where: str) -> None:
    model = make_model()
    optimizer = wrapped(model, engine, timedelta(seconds=5))
    train(model, optimizer, rank, range(6))
    if rank == 1:
        if where == "forward":
            model[3].register_forward_hook(_fail)
        else:
            model[2].weight.register_hook(_fail)
    train(model, optimizer, rank, range(6, STEPS))
    optimizer.flush()


def test_a_caught_exception_in_backward_ends_all_ranks() -> None:
    """The rank leaves out a step that others take: parameters differ from then on, and nobody may go on."""
    for ranks in at_once(_catching, 2, ("backward",)):
        for rank, outcome in enumerate(ranks.outcomes()):
            assert re.match(rf"CommunicationError: rank {rank}, step \d+: ", said(outcome)), outcome
            assert re.search("1 of 2 ranks left out a step that others took|no word from rank", said(outcome)), (
                outcome
            )


def test_a_caught_exception_in_forward_only_loses_a_batch() -> None:
    """Nothing of that step was sent: the rank's next batch takes its place, and the other's last step is alone."""
    for ranks in at_once(_catching, 2, ("forward",)):
        outcomes = ranks.outcomes()
        assert outcomes[1] == STEPS - 1
        assert re.match("CommunicationError: " + WHERE.format(rank=0), said(outcomes[0])), outcomes[0]


def _catching(rank: int, engine: str, where: str) -> int:
    model = make_model()
    optimizer = wrapped(model, engine)
    train(model, optimizer, rank, range(6))
    if rank == 1:
        if where == "forward":
            model[3].register_forward_hook(_once(_fail))
        else:
            model[2].weight.register_hook(_once(_fail))
    for step in range(6, STEPS):
        try:
            train(model, optimizer, rank, range(step, step + 1))
        except RuntimeError as error:
            if "out of luck" not in str(error):
                raise
        if step == STEPS - 2 + rank and where == "forward":  # after as many steps
            compare(state(model, optimizer))
    optimizer.flush()
    return int(optimizer.training.exchange.steps)


def test_a_rank_that_never_comes_is_named() -> None:
    for ranks in at_once(_alone, 2):
        outcomes = ranks.outcomes()
        assert re.match(
            r"CommunicationError: rank 0, step 0: could not meet .*; no word from rank 1", said(outcomes[0])
        )


def _alone(rank: int, engine: str) -> None:
    if rank == 0:
        wrapped(make_model(), engine)


def test_ctrl_c_ends_all_ranks(tmp_path: Path) -> None:
    """Whether the terminal sends it to all of them, or somebody to one."""
    interrupted = []
    for which in ((0, 1), (1,)):
        folder = tmp_path / str(which)
        folder.mkdir()
        interrupted += [(ranks, which) for ranks in at_once(_interrupted, 2, (), folder, timeout_s=60)]
    until = time.monotonic() + 60
    while len(list(tmp_path.glob("*/*"))) < 4 * len(ENGINES):
        assert time.monotonic() < until, "not all of them train"
        time.sleep(0.05)
    for ranks, which in interrupted:
        for rank in which:
            ranks.signal(rank, signal.SIGINT)
    for ranks, which in interrupted:
        outcomes = ranks.outcomes()
        assert "KeyboardInterrupt" in said(outcomes[1])
        assert re.match("KeyboardInterrupt|CommunicationError: rank 0", said(outcomes[0])), (which, outcomes)


def _interrupted(rank: int, engine: str, folder: Path) -> None:
    model = make_model()
    optimizer = wrapped(model, engine, timedelta(seconds=10))  # eight processes train at a time
    for step in itertools.count():
        train(model, optimizer, rank, range(step, step + 1))
        time.sleep(0.01)
        if step == 1:
            (folder / f"{engine}{rank}").touch()


def test_a_server_rank_that_is_killed_ends_all_workers() -> None:
    """The other server hears that its workers have ended, in a sum or between two, and does the same."""
    outcomes = Ranks(_served, 4, timeout_s=30).outcomes()
    assert outcomes[3] is None
    assert re.match(r"ended|CommunicationError: server rank 2: rank [01]", str(outcomes[2])), outcomes[2]
    for rank in (0, 1):
        assert re.match("CommunicationError: " + WHERE.format(rank=rank), said(outcomes[rank])), outcomes[rank]
        assert "rank 3 is gone" in said(outcomes[rank])


def _served(rank: int) -> str:
    """Ranks 0 and 1 train, 2 and 3 serve; 3 is lost after a while."""
    workers = dist.new_group([0, 1])
    if rank == 3:
        threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    if rank > 1:
        ab.serve([2, 3], timeout=timedelta(seconds=20))
        return "ended"
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    keywords = {"config": SMALL, "timeout": timedelta(seconds=20)}
    wrapper = ab.DistributedOptimizer(
        optimizer, model, engine="ps", servers=[2, 3], process_group=workers, **keywords
    )
    try:
        train(model, wrapper, rank, range(10**9))
    finally:
        with contextlib.suppress(ab.CommunicationError):
            wrapper.close()
    return "went on"


@pytest.mark.parametrize("fault", ["fail", "hang", "delay", "jitter"])
def test_an_engine_that_fails_on_purpose(fault: str) -> None:
    """Whatever engine is underneath: the rank whose block fails says so, and the other one hears it."""
    for ranks in at_once(_faulty, 2, (fault,)):
        outcomes = ranks.outcomes()
        if fault in ("delay", "jitter"):
            assert outcomes == [True, True]
            continue
        for rank in (0, 1):
            assert re.match("CommunicationError: " + WHERE.format(rank=rank), said(outcomes[rank])), outcomes[rank]
        why = "failed on purpose on rank 1" if fault == "fail" else "did not arrive within 3 s"
        assert any(why in said(outcome) for outcome in outcomes), outcomes


def _faulty(rank: int, engine: str, fault: str) -> bool:
    expected = by_ddp(rank)
    faults = {
        "fail": Faults().fail_at(rank=1, step=7),
        "hang": Faults().hang_at(rank=1, step=7),
        "delay": Faults().delay_at(rank=1, step=7, seconds=1.0),
        "jitter": Faults().jitter(2e-3, seed=rank),
    }[fault]
    make = ENGINES_OF_TRAINING[engine]

    def faulty(training: Any, timeout: timedelta) -> FaultyEngine:
        return FaultyEngine(
            make(training, timeout), faults, rank=rank, step=lambda: int(training.session.runner.step)
        )

    ENGINES_OF_TRAINING[engine] = faulty
    model = make_model()
    optimizer = wrapped(model, engine, timedelta(seconds=3))
    train(model, optimizer, rank)
    return all(torch.equal(a, b) for a, b in zip(state(model, optimizer), expected, strict=True))


def test_ranks_that_fail_end_by_themselves_and_leave_no_process() -> None:
    forkserver.ensure_running()
    resource_tracker.ensure_running()
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    ranks = Ranks(_killed, 3, "ps", "backward", timeout_s=30)
    for process in ranks.processes:
        process.join(30)
    ended = [process.exitcode for process in ranks.processes]
    assert [ended[0], ended[2]] == [0, 0], ended  # they have said why; nobody has killed them
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    _, alive = psutil.wait_procs(left, timeout=5)
    assert not alive, [child.name() for child in alive]


def test_ranks_with_different_plans_do_not_begin() -> None:
    """As if one planned otherwise than the others: another version, or a bug."""
    for ranks in at_once(_plans_otherwise, 3, timeout_s=20):
        for rank, outcome in enumerate(ranks.outcomes()):
            why = rf"CommunicationError: ranks \[1\] have a plan for .* unlike rank 0's; rank {rank} has [0-9a-f]+"
            assert re.match(why + (" where rank 0 has [0-9a-f]+$" if rank == 1 else "$"), said(outcome)), said(
                outcome
            )


def _plans_otherwise(rank: int, engine: str) -> None:
    from autobyte.torch.exchange import training  # noqa: PLC0415

    as_it_is = training.agreed_plan

    def otherwise(job: Any, config: Any, order: Any) -> Any:
        plan = as_it_is(job, config, order)
        return plan.with_sequence(np.roll(np.arange(len(plan.tiling)), 1)) if rank == 1 else plan

    training.agreed_plan = otherwise
    wrapped(make_model(), engine)
