"""After a failure parameters and optimizer state are of one step, which is known; and training goes on from there."""

import contextlib
import copy
import logging
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from faulty import ENGINES, at_once, by_ddp, make_model, rows, said, state, train, wrapped
from ranks import Ranks, free_port
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab
from autobyte.errors import InputError
from autobyte.exchange.control import CommunicationError

LOST = 6  # the step in which a rank is lost


def alone(size: int, steps: int) -> list[Tensor]:
    """Parameters and momentum after so many steps of so many ranks, computed in one process."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        torch.stack([model(rows(rank, step)).square().mean() for rank in range(size)]).mean().backward()
        optimizer.step()
    return everything(model.state_dict(), optimizer.state_dict())


def everything(model: dict[str, Tensor], optimizer: dict[str, Any]) -> list[Tensor]:
    momentum = [state["momentum_buffer"] for _, state in sorted(optimizer["state"].items())]
    return [tensor.clone() for tensor in (*model.values(), *momentum)]


def assert_close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)  # a step changes them by some 1e-2


def never_arrives(optimizer: ab.DistributedOptimizer, name: str) -> None:
    """As if the last block of a tensor were lost with the rank that dies."""
    training = optimizer.training
    assert training is not None
    runner, index = training.session.runner, training.session.plan.job.gradients.names.index(name)
    optimizer.flush()
    arrived = runner._arrived
    runner._arrived = lambda tensors: arrived([tensor for tensor in tensors if tensor != index])


def lose_a_rank(model: nn.Module, optimizer: ab.DistributedOptimizer, rank: int, lost: int) -> str:
    """Train until a rank is gone; what the others are told."""
    with pytest.raises(CommunicationError) as told:
        for step in range(LOST + 3):
            if step == LOST:
                if rank == lost:
                    os.kill(os.getpid(), signal.SIGKILL)
            elif step == LOST - 1:
                never_arrives(optimizer, "4.weight")  # the last layer's: the others are updated before
            train(model, optimizer, rank, range(step, step + 1))
    return str(told.value)


def test_survivors_save_a_checkpoint_of_one_step() -> None:
    for ranks in at_once(_save, 2):
        steps, saved = ranks.outcomes()[0]
        assert steps == LOST - 1
        assert_close([torch.tensor(each) for each in saved], alone(2, steps))


def _save(rank: int, engine: str) -> tuple[int, list[Any]]:
    model = make_model()
    optimizer = wrapped(model, engine)
    lose_a_rank(model, optimizer, rank, lost=1)
    saved = everything(model.state_dict(), optimizer.state_dict())
    assert optimizer.state_dict()["autobyte"]["steps"] == optimizer.steps
    with contextlib.suppress(CommunicationError):
        optimizer.close()
    after_close = everything(model.state_dict(), optimizer.state_dict())
    assert all(map(torch.equal, saved, after_close))
    return optimizer.steps, [tensor.tolist() for tensor in saved]


def test_survivors_go_on_in_a_new_group() -> None:
    """Three ranks lose one: two go on, as DDP would from where they were."""
    for ranks in at_once(_go_on, 3, (), free_port(), timeout_s=60):
        outcomes = ranks.outcomes()
        assert outcomes[:2] == [LOST - 1] * 2


def _go_on(rank: int, engine: str, port: int) -> int:
    model = make_model()
    optimizer = wrapped(model, engine)
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("autobyte").addHandler(handler)
    lose_a_rank(model, optimizer, rank, lost=2)
    steps = optimizer.recover()
    assert_close(everything(model.state_dict(), optimizer.state_dict()), alone(3, steps))
    dist.destroy_process_group()
    port += ENGINES.index(engine)
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0, timeout=timedelta(seconds=20))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    theirs = copy.deepcopy(model)
    reference = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    reference.load_state_dict(copy.deepcopy(optimizer._optimizer.state_dict()))
    ours = ab.DistributedOptimizer(
        optimizer._optimizer, model, policy="bytescheduler", engine=engine, timeout=timedelta(seconds=10)
    )
    assert ours.training is not None
    assert ours.training.name.endswith("model0")  # as a rank that has just come names it
    train(model, ours, rank, range(steps, steps + 4))
    train(DistributedDataParallel(theirs), reference, rank, range(steps, steps + 4))
    assert all(map(torch.equal, state(model, ours), list(theirs.parameters())))
    ours.close()
    assert len([line for line in said if f"have taken {steps} steps" in line]) == 1, said
    return steps


def test_a_checkpoint_cannot_be_taken_up_where_a_rank_is_gone() -> None:
    for ranks in at_once(_load_after_loss, 2):
        words = said(ranks.outcomes()[0])
        assert words.startswith("CommunicationError: training cannot go on here: call recover(), and load")
        assert "no word from rank 1" in words
        assert "\n" not in words


def _load_after_loss(rank: int, engine: str) -> None:
    model = make_model()
    optimizer = wrapped(model, engine)
    checkpoint = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    lose_a_rank(model, optimizer, rank, lost=1)
    model.load_state_dict(checkpoint[0])
    optimizer.load_state_dict(checkpoint[1])


@pytest.mark.parametrize("fault", ["changed", "left out"])
def test_a_checkpoint_is_taken_up_after_a_failure_that_left_all_ranks_alive(fault: str) -> None:
    for ranks in at_once(_load, 2, (fault,)):
        assert ranks.results() == [True] * 2


def _load(rank: int, engine: str, fault: str) -> bool:
    model = make_model()
    optimizer = wrapped(model, engine, timedelta(seconds=10))  # nobody is lost, and many ranks start at once
    train(model, optimizer, rank, range(5))
    checkpoint = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    FAULTS[fault](model, optimizer, rank)
    model.load_state_dict(checkpoint[0])
    optimizer.load_state_dict(checkpoint[1])
    assert optimizer.steps == 5
    train(model, optimizer, rank, range(5, 12))
    assert optimizer.steps == 12
    return all(map(torch.equal, state(model, optimizer), by_ddp(rank)))


def _change(model: nn.Module, optimizer: ab.DistributedOptimizer, rank: int) -> None:
    """All ranks change a gradient that travels."""
    model(rows(rank, 99)).square().mean().backward()
    model[2].weight.grad.mul_(2)
    with pytest.raises(InputError, match="was changed between backward"):
        optimizer.step()


def _leave_out(model: nn.Module, optimizer: ab.DistributedOptimizer, rank: int) -> None:
    """One rank skips a batch after its backward pass."""
    with pytest.raises(CommunicationError, match="1 of 2 ranks left out a step"):
        for step in range(90, 95):
            optimizer.zero_grad()
            model(rows(rank, step)).square().mean().backward()
            if (rank, step) != (1, 91):
                optimizer.step()


FAULTS: dict[str, Callable[[nn.Module, ab.DistributedOptimizer, int], None]] = {
    "changed": _change,
    "left out": _leave_out,
}


def test_recovery_without_a_failure_is_the_end_of_training() -> None:
    assert Ranks(_recover, 2).results() == [3, 3]


def _recover(rank: int) -> int:
    model = make_model()
    optimizer = wrapped(model, "allreduce")
    train(model, optimizer, rank, range(3))
    steps = optimizer.recover()
    assert_close(everything(model.state_dict(), optimizer.state_dict()), alone(2, 3))
    assert optimizer.recover() == optimizer.steps == steps
    return steps


def test_lbfgs_is_what_it_was_before_a_line_search_that_was_broken_off() -> None:
    steps, same = Ranks(_search, 2).outcomes()[0]
    assert same
    assert steps == 2


def _search(rank: int) -> tuple[int, bool]:
    model = make_model()
    lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.1, history_size=3)
    optimizer = ab.DistributedOptimizer(lbfgs, model, policy="bytescheduler", timeout=timedelta(seconds=2))
    evaluations = 0

    def closure() -> Tensor:
        nonlocal evaluations
        evaluations += 1
        if rank == 1 and optimizer.steps == 2 and evaluations > 3:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = model(rows(rank, optimizer.steps)).square().mean()
        loss.backward()
        return loss

    for step in range(3):
        evaluations = 0
        before = copy.deepcopy((model.state_dict(), lbfgs.state_dict()["state"]))
        if step < 2:
            optimizer.step(closure)
    with pytest.raises(CommunicationError):
        optimizer.step(closure)
    now = (model.state_dict(), lbfgs.state_dict()["state"])
    assert evaluations > 3
    flat = [[*model_.values(), *state_[0]["old_dirs"], state_[0]["d"]] for model_, state_ in (before, now)]
    return optimizer.steps, all(map(torch.equal, *flat))
