"""What surrounds the steps of a run: schedules, checkpoints, evaluation, uneven inputs, switching off."""

import copy
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from ranks import RankError, on_ranks
from stories import (
    SMALL,
    STEPS,
    assert_equal,
    from_rank_0,
    make_mlp,
    parameters_of,
    rows,
    sgd,
    train,
    with_ab,
    with_ddp,
)
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.errors import InputError


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


@pytest.mark.parametrize("engine", ["allreduce", "ps"])
def test_inputs_that_end_early(engine: str) -> None:
    on_ranks(_uneven, 3, engine)


def _uneven(rank: int, engine: str) -> None:
    """Two epochs: after the first, DDP's optimizers have drifted apart, so it is compared over one."""

    def story(wrap: Any, epochs: int, **keywords: Any) -> list[Tensor]:
        model, optimizer = wrap(module := make_mlp(seed=rank), sgd(module), **keywords)
        for epoch in range(epochs):
            with Join([optimizer if wrap is with_ab else model]):
                train(model, optimizer, rank, range(100 * epoch, 100 * epoch + 14 + 5 * rank))
        return parameters_of(module, optimizer)

    def by_hand(epochs: int) -> list[Tensor]:
        """All ranks' batches in one process."""
        model, optimizer = make_mlp(), sgd(module := make_mlp())
        model = module
        for epoch in range(epochs):
            for step in range(14 + 5 * 2):
                optimizer.zero_grad()
                for other in range(3):
                    if step < 14 + 5 * other:
                        loss = model(rows(other, 100 * epoch + step, 5, 12)).square().mean()
                        (loss / 3).backward()
                optimizer.step()
        return parameters_of(model, optimizer)

    one, two = story(with_ab, 1, engine=engine), story(with_ab, 2, engine=engine)
    for ours, theirs in zip(one, story(with_ddp, 1), strict=True):
        torch.testing.assert_close(ours, theirs)
    for ours, theirs in zip(two, by_hand(2), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert_equal(two, [from_rank_0(tensor) for tensor in two])


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
    assert again.training is not None
    assert again.training.config == SMALL
    train(resumed, again, rank, range(6, 12))
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
    assert again.training.exchange.plan.digest == optimizer.training.exchange.plan.digest
    assert again.training.job == optimizer.training.job
    train(fresh, again, rank, range(3))
    again.flush()
    halved, other = with_ab(module := Backwards(*reversed(make_mlp())), sgd(module), wire_dtype="bf16")
    other.load_state_dict(
        torch.load(file, weights_only=True)
    )  # another wire dtype: other blocks, only the config fits
    assert other.training.config == optimizer.training.config
    assert not other.training.job.model.compute_s
    train(halved, other, rank, range(3))
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


@pytest.mark.parametrize("why", ["one rank", "enabled", "environment", "no group"])
def test_a_bypass_changes_nothing(why: str) -> None:
    """Where there is nothing to do, the user's optimizer does it all."""
    size = 1 if why in ("one rank", "no group") else 2
    on_ranks(_bypass, size, why, init=why != "no group")


def _bypass(rank: int, why: str) -> None:
    if why == "environment":
        os.environ["AUTOBYTE_DISABLE"] = "1"
    ours, theirs = make_mlp(), make_mlp()
    said: list[logging.LogRecord] = []
    logging.getLogger("autobyte").addFilter(lambda record: bool(said.append(record)))
    logging.getLogger("autobyte").setLevel(logging.INFO)
    optimizer = ab.DistributedOptimizer(sgd(ours), ours, enabled=why != "enabled")
    assert optimizer.training is None
    warned = [record.getMessage() for record in said if record.levelno >= logging.WARNING]
    assert len(said) == 1 and all("nothing is averaged" in text for text in warned)
    assert bool(warned) == (why in ("enabled", "environment"))  # several ranks, and each for itself
    plain = sgd(theirs)
    for stepping in (optimizer, plain):
        scheduler = torch.optim.lr_scheduler.ExponentialLR(stepping, 0.9)
        train(ours if stepping is optimizer else theirs, stepping, rank)
        scheduler.step()
    with optimizer.no_sync():
        optimizer.synchronize()
    optimizer.flush()
    optimizer.broadcast_buffers()
    assert_equal(list(ours.parameters()), list(theirs.parameters()))
    assert optimizer.state_dict().keys() == plain.state_dict().keys()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    assert not [m for m in ours.modules() if m._forward_pre_hooks]
    optimizer.close()


def test_parameter_groups_come_before_wrapping() -> None:
    with pytest.raises(RankError, match="add parameter groups before DistributedOptimizer is made"):
        on_ranks(_late_group, 2)


def _late_group(rank: int) -> None:
    _, optimizer = with_ab(module := make_mlp(), sgd(module))
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


@pytest.mark.parametrize("engine", ["allreduce", "ps"])
def test_verified_steps_pass(engine: str) -> None:
    on_ranks(_verified, 2, engine, None)
    on_ranks(_verified, 2, engine, "bf16")


def _verified(rank: int, engine: str, wire_dtype: str | None) -> None:
    model, optimizer = with_ab(
        module := make_mlp(), sgd(module), engine=engine, verify_steps=4, wire_dtype=wire_dtype
    )
    train(model, optimizer, rank)
    assert optimizer.training is not None
    assert not optimizer._verification.active


def test_verify_steps_names_tensor_and_step() -> None:
    with pytest.raises(RankError, match=r"rank \d, step 2: tensor '2\.weight' differs by .* from a plain all-reduce"):
        on_ranks(_wrong_sum, 2)


def _wrong_sum(rank: int) -> None:
    model, optimizer = with_ab(module := make_mlp(), sgd(module), verify_steps=4)
    training = optimizer.training
    assert training is not None
    give, index = training.buffers.give, training.exchange.plan.job.gradients.names.index("2.weight")

    def wrong(block: Any) -> None:
        give(block)
        if training.session.runner.step == 2:
            for segment in block.segments:
                if segment.tensor == index:
                    module[2].weight.grad.data.view(-1)[segment.start] += 1.0

    training.buffers.give = wrong
    train(model, optimizer, rank)


def test_other_optimizers_are_stepped_as_a_whole() -> None:
    on_ranks(_other_optimizers, 2)


def _other_optimizers(rank: int) -> None:
    class Mine(torch.optim.SGD):
        """Not known to be element-wise."""

    for make, closure in itertools.chain(
        ((make, False) for make in _elementwise()),
        [(lambda p: Mine(p, lr=0.1), False), (lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3), True)],
    ):

        def story(wrap: Any, make: Any = make, closure: bool = closure) -> list[Tensor]:
            model, optimizer = wrap(module := make_mlp(), make(module.parameters()))

            def evaluate(step: int) -> Tensor:
                optimizer.zero_grad()
                loss = model(rows(rank, step, 5, 12)).square().mean()
                loss.backward()
                return loss

            for step in range(STEPS):
                if closure:
                    optimizer.step(lambda step=step: evaluate(step))
                else:
                    evaluate(step)
                    optimizer.step()
            return parameters_of(module, optimizer)

        assert_equal(story(with_ab), story(with_ddp))


def _elementwise() -> Iterator[Callable[[Any], torch.optim.Optimizer]]:
    from autobyte.torch.model.updates import ELEMENTWISE  # noqa: PLC0415

    for kind in ELEMENTWISE:
        yield lambda parameters, kind=kind: kind(parameters, lr=0.01)


def test_wrong_arguments_are_one_line() -> None:
    on_ranks(_wrong_arguments, 2)


def test_refuses_models_whose_gradients_another_wrapper_moves() -> None:
    on_ranks(_wrapped_otherwise, 2)


def _wrapped_otherwise(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    cut = make_mlp()
    cut[0].weight = nn.Parameter(distribute_tensor(cut[0].weight.detach(), mesh, [Shard(0)]))
    sharded = make_mlp()
    fully_shard(sharded, mesh=mesh)
    for module, message in (
        (DistributedDataParallel(make_mlp()), "wrapped by DistributedDataParallel, which moves gradients itself"),
        (nn.Sequential(sharded), "wrapped by FSDPModule, which moves gradients itself"),
        (cut, "parameter '0.weight' is a DTensor"),
    ):
        with pytest.raises(InputError) as caught:
            ab.DistributedOptimizer(sgd(module), module)
        assert message in str(caught.value)


def _wrong_arguments(rank: int) -> None:
    module = make_mlp()
    for keywords, message in (
        ({"engine": "alreduce"}, "unknown engine 'alreduce'; did you mean 'allreduce'?"),
        ({"wire_dtype": "int8"}, "unknown wire dtype 'int8'"),
        ({"policy": "bytesheduler"}, "unknown policy 'bytesheduler'; did you mean 'bytescheduler'?"),
        ({"accumulation": 0}, "accumulation must be at least 1, got 0"),
        ({"policy": "dear", "engine": "ps"}, "policy 'dear' halves all-reduces"),
        ({"config": "4MiB"}, "config must be a Config, got '4MiB'"),
        ({"timeout": 30}, "timeout must be a timedelta, got 30"),
        ({"tuner": "twin", "budget": 0}, "budget must be at least 1 window, got 0"),
        ({"drift": 0.0}, "drift must be positive, got 0.0"),
    ):
        with pytest.raises(InputError) as caught:
            ab.DistributedOptimizer(sgd(module), module, **keywords)
        assert message in str(caught.value)
    swapped: Any = module, sgd(module)
    with pytest.raises(InputError, match=r"^say DistributedOptimizer\(optimizer, model\), got Sequential, SGD$"):
        ab.DistributedOptimizer(*swapped)
    wrapped = ab.DistributedOptimizer(sgd(module), module, wire_dtype=torch.bfloat16)
    with pytest.raises(InputError, match="wrapped already"):
        ab.DistributedOptimizer(wrapped, module)
    wrapped.close()
