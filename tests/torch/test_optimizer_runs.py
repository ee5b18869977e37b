"""What surrounds the steps of a run: schedules, checkpoints, evaluation, uneven inputs, switching off."""

import copy
import itertools
import logging
import time
from typing import Any

import pytest
import torch
from ranks import on_ranks
from stories import (
    SMALL,
    STEPS,
    assert_equal,
    from_rank_0,
    make_mlp,
    parameters_of,
    sgd,
    train,
    with_ab,
    with_ddp,
)
from torch import Tensor, nn

import autobyte.torch as ab
from autobyte.config import Config


@pytest.mark.parametrize("as_tensor", [False, True])
def test_learning_rate_schedulers(as_tensor: bool) -> None:
    """Those that change a rate in place, too."""
    on_ranks(_schedulers, 2, as_tensor)


def _schedulers(rank: int, as_tensor: bool) -> None:
    def story(wrap: Any) -> list[Tensor]:
        rate = torch.tensor(0.05) if as_tensor else 0.05
        module = make_mlp()
        model, optimizer = wrap(module, torch.optim.SGD(module.parameters(), lr=rate, momentum=0.9))
        schedulers = [
            torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
        ]
        for step in range(STEPS):
            train(model, optimizer, rank, range(step, step + 1))
            for scheduler in schedulers:
                scheduler.step()
        return parameters_of(module, optimizer)

    assert_equal(story(with_ab), story(with_ddp))


def test_nothing_is_left_on_a_model_whose_optimizer_was_closed() -> None:
    on_ranks(_closed, 2)


def _closed(rank: int) -> None:
    for cross_step in (True, False):
        model, optimizer = with_ab(module := make_mlp(), sgd(module), cross_step=cross_step)
        train(model, optimizer, rank, range(3))
        optimizer.close()
        for part in module.modules():
            hooks = [value for name, value in vars(part).items() if "hooks" in name and isinstance(value, dict)]
            assert hooks
            assert not any(hooks), (cross_step, part)


def test_parameter_groups_keep_their_own_settings() -> None:
    on_ranks(_groups, 2)


def _groups(rank: int) -> None:
    def story(wrap: Any) -> list[Tensor]:
        module = make_mlp()
        decayed = [p for p in module.parameters() if p.ndim > 1]
        plain = [p for p in module.parameters() if p.ndim == 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "lr": 0.02}]
        model, optimizer = wrap(module, torch.optim.AdamW(groups, lr=0.01))
        train(model, optimizer, rank, range(3))
        optimizer.param_groups[1]["lr"] = 0.5
        train(model, optimizer, rank, range(3, STEPS))
        return parameters_of(module, optimizer)

    assert_equal(story(with_ab), story(with_ddp))


def test_a_checkpoint_carries_config_and_state() -> None:
    on_ranks(_checkpoint, 2)


def _checkpoint(rank: int) -> None:
    def fresh(config: Config) -> tuple[nn.Module, Any]:
        module = make_mlp(seed=5)
        return module, ab.DistributedOptimizer(torch.optim.Adam(module.parameters(), lr=0.01), module, config=config)

    model, optimizer = fresh(SMALL)
    train(model, optimizer, rank, range(6))
    kept = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    assert kept["optimizer"]["autobyte"]["config"]["partition_bytes"] == SMALL.partition_bytes
    train(model, optimizer, rank, range(6, 12))
    expected = parameters_of(model, optimizer)

    resumed, again = fresh(Config(4096, 4096))
    train(resumed, again, rank, range(50, 52))  # what is in transit must not come after what is loaded
    resumed.load_state_dict(kept["model"])
    again.load_state_dict(kept["optimizer"])
    train(resumed, again, rank, range(6, 12))
    assert again.training is not None
    assert again.training.config == SMALL
    assert_equal(parameters_of(resumed, again), expected)

    plain = make_mlp()
    torch.optim.Adam(plain.parameters()).load_state_dict(kept["optimizer"])  # torch leaves our entry aside
    plain.load_state_dict(kept["model"])


def test_a_checkpoint_carries_the_plan_that_was_measured(tmp_path: Any) -> None:
    on_ranks(_measured_plan, 2, str(tmp_path / "checkpoint.pt"))


class Backwards(nn.Sequential):
    """Its layers run in another order than they are registered in: only a plan from measured times knows."""

    def forward(self, rows: Tensor) -> Tensor:
        for layer in reversed(self):
            rows = layer(rows)
        return rows


def _measured_plan(rank: int, file: str) -> None:
    """Over the file that torch reads without unpickling; the plan is in force before anything is measured again."""
    (model, optimizer), (fresh, again) = (
        with_ab(module := Backwards(*reversed(make_mlp())), sgd(module)) for _ in range(2)
    )
    for step in itertools.count():
        train(model, optimizer, rank, range(step, step + 1))
        if optimizer.training.job.model.compute_s:  # measured, the same on all ranks
            break
        assert step < 200, "no plan was made from measured times"
        time.sleep(0.01)
    if rank == 0:
        torch.save(optimizer.state_dict(), file)
    else:
        optimizer.state_dict()
    torch.distributed.barrier()
    assert again.training.exchange.plan.digest != optimizer.training.exchange.plan.digest
    again.load_state_dict(torch.load(file, weights_only=True))
    train(fresh, again, rank, range(3))
    assert again.training.exchange.plan.digest == optimizer.training.exchange.plan.digest
    assert again.training.job == optimizer.training.job
    train(fresh, again, rank, range(3, 5))
    again.flush()
    halved, other = with_ab(module := Backwards(*reversed(make_mlp())), sgd(module), wire_dtype="bf16")
    other.load_state_dict(
        torch.load(file, weights_only=True)
    )  # another wire dtype: other blocks, only the config fits
    train(halved, other, rank, range(3))
    assert other.training.config == optimizer.training.config
    assert not other.training.job.model.compute_s
    train(halved, other, rank, range(3, 5))
    other.flush()


@pytest.mark.parametrize(("saved", "resumed"), [(2, 3), (3, 1), (1, 2)])
def test_the_number_of_ranks_changes_between_runs(saved: int, resumed: int, tmp_path: Any) -> None:
    """What torchelastic does: the next run has other ranks, and begins where the last one was."""
    file = str(tmp_path / "kept.pt")
    on_ranks(_save, saved, file)
    for said in on_ranks(_resume, resumed, file):
        if min(saved, resumed) > 1:
            assert "the checkpoint's config is left aside: its workers differ" in said


def _save(rank: int, file: str) -> None:
    model, optimizer = with_ab(module := make_mlp(), sgd(module))
    train(model, optimizer, rank)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if rank == 0:
        torch.save(state, file)
    optimizer.close()


def _resume(rank: int, file: str) -> list[str]:
    said = _listen()
    model, optimizer = with_ab(module := make_mlp(seed=1), sgd(module))
    kept = torch.load(file, weights_only=True)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    momentum = optimizer.state_dict()["state"][0]["momentum_buffer"]
    assert torch.equal(momentum, kept["optimizer"]["state"][0]["momentum_buffer"])
    train(model, optimizer, rank)
    parameters = parameters_of(model, optimizer)
    assert_equal(parameters, [from_rank_0(each) for each in parameters])
    optimizer.close()
    return said


def _listen() -> list[str]:
    said: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logging.getLogger("autobyte").addHandler(Listening())
    logging.getLogger("autobyte").setLevel(logging.INFO)
    return said


@pytest.mark.parametrize("way", ["no_grad", "inference_mode", "part", "state_dict"])
def test_looking_at_the_model_between_steps(way: str) -> None:
    on_ranks(_evaluation, 2, way)


def _evaluation(rank: int, way: str) -> None:
    def story(wrap: Any) -> tuple[list[Tensor], list[Tensor]]:
        model, optimizer = wrap(module := make_mlp(), sgd(module))
        seen = []
        for step in range(STEPS):
            train(model, optimizer, rank, range(step, step + 1))
            if way == "state_dict":
                seen += [each.clone() for each in module[2].state_dict().values()]
            elif way == "part":
                seen.append(module[2](torch.ones(40)).detach())
            else:
                module.eval()
                with getattr(torch, way)():
                    seen.append(module(torch.ones(2, 12)).clone())
                module.train()
        return parameters_of(module, optimizer), seen

    (ours, we_saw), (theirs, they_saw) = story(with_ab), story(with_ddp)
    assert_equal(we_saw, they_saw)
    assert_equal(ours, theirs)
