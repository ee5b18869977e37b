"""Steps that some ranks leave out, and what a step leaves behind."""

import gc
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from faulty import SMALL, STEPS, WHERE, at_once, compare, fail, make_model, once, rows, said, state, train, wrapped
from ranks import on_ranks
from torch import Tensor

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.exchange.control import CommunicationError
from autobyte.torch.exchange.flags import StepFlags
from autobyte.torch.exchange.tallies import Tallies


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
            model[3].register_forward_hook(once(fail))
        else:
            model[2].weight.register_hook(once(fail))
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


def test_steps_with_a_closure_leave_nothing_behind() -> None:
    on_ranks(_closures, 2)


def _closures(rank: int) -> None:
    model = make_model()
    optimizer = ab.DistributedOptimizer(torch.optim.LBFGS(model.parameters(), max_iter=3), model, config=SMALL)
    for step in range(6):

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = model(rows(rank, step)).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    assert optimizer.training is not None
    assert optimizer.training.exchange.steps > 12
    assert len(optimizer.training.exchange.tallies._unheard) < 6


def test_staging_is_no_more_than_the_plan_in_force_needs() -> None:
    on_ranks(_staging, 2)


def _staging(rank: int) -> None:
    model = make_model()
    optimizer = ab.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model, policy="bytescheduler", keep=None
    )
    gradients = sum(parameter.nbytes for parameter in model.parameters())
    for step, partition in enumerate((64, 1 << 20, 256, 128, 1 << 16, 512)):
        optimizer.reconfigure(Config(partition, 1 << 20, knobs={"fusion": 1}))
        train(model, optimizer, rank, range(step, step + 1))
        optimizer.synchronize()
        assert optimizer.training.buffers.staged_bytes <= gradients
    assert optimizer.training.buffers.staged_bytes > 0
    optimizer.close()


@pytest.mark.parametrize("engine", ["allreduce", "ps", "ordered"])
def test_threads_and_descriptors_are_gone_when_close_returns(engine: str) -> None:
    on_ranks(_closing, 2, engine)


def _closing(rank: int, engine: str) -> None:
    at_first: list[int] = []
    gc.disable()
    for _ in range(4):
        model = make_model()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = ab.DistributedOptimizer(sgd, model, policy="bytescheduler", keep=None, engine=engine)
        train(model, optimizer, rank, range(5))
        optimizer.close()
        dist.barrier()
        at_first = at_first or held()
        until = time.monotonic() + 5  # the store's host takes a moment to see that a rank has closed its connection
        while any(now > first for now, first in zip(held(), at_first, strict=True)):
            assert time.monotonic() < until, (held(), at_first)
            time.sleep(0.05)
    dist.barrier()


def held() -> list[int]:
    """Threads and descriptors of this process."""
    return [len(list(Path("/proc/self", what).iterdir())) for what in ("task", "fd")]


def test_ranks_that_clip_the_last_step_unlike_each_other_hear_of_it_at_the_end() -> None:
    """No later step is closed, and nobody waits for counts that are not there."""
    counts = StepFlags([True], left_out=False, joined=False, announces=False, clips=(1.0, 2.0)).pack()
    tally = SimpleNamespace(there=False, wait=lambda: counts)
    control = SimpleNamespace(
        size=2, tally=lambda _: tally, failure=lambda what, step: CommunicationError(f"step {step}: {what}")
    )
    tallies = Tallies(control, SimpleNamespace(progress=SimpleNamespace(steps=5)), out=1)  # type: ignore[arg-type]
    tallies.add(StepFlags([True], left_out=False, joined=False, announces=False), None)
    tallies.check_last()
    tally.there = True
    with pytest.raises(CommunicationError, match=r"step 4: 1 of 2 ranks called clip_grad_norm_\(\)"):
        tallies.check_last()
