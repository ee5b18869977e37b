"""Where DDP's buckets stay, gradients go by PyTorch's own reducer: to the bit as with DDP, whatever a loop does."""

import copy
import gc
import logging
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, on_ranks
from stories import assert_equal, from_rank_0, make_mlp, parameters_of, rows, sgd, train
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.exchange.control import CommunicationError
from autobyte.exchange.tuning import audition
from autobyte.scheduler.policies.ddp import DEFAULT_BUCKETS
from autobyte.torch.groups import free_default_group

KIB = 1024
BUCKETS = Config(4 * KIB, 4 * KIB, "ddp")  # three of the small model
CHOSEN = Config(2048, 4096, knobs={"fusion": 1.0})


def handed_over(rank: int, model: nn.Module, **keywords: Any) -> ab.DistributedOptimizer:
    """A wrapped optimizer under `auto`, trained until DDP's buckets go by the reducer."""
    torch.set_num_threads(1)
    audition.shortlist = lambda job, **_: [BUCKETS]  # type: ignore[assignment]
    optimizer = ab.DistributedOptimizer(sgd(model), model, policy="auto", keep=None, **keywords)
    for step in range(400):
        if is_reduced(optimizer):
            return optimizer
        train(model, optimizer, rank, range(step, step + 1))
        time.sleep(0.002)  # a thread thinks meanwhile
    raise AssertionError("gradients were not handed over")


def is_reduced(optimizer: ab.DistributedOptimizer) -> bool:
    assert optimizer.training is not None
    return optimizer.training.exchange.reduction is not None


def twin_of(model: nn.Module, optimizer: ab.DistributedOptimizer, **keywords: Any) -> tuple[nn.Module, Any]:
    """DDP and its optimizer, with the same parameters, gradients' buckets and state."""
    twin = copy.deepcopy(model)
    theirs = sgd(twin)
    theirs.load_state_dict({key: copy.deepcopy(optimizer.state_dict()[key]) for key in ("state", "param_groups")})
    size = BUCKETS.partition_bytes / KIB**2
    return DistributedDataParallel(twin, bucket_cap_mb=size, **keywords), theirs


def told_twice(
    rank: int, tell: Callable[[nn.Module, Any], None], *, make: Any = make_mlp, tolerance: float = 0, **ddp: Any
) -> None:
    """The same parameters with gradients handed over, and with DDP."""
    model = make()
    optimizer = handed_over(rank, model)
    module, theirs = twin_of(model, optimizer, **ddp)
    tell(model, optimizer)
    tell(module, theirs)
    assert is_reduced(optimizer)
    for ours, other in zip(parameters_of(model, optimizer), parameters_of(module, theirs), strict=True):
        torch.testing.assert_close(ours, other, rtol=tolerance, atol=tolerance)
    optimizer.close()


@pytest.mark.parametrize("size", [2, 3])
def test_parameters_are_ddps(size: int) -> None:
    on_ranks(_plain, size)


def _plain(rank: int) -> None:
    told_twice(rank, lambda model, optimizer: train(model, optimizer, rank, range(500, 525)))


@pytest.mark.parametrize("idle", [False, True])
def test_steps_that_the_models_zero_grad_lets_go_of_are_given_up(idle: bool) -> None:
    on_ranks(_let_go, 2, idle)


def _let_go(rank: int, idle: bool) -> None:
    def tell(model: nn.Module, optimizer: Any) -> None:
        own = getattr(model, "module", model)
        for step in range(12):
            own.zero_grad()
            left_out = step % 3 == 1
            outputs = own[0](rows(rank, step, 5, 12)) if idle and left_out else model(rows(rank, step, 5, 12))
            outputs.square().mean().backward()
            if left_out:
                continue
            optimizer.step()

    told_twice(rank, tell)


def test_by_default_a_short_training_is_ddps_and_writes_no_file(tmp_path: Path) -> None:
    on_ranks(_by_default, 2, str(tmp_path))


def _by_default(rank: int, folder: str) -> None:
    os.chdir(folder)
    torch.set_num_threads(1)
    audition.shortlist = _refuse  # type: ignore[assignment]
    model, twin = make_mlp(), make_mlp()
    optimizer, module, theirs = ab.DistributedOptimizer(sgd(model), model), DistributedDataParallel(twin), sgd(twin)
    second = make_mlp()
    beside = ab.DistributedOptimizer(sgd(second), second)
    for step in range(30):
        train(model, optimizer, rank, range(step, step + 1))
        train(module, theirs, rank, range(step, step + 1))
        train(second, beside, rank, range(step, step + 1))
        time.sleep(0.002)  # a thread thinks meanwhile
    for each in (optimizer, beside):
        assert is_reduced(each)
        assert each.training is not None
        assert each.training.config == DEFAULT_BUCKETS
    assert [each._mode._search.audition.budget.share for each in (optimizer, beside)] == [0.01, 0.0]
    for ours in ((model, optimizer), (second, beside)):
        assert_equal(parameters_of(*ours), parameters_of(module, theirs))
    report = optimizer.report()
    assert report is not None
    assert report.failure == ""
    optimizer.close()
    beside.close()
    assert not [*Path(folder).iterdir()]


def _refuse(*_: object, **__: object) -> None:
    raise AssertionError("candidates are looked for")


def test_trials_by_default_leave_parameters_as_ddps() -> None:
    assert on_ranks(_tries, 2) == [True, True]


def _tries(rank: int) -> bool:
    torch.set_num_threads(1)
    tried = [BUCKETS, Config(2 * KIB, 4 * KIB, knobs={"fusion": 1}), Config(4 * KIB, 4 * KIB, "dear")]
    audition.shortlist = lambda job, **_: tried  # type: ignore[assignment]
    model, twin = make_mlp(), make_mlp()
    optimizer = ab.DistributedOptimizer(sgd(model), model, search_cost=1e3)
    module, theirs = DistributedDataParallel(twin), sgd(twin)
    used: dict[Config, None] = {}
    over = torch.zeros(1)
    for step in range(600):
        ours = gradients_in_step(model, optimizer, rank, step)
        assert_equal(ours, gradients_in_step(module, theirs, rank, step))
        time.sleep(0.002)
        assert optimizer.training is not None
        used.setdefault(optimizer.training.config)
        if step % 20 == 0:
            assert_equal(parameters_of(model, optimizer), parameters_of(module, theirs))
            over[0] = rank == 0 and optimizer._mode._search.audition.over
            dist.broadcast(over, 0)
            if over:
                break
    assert next(iter(used)) == DEFAULT_BUCKETS
    optimizer.close()
    return {*tried} <= {*used}


def gradients_in_step(model: nn.Module, optimizer: Any, rank: int, step: int, limit: float = 0.0) -> list[Tensor]:
    """What a loop finds in `.grad` before it takes the step; it clips by PyTorch's function if there is a limit."""
    optimizer.zero_grad()
    model(rows(rank, step, 5, 12)).square().mean().backward()
    if limit:
        nn.utils.clip_grad_norm_(model.parameters(), limit)
    found = [parameter.grad.clone() for parameter in model.parameters()]
    optimizer.step()
    return found


def test_averages_that_are_changed_in_a_trial_end_the_search() -> None:
    assert on_ranks(_changes_later, 2, timeout_s=60) == [(True, DEFAULT_BUCKETS)] * 2


def _changes_later(rank: int) -> tuple[bool, Config]:
    torch.set_num_threads(1)
    audition.shortlist = lambda job, **_: [Config(2 * KIB, 4 * KIB, knobs={"fusion": 1})]  # type: ignore[assignment]
    model, twin = make_mlp(), make_mlp()
    optimizer = ab.DistributedOptimizer(sgd(model), model, search_cost=1e3)
    module, theirs = DistributedDataParallel(twin), sgd(twin)
    trial, limit = 1000, 0.0
    for step in range(600):
        ours = gradients_in_step(model, optimizer, rank, step, limit)
        assert_equal(ours, gradients_in_step(module, theirs, rank, step, limit))
        time.sleep(0.002)
        assert optimizer.training is not None
        if trial == 1000 and optimizer.training.config != DEFAULT_BUCKETS:
            trial, limit = step, 1e-3  # from the next step on, which is another one of the trial
        if step > trial + 60:
            break
    kept, config = is_reduced(optimizer), optimizer.training.config
    assert_equal(parameters_of(model, optimizer), parameters_of(module, theirs))
    optimizer.close()
    return kept, config


def test_no_hook_is_left_but_one_on_the_model() -> None:
    on_ranks(_hooks, 2)


def _hooks(rank: int) -> None:
    model = make_mlp()
    optimizer = handed_over(rank, model)
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    assert not any(part._forward_pre_hooks or part._forward_hooks for part in model.children())
    assert len(model._forward_hooks) == 1
    assert not model._forward_pre_hooks
    optimizer.close()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    if rank == 0:  # alone: nothing waits for another rank
        model(rows(0, 0, 5, 12)).sum().backward()
    assert not model._forward_hooks
    assert_equal(before, list(model.parameters()))


@pytest.mark.parametrize("closes", [True, False])
def test_the_reducer_does_not_keep_the_default_group(closes: bool) -> None:
    """What holds it last destroys it, and may wait then for a thread that waits for it."""
    assert on_ranks(_lets_go, 2, closes) == [None, None]


def _lets_go(rank: int, closes: bool) -> object:
    optimizer = handed_over(rank, make_mlp())
    if closes:
        optimizer.close()
    free_default_group()
    group = ref(dist.group.WORLD)
    dist.barrier()
    dist.destroy_process_group()
    gc.collect()
    assert closes or is_reduced(optimizer)
    return group()


def test_what_loops_do() -> None:
    on_ranks(_loops, 2)


def _loops(rank: int) -> None:
    def accumulating(model: nn.Module, optimizer: Any) -> None:
        muted = model.no_sync if isinstance(model, DistributedDataParallel) else optimizer.no_sync
        for step in range(500, 506):
            optimizer.zero_grad()
            for part in range(3):
                with muted() if part < 2 else nullcontext():
                    model(rows(rank, 10 * step + part, 5, 12)).square().mean().backward()
            optimizer.step()

    def clipping(model: nn.Module, optimizer: Any) -> None:
        for step in range(500, 506):
            optimizer.zero_grad(set_to_none=False)
            model(rows(rank, step, 5, 12)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # averages are in `.grad` already
            optimizer.step()

    def scaling(model: nn.Module, optimizer: Any) -> None:
        scaler = GradScaler("cpu", init_scale=8.0, growth_interval=2)
        for step in range(500, 506):
            optimizer.zero_grad()
            loss = model(rows(rank, step, 5, 12)).square().mean()
            scaler.scale(loss * float("inf") if rank == 1 and step == 502 else loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()

    def deriving(model: nn.Module, optimizer: Any) -> None:
        for step in range(500, 506):
            optimizer.zero_grad()
            inputs = rows(rank, step, 5, 12).requires_grad_()
            outputs = model(inputs)
            (slope,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
            (outputs.square().mean() + slope.square().mean()).backward()
            optimizer.step()

    def twice(model: nn.Module, optimizer: Any) -> None:
        for step in range(500, 506):
            optimizer.zero_grad()
            both = model(rows(rank, step, 5, 12)), model(rows(rank, 10 * step, 5, 12))
            (both[0] - both[1]).square().mean().backward()
            optimizer.step()

    def deriving_before(model: nn.Module, optimizer: Any) -> None:
        """`autograd.grad` adds to no gradient: what follows under `no_sync()` sends nothing."""
        muted = model.no_sync if isinstance(model, DistributedDataParallel) else optimizer.no_sync
        for step in range(500, 506):
            optimizer.zero_grad()
            inputs = rows(rank, step, 5, 12).requires_grad_()
            with muted() if isinstance(model, DistributedDataParallel) else nullcontext():  # DDP would wait for hooks
                outputs = model(inputs).sum()
            wanted = inputs if step % 2 else list(model.parameters())
            torch.autograd.grad(outputs, wanted)
            with muted():
                model(inputs.detach() + 1).square().mean().backward()
            model(inputs.detach()).square().mean().backward()
            optimizer.step()

    for tell in (accumulating, clipping, scaling, deriving, deriving_before, twice):
        told_twice(rank, tell)


def test_a_part_and_the_model_are_compiled_meanwhile() -> None:
    on_ranks(_compiled, 2, timeout_s=120)


def _compiled(rank: int) -> None:
    def tell(model: Any, optimizer: Any) -> None:
        ours = not isinstance(model, DistributedDataParallel)
        train(model, optimizer, rank, range(500, 503))
        if ours:
            model[2].compile(backend="eager")
        train(model, optimizer, rank, range(503, 509))
        compiled = torch.compile(model, backend="eager") if ours else model
        for step in range(509, 517):
            train(compiled if step % 3 else model, optimizer, rank, range(step, step + 1))

    told_twice(rank, tell)


def test_our_own_clipping_is_torchs() -> None:
    on_ranks(_own_clipping, 2)


def _own_clipping(rank: int) -> None:
    model = make_mlp()
    optimizer = handed_over(rank, model)
    module, theirs = twin_of(model, optimizer)

    def step(model: nn.Module, optimizer: Any, number: int, clip: Callable[[], Tensor]) -> Tensor:
        optimizer.zero_grad()
        model(rows(rank, number, 5, 12)).square().mean().backward()
        norm = clip()
        optimizer.step()
        return norm

    reduced = 0
    for number in range(500, 560):  # the first time, all ranks make a plan for it, and it takes a window to return
        reduced += is_reduced(optimizer)
        ours = step(model, optimizer, number, lambda: optimizer.clip_grad_norm_(0.01))
        norm = step(module, theirs, number, lambda: nn.utils.clip_grad_norm_(module.parameters(), 0.01))
        torch.testing.assert_close(ours, norm)
        time.sleep(0.002)
    assert reduced > 10
    for one, other in zip(parameters_of(model, optimizer), parameters_of(module, theirs), strict=True):
        torch.testing.assert_close(one, other)
    optimizer.close()


class Branches(nn.Module):
    """Two ways, of which a rank may take one, and a layer that nobody calls after a while."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ways = nn.ModuleList(nn.Linear(12, 12) for _ in range(2))
        self.last = nn.Linear(12, 4)
        self.idle = nn.Linear(4, 4)
        self.taken: int | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if self.taken is None:
            return self.idle(self.last(self.ways[1](self.ways[0](inputs))))
        return self.last(self.ways[self.taken](inputs))


@pytest.mark.parametrize("size", [2, 3])
def test_gradients_that_ranks_do_not_have(size: int) -> None:
    on_ranks(_missing, size)


def _missing(rank: int) -> None:
    def tell(model: nn.Module, optimizer: Any) -> None:
        branches = model.module if isinstance(model, DistributedDataParallel) else model
        for step in range(500, 512):
            branches.taken = (step + rank) % 2 if step % 3 else 0
            optimizer.zero_grad()
            model(rows(rank, step, 5, 12)).square().mean().backward()
            optimizer.step()
        assert branches.idle.weight.grad is None

    # on three ranks DDP's sums are taken in another order: it keeps its first buckets if it looks for unused ones
    tolerance = 0 if dist.get_world_size() == 2 else 1e-6
    told_twice(rank, tell, make=Branches, tolerance=tolerance, find_unused_parameters=True)


class Experts(nn.Module):
    """More tensors without a gradient than PyTorch's reducer names, once experts are idle."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(12, 5)
        self.experts = nn.ModuleList(nn.Linear(12, 5) for _ in range(80))
        self.idle = False

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.head(inputs)
        return result if self.idle else result + sum(expert(inputs) for expert in self.experts)


def test_more_gradients_are_missing_than_the_reducer_names() -> None:
    on_ranks(_idle, 2)


def _idle(rank: int) -> None:
    def tell(model: nn.Module, optimizer: Any) -> None:
        experts = model.module if isinstance(model, DistributedDataParallel) else model
        for step in range(500, 506):
            experts.idle = step % 3 != 2
            optimizer.zero_grad()
            model(rows(rank, step, 5, 12)).square().mean().backward()
            optimizer.step()

    told_twice(rank, tell, make=Experts, find_unused_parameters=True)


def test_a_layer_that_is_frozen_later() -> None:
    on_ranks(_frozen, 2)


def _frozen(rank: int) -> None:
    model = make_mlp()
    optimizer = handed_over(rank, model)
    model[0].requires_grad_(False)
    before = [each.clone() for each in model.parameters()]
    train(model, optimizer, rank, range(500, 510))
    now = parameters_of(model, optimizer)
    assert torch.equal(now[0], before[0].data)
    assert not torch.equal(now[2], before[2].data)
    assert model[0].weight.grad is None
    assert_equal(now, [from_rank_0(each) for each in now])
    optimizer.close()


def test_passes_of_different_parts_are_one_step_and_others_are_refused() -> None:
    on_ranks(_passes, 2)


def _passes(rank: int) -> None:
    model = make_mlp()
    optimizer = handed_over(rank, model)
    optimizer.zero_grad()
    half = model[:3](rows(rank, 1, 5, 12)).detach()
    model(rows(rank, 0, 5, 12)).square().mean().backward()
    with pytest.raises(InputError, match=r"2 backward passes in a step of 1: say accumulation="):
        model(rows(rank, 1, 5, 12)).square().mean().backward()
    assert half.shape == (5, 30)


def test_passes_of_a_part_after_averages_are_averaged_or_refused() -> None:
    on_ranks(_parts, 2)


def _parts(rank: int) -> None:
    model = make_mlp()
    optimizer = handed_over(rank, model)
    for bits in (0, 1):  # a pass fills buckets, or none
        part = (model[-1], model[0])[bits]
        optimizer.zero_grad()
        model(rows(rank, 0, 5, 12)).square().mean().backward()
        optimizer.synchronize()
        inputs = rows(rank, 1, 5, part.in_features)
        expected = [each.grad.clone() for each in model.parameters() if each.grad is not None]
        averaged = copy.deepcopy(part)
        averaged.zero_grad()
        averaged(inputs).square().mean().backward()
        for own, extra in zip(part.parameters(), averaged.parameters(), strict=True):
            assert extra.grad is not None
            dist.all_reduce(extra.grad, op=dist.ReduceOp.SUM)
            place = next(place for place, each in enumerate(model.parameters()) if each is own)
            expected[place] += extra.grad / 2
        part(inputs).square().mean().backward()
        optimizer.synchronize()
        for own, average in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(own.grad, average)
        optimizer.step()
        assert not torch.nn.modules.module._global_forward_hooks
    optimizer.zero_grad()
    model(rows(rank, 0, 5, 12)).square().mean().backward()
    with pytest.raises(InputError, match=r"2 backward passes in a step of 1"):
        model[0](rows(rank, 1, 5, 12)).square().mean().backward()
        optimizer.step()


def test_inputs_that_end_early() -> None:
    on_ranks(_uneven, 3)


def _uneven(rank: int) -> None:
    model = make_mlp()
    optimizer = handed_over(rank, model)
    with Join([optimizer]):
        train(model, optimizer, rank, range(500, 506 + 5 * rank))
    now = parameters_of(model, optimizer)
    assert_equal(now, [from_rank_0(each) for each in now])
    train(model, optimizer, rank, range(600, 610))
    now = parameters_of(model, optimizer)
    assert_equal(now, [from_rank_0(each) for each in now])
    optimizer.close()


def test_a_step_that_one_rank_gives_up_is_noticed() -> None:
    for outcome in Ranks(_gives_up, 2).outcomes():
        assert "CommunicationError" in str(outcome)
        assert "1 of 2 ranks left out a step" in str(outcome)


def _gives_up(rank: int) -> None:
    model = make_mlp()
    optimizer = handed_over(rank, model)
    for step in range(500, 510):
        optimizer.zero_grad()
        outputs = model(rows(rank, step, 5, 12))
        if rank == 1 and step == 503:  # a pass that ends half-way: no bucket has left
            hook = model[2].weight.register_hook(_fail)
            with pytest.raises(KeyError):
                outputs.square().mean().backward()
            hook.remove()
            continue
        outputs.square().mean().backward()
        optimizer.step()


def _fail(_gradient: Tensor) -> None:
    raise KeyError("in the middle of a pass")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_peer_is_named_in_time(number: signal.Signals) -> None:
    began_s = time.monotonic()
    ranks = Ranks(_lost, 3, int(number), timeout_s=60)
    try:
        for rank in (0, 2):
            ranks.processes[rank].join(50)
        for rank in (0, 2):
            what, steps, parameters_are = ranks._outcome(rank)
            assert re.match(rf"rank {rank}, step \d+: ", what), what
            assert "rank 1" in what, what
            assert steps == int(re.findall(r"step (\d+)", what)[0]), what
            assert parameters_are == "as they were"
    finally:
        ranks.kill()
    assert time.monotonic() - began_s < 50


def _lost(rank: int, number: int) -> tuple[str, int, str]:
    model = make_mlp()
    optimizer = handed_over(rank, model, timeout=timedelta(seconds=6))
    for step in count(500):
        before = [each.detach().clone() for each in model.parameters()]
        if rank == 1 and step == 505:
            os.kill(os.getpid(), number)
        try:
            train(model, optimizer, rank, range(step, step + 1))
        except CommunicationError as error:
            steps = optimizer.recover()
            same = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
            return str(error), steps, "as they were" if same else "changed"
    raise AssertionError


def test_it_looks_again_when_steps_take_longer_and_takes_gradients_back() -> None:
    for lines, back in on_ranks(_slower, 2, timeout_s=90):
        assert back
        if lines is not None:
            assert any("search begun again: under ddp" in line for line in lines), lines
            assert sum("PyTorch's own reducer" in line for line in lines) == 2, lines


def _slower(rank: int) -> tuple[list[str] | None, bool]:
    lines: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger("autobyte").addHandler(Listening())
    logging.getLogger("autobyte").setLevel(logging.INFO)
    audition.HOLD, audition.KNOWN = 2, 3  # type: ignore[misc]
    model = make_mlp()
    optimizer = handed_over(rank, model)
    module, theirs = twin_of(model, optimizer)
    was: list[bool] = []
    for step in range(500, 900):
        train(model, optimizer, rank, range(step, step + 1))
        train(module, theirs, rank, range(step, step + 1))
        time.sleep(0.003 if step < 560 else 0.03)
        was.append(is_reduced(optimizer))
        if was[-1] and False in was:
            break
    for one, other in zip(parameters_of(model, optimizer), parameters_of(module, theirs), strict=True):
        torch.testing.assert_close(one, other)
    optimizer.close()
    return lines if rank == 0 else None, was[-1] and False in was


def test_another_config_and_a_checkpoint_take_gradients_back() -> None:
    on_ranks(_taken_back, 2)


def _taken_back(rank: int) -> None:
    model = make_mlp()
    optimizer = handed_over(rank, model)
    module, theirs = twin_of(model, optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    assert state["autobyte"]["steps"] == optimizer.steps
    optimizer.reconfigure(CHOSEN)
    assert not is_reduced(optimizer)
    for each, its in ((model, optimizer), (module, theirs)):
        train(each, its, rank, range(500, 503))
    assert_equal(parameters_of(model, optimizer), parameters_of(module, theirs))
    optimizer.load_state_dict(state)
    train(model, optimizer, rank, range(600, 630))
    now = parameters_of(model, optimizer)
    assert_equal(now, [from_rank_0(each) for each in now])
    optimizer.close()
    _resumed(rank, model)


def _resumed(rank: int, model: nn.Module) -> None:
    """By default, the user's own config stays when training goes on from a checkpoint, too."""
    optimizer = ab.DistributedOptimizer(sgd(model), model)
    optimizer.reconfigure(CHOSEN)
    train(model, optimizer, rank, range(5))
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.close()
    optimizer = ab.DistributedOptimizer(sgd(model), model)
    optimizer.load_state_dict(state)
    train(model, optimizer, rank, range(5, 9))  # beyond the first window
    time.sleep(0.2)  # a thread thinks meanwhile
    train(model, optimizer, rank, range(9, 30))
    assert optimizer.training is not None
    assert optimizer.training.config == CHOSEN
    optimizer.close()


def test_a_loop_that_changes_averages_keeps_ddps_buckets() -> None:
    """It may while gradients go by the reducer, and could not while blocks travel: nothing else is tried."""
    assert on_ranks(_clips_later, 2, timeout_s=60) == [(True, True)] * 2


def _clips_later(rank: int) -> tuple[bool, bool]:
    model = make_mlp()
    optimizer = handed_over(rank, model)
    twin, theirs = twin_of(model, optimizer)
    for step in range(30):
        for each, update in ((model, optimizer), (twin, theirs)):
            update.zero_grad()
            each(rows(rank, step, 5, 12)).square().mean().backward()
            nn.utils.clip_grad_norm_(each.parameters(), 1e-3)
            update.step()
    assert_equal(parameters_of(model, optimizer), parameters_of(twin, theirs))
    online = optimizer._mode._online
    audition_stays = online.adviser is None or online.adviser._search.audition.stays
    kept = is_reduced(optimizer)
    optimizer.close()
    return kept, audition_stays


def test_changing_gradients_that_wait_for_a_missing_one_is_refused() -> None:
    """There are no averages yet: who changes gradients reads them first."""
    for words in on_ranks(_clips_too_early, 2, timeout_s=60):
        assert "was read between backward() and step(), and is no average" in words
        assert "'last.weight' has had no backward pass in this step" in words


class Sometimes(nn.Module):
    """The last layer is left out where it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.skips = False

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.second(self.first(inputs))
        return hidden if self.skips else self.last(hidden)


def _clips_too_early(rank: int) -> str:
    torch.manual_seed(0)
    model = Sometimes()
    optimizer = ab.DistributedOptimizer(sgd(model), model)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 8)).square().mean().backward()
        if model.skips:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()

    for _ in range(400):
        if is_reduced(optimizer):
            break
        step()
    assert is_reduced(optimizer)
    model.skips = True
    with pytest.raises(InputError) as refused:
        step()
    return str(refused.value)


def test_buckets_that_the_user_chose_and_steps_that_are_compared_first_go_by_the_reducer() -> None:
    assert on_ranks(_chosen, 2, timeout_s=60) == [(True, "fusion")] * 2


def _chosen(rank: int) -> tuple[bool, str]:
    model = make_mlp()
    optimizer = ab.DistributedOptimizer(sgd(model), model, verify_steps=12)
    with pytest.raises(InputError) as refused:
        optimizer.reconfigure(Config(1 << 20, 1 << 20, "ddp", knobs={"fusion": 1}))
    train(model, optimizer, rank, range(12))
    assert not is_reduced(optimizer)
    optimizer.reconfigure(DEFAULT_BUCKETS)
    for step in range(12, 200):
        train(model, optimizer, rank, range(step, step + 1))
        time.sleep(0.002)
        if is_reduced(optimizer):
            break
    reduced = is_reduced(optimizer)
    optimizer.close()
    return reduced, "fusion" if "fusion" in str(refused.value) else str(refused.value)
