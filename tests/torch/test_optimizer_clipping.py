"""Clipping of gradients, beside DDP and torch's own."""

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
from ranks import on_ranks
from stories import SMALL, assert_equal, make_mlp, parameters_of, rows, with_ab, with_ddp
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join

import autobyte.torch as ab
from autobyte.errors import InputError

STEPS = 8
NORMS = [(2.0, 0.05), (math.inf, 0.01), (1.0, 0.5), (2.0, 1e6)]
ENGINES = ("allreduce", "ps", "ordered")


def clip_norm(model: nn.Module, optimizer: Any, limit: float, kind: float, **keywords: Any) -> Tensor:
    if isinstance(optimizer, ab.DistributedOptimizer):
        return optimizer.clip_grad_norm_(limit, kind, **keywords)
    return nn.utils.clip_grad_norm_(model.parameters(), limit, kind, **keywords)


def clip_value(model: nn.Module, optimizer: Any, limit: float) -> None:
    if isinstance(optimizer, ab.DistributedOptimizer):
        optimizer.clip_grad_value_(limit)
    else:
        nn.utils.clip_grad_value_(model.parameters(), limit)


def story(
    wrap: Any, rank: int, limit: float, kind: float, *, kind_of: Any = torch.optim.AdamW, **keywords: Any
) -> tuple[list[Tensor], list[float]]:
    """Parameters after some steps, and the norms on the way."""
    module = make_mlp()
    model, optimizer = wrap(module, kind_of(module.parameters(), lr=0.01), **keywords)
    norms = []
    for step in range(STEPS):
        optimizer.zero_grad()
        (10 * model(rows(rank, step, 5, 12)).square().mean()).backward()
        norms.append(float(clip_norm(module, optimizer, limit, kind)))
        optimizer.step()
    if isinstance(optimizer, ab.DistributedOptimizer):
        parameters = parameters_of(module, optimizer)
        assert optimizer.training.exchange.halved, "nothing crosses the step"
        optimizer.close()
    else:
        parameters = parameters_of(module, optimizer)
    return parameters, norms


def close_to(ours: tuple[list[Tensor], list[float]], theirs: tuple[list[Tensor], list[float]]) -> None:
    """Equal within the rounding of a sum that is added up in another order."""
    assert ours[1] == pytest.approx(theirs[1], rel=1e-5)
    for one, other in zip(ours[0], theirs[0], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("engine", ENGINES)
def test_parameters_and_norms_are_those_of_ddp(engine: str, size: int) -> None:
    on_ranks(_like_ddp, size, engine)


def _like_ddp(rank: int, engine: str) -> None:
    for kind, limit in NORMS:
        close_to(story(with_ab, rank, limit, kind, engine=engine), story(with_ddp, rank, limit, kind))


def test_parameters_are_those_of_ddp_bit_for_bit_where_nothing_is_clipped() -> None:
    on_ranks(_nothing_clipped, 2)


def _nothing_clipped(rank: int) -> None:
    assert_equal(story(with_ab, rank, 1e9, 2.0)[0], story(with_ddp, rank, 1e9, 2.0)[0])


@pytest.mark.parametrize("size", [1, 2])
def test_parameters_are_those_of_ddp_with_servers_that_do_not_train(size: int) -> None:
    on_ranks(_served, 2 + size)


def _served(rank: int) -> None:
    workers = torch.distributed.new_group([0, 1])
    if rank > 1:
        for _ in NORMS:
            ab.serve(list(range(2, torch.distributed.get_world_size())))
        return
    served = {"engine": "ps", "servers": list(range(2, torch.distributed.get_world_size())), "process_group": workers}
    for kind, limit in NORMS:
        theirs = story(with_ddp, rank, limit, kind, process_group=workers)
        close_to(story(with_ab, rank, limit, kind, **served), theirs)


@pytest.mark.parametrize("engine", ENGINES)
def test_averages_travel_beside_the_next_forward_pass(engine: str) -> None:
    on_ranks(_cross, 2, engine)


def _cross(rank: int, engine: str) -> None:
    module = make_mlp()
    _, optimizer = with_ab(module, torch.optim.SGD(module.parameters(), lr=0.1), engine=engine)
    for step in range(4):
        optimizer.zero_grad()
        module(rows(rank, step, 5, 12)).square().mean().backward()
        optimizer.clip_grad_norm_(0.1)
        optimizer.step()
        due = optimizer._mode._updates._due
        assert bool(due) == (step > 0), f"step {step}: layers whose update is due: {due}"
    optimizer.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_values_are_clipped_as_torch_does(engine: str) -> None:
    on_ranks(_values, 2, engine)


def _values(rank: int, engine: str) -> None:
    def told(wrap: Any, **keywords: Any) -> list[Tensor]:
        module = make_mlp()
        model, optimizer = wrap(module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), **keywords)
        for step in range(STEPS):
            optimizer.zero_grad()
            model(rows(rank, step, 5, 12)).square().mean().backward()
            clip_value(module, optimizer, 0.004)
            if step % 2:  # torch would clip the norm of what is clipped already
                clip_norm(module, optimizer, 0.02, 2.0)
            optimizer.step()
        return parameters_of(module, optimizer)

    close_to((told(with_ab, engine=engine), []), (told(with_ddp), []))


@pytest.mark.parametrize("engine", ENGINES)
def test_ways_of_training_that_clip_are_as_with_ddp(engine: str) -> None:
    on_ranks(_ways, 2, engine)


def _ways(rank: int, engine: str) -> None:
    """Accumulation, steps that are given up, gradients that are looked at, and a model of which a part is unused."""

    def told(wrap: Any, way: str) -> list[Tensor]:
        module = make_mlp()
        keywords: dict[str, Any] = {"engine": engine} if wrap is with_ab else {}
        if way == "accumulation" and wrap is with_ab:
            keywords["accumulation"] = 3
        if way == "fp16" and wrap is with_ab:
            keywords["wire_dtype"] = "fp16"
        if way == "no crossing" and wrap is with_ab:
            keywords["cross_step"] = False
        model, optimizer = wrap(module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), **keywords)
        if way == "fp16" and wrap is with_ddp:
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        for step in range(STEPS):
            optimizer.zero_grad()
            for part in range(3 if way == "accumulation" else 1):
                model(rows(rank, 10 * step + part, 5, 12)).square().mean().backward()
            if way == "sometimes" and step % 3 == 2:
                optimizer.step()
                continue
            clip_norm(module, optimizer, 0.05, 2.0 if way != "other norms" or step % 2 else 1.0)
            if way == "given up" and step == 4:
                continue
            if way == "looked at" and wrap is with_ab:
                optimizer.synchronize()
            if way == "looked at":
                assert sum(float(p.grad.square().sum()) for p in module.parameters()) ** 0.5 < 0.0501
            if way == "twice":
                clip_norm(module, optimizer, 0.02, 2.0)
            optimizer.step()
            if way == "read":
                assert all(bool(p.isfinite().all()) for p in module.parameters())
        return parameters_of(module, optimizer)

    ways = ("accumulation", "sometimes", "other norms", "given up", "looked at", "twice", "read", "no crossing")
    for way in ways:
        close_to((told(with_ab, way), []), (told(with_ddp, way), []))
    ours, theirs = told(with_ab, "fp16"), told(with_ddp, "fp16")
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_norms_that_are_not_finite_are_as_with_torch(engine: str) -> None:
    on_ranks(_not_finite, 2, engine)


def _not_finite(rank: int, engine: str) -> None:
    for bad in (math.inf, math.nan):

        def told(wrap: Any, bad: float = bad) -> list[Any]:
            module = make_mlp()
            model, optimizer = wrap(module, torch.optim.SGD(module.parameters(), lr=0.1))
            outcomes: list[Any] = []
            for step in range(6):
                optimizer.zero_grad()
                scale = bad if step == 3 and rank == 1 else 1.0
                (scale * model(rows(rank, step, 5, 12)).square().mean()).backward()
                try:
                    norm = clip_norm(module, optimizer, 0.1, 2.0, error_if_nonfinite=True)
                except RuntimeError as error:
                    outcomes.append(str(error))
                    continue
                outcomes.append(pytest.approx(float(norm), rel=1e-5))
                optimizer.step()
            optimizer.zero_grad()
            (bad * model(rows(rank, 9, 5, 12)).square().mean()).backward()
            outcomes.append(str(float(clip_norm(module, optimizer, 0.1, 2.0))))
            optimizer.step()
            outcomes.append([bool(tensor.isnan().all()) for tensor in parameters_of(module, optimizer)])
            return outcomes

        ours, theirs = told(partial(with_ab, engine=engine)), told(with_ddp)
        assert [str(each) for each in ours[3:4]] == [str(each) for each in theirs[3:4]]
        assert ours[-2:] == theirs[-2:]
        assert [each.expected for each in ours[:3]] == theirs[:3]


@pytest.mark.parametrize(("engine", "first"), [("allreduce", 0), ("ps", 0), ("allreduce", 7)])
def test_ranks_whose_inputs_have_ended_take_part(engine: str, first: int) -> None:
    """Where clipping begins when some of them have ended, halves begin when all are back."""
    on_ranks(_joined, 3, engine, first)


def _joined(rank: int, engine: str, first: int) -> None:
    module = make_mlp()
    _, optimizer = with_ab(module, torch.optim.SGD(module.parameters(), lr=0.1), engine=engine)
    for epoch in range(2 if first else 1):
        with Join([optimizer]):
            for step in range(6 + 2 * rank):
                optimizer.zero_grad()
                module(rows(rank, step, 5, 12)).square().mean().backward()
                if step >= first or epoch:
                    optimizer.clip_grad_norm_(0.05, 1.0 if step == 8 else 2.0)
                optimizer.step()
        assert optimizer.training.exchange.halved == (not first or epoch == 1)
    flat = torch.cat([p.detach().flatten() for p in module.parameters()])
    rows_ = [torch.empty_like(flat) for _ in range(3)]
    torch.distributed.all_gather(rows_, flat)
    assert all(torch.equal(rows_[0], row) for row in rows_)
    assert optimizer.training.exchange.halved
    optimizer.close()


def test_what_a_closure_clips_travels_once() -> None:
    on_ranks(_closure, 2)


def _closure(rank: int) -> None:
    module = make_mlp()
    _, optimizer = with_ab(module, torch.optim.LBFGS(module.parameters(), max_iter=3))
    evaluated = 0

    def evaluate() -> Tensor:
        nonlocal evaluated
        evaluated += 1
        optimizer.zero_grad()
        loss = module(rows(rank, 0, 5, 12)).square().mean()
        loss.backward()
        optimizer.clip_grad_norm_(0.05)
        return loss

    optimizer.step(evaluate)
    assert optimizer.training.exchange.steps == evaluated > 1
    optimizer.close()


def test_another_norm_is_measured_when_no_rank_is_without_inputs() -> None:
    on_ranks(_joined_and_changed, 2)


def _joined_and_changed(rank: int) -> None:
    """A rank without inputs measures the norm that it knows: it counts to no other one."""
    module = make_mlp()
    _, optimizer = with_ab(module, torch.optim.SGD(module.parameters(), lr=0.1))
    with Join([optimizer]):
        for step in range(4 + 4 * rank):
            optimizer.zero_grad()
            module(rows(rank, step, 5, 12)).square().mean().backward()
            norm = optimizer.clip_grad_norm_(1e6, 2.0 if step < 5 else math.inf)
            optimizer.synchronize()
            norms = [torch.linalg.vector_norm(p.grad, math.inf if step >= 5 else 2.0) for p in module.parameters()]
            assert norm == pytest.approx(
                float(torch.linalg.vector_norm(torch.stack(norms), math.inf if step >= 5 else 2.0))
            )
            optimizer.step()
    optimizer.close()


@pytest.mark.parametrize(("late", "engine"), [(0, "allreduce"), (3, "allreduce"), (3, "ps")])
def test_ranks_must_clip_alike(late: int, engine: str) -> None:
    said = on_ranks(_some_clip, 2, late, engine)
    assert "1 of 2 ranks called clip_grad_norm_(), the others did not" in said[0]
    assert said[1].startswith("rank 1, step "), "it hears that rank 0 has ended, or finds out itself"


def _some_clip(rank: int, late: int, engine: str) -> str:
    module = make_mlp()
    _, optimizer = with_ab(module, torch.optim.SGD(module.parameters(), lr=0.1), engine=engine)
    try:
        for step in range(8):
            optimizer.zero_grad()
            module(rows(rank, step, 5, 12)).square().mean().backward()
            if rank == 0 or step < late:
                optimizer.clip_grad_norm_(0.05)
            optimizer.step()
    except ab.CommunicationError as error:
        return str(error)
    return "nothing"


def test_ranks_must_clip_to_the_same_norm() -> None:
    said = on_ranks(_other_limits, 2)
    assert all("ranks differ in what clip_grad_norm_() is called with" in words for words in said), said


def _other_limits(rank: int) -> str:
    module = make_mlp()
    _, optimizer = with_ab(module, torch.optim.SGD(module.parameters(), lr=0.1))
    try:
        for step in range(8):
            optimizer.zero_grad()
            module(rows(rank, step, 5, 12)).square().mean().backward()
            optimizer.clip_grad_norm_(0.05 if step < 3 else 0.05 + rank)
            optimizer.step()
    except ab.CommunicationError as error:
        return str(error)
    return "nothing"


def test_what_cannot_be_right_is_refused() -> None:
    on_ranks(_refused, 2)


def _refused(rank: int) -> None:
    module = make_mlp()
    _, optimizer = with_ab(module, torch.optim.SGD(module.parameters(), lr=0.1))
    for arguments in ((math.nan,), (1.0, 0.0), (1.0, -2.0)):
        with pytest.raises(InputError, match=r"must be"):
            optimizer.clip_grad_norm_(*arguments)
    with pytest.raises(InputError, match="clip_value must not be negative"):
        optimizer.clip_grad_value_(-1.0)
    for step in range(3):
        optimizer.zero_grad()
        module(rows(rank, step, 5, 12)).square().mean().backward()
        optimizer.clip_grad_norm_(0.05)
        optimizer.step()
    optimizer.zero_grad()
    module(rows(rank, 3, 5, 12)).square().mean().backward()
    optimizer.clip_grad_norm_(0.05)
    with pytest.raises(InputError, match=r"call step\(\) before it, or zero_grad\(\)"):
        module(rows(rank, 4, 5, 12)).square().mean().backward()


def test_torchs_own_clipping_of_gradients_in_transit_is_refused() -> None:
    on_ranks(_torchs_own, 2)


def _torchs_own(rank: int) -> None:
    module = make_mlp()
    _, optimizer = with_ab(module, torch.optim.SGD(module.parameters(), lr=0.1))
    module(rows(rank, 0, 5, 12)).square().mean().backward()
    nn.utils.clip_grad_norm_(module.parameters(), 0.01)
    with pytest.raises(InputError, match=r"call this optimizer's clip_grad_norm_\(\)"):
        optimizer.step()


def test_a_single_process_clips_by_itself() -> None:
    module, other = make_mlp(), make_mlp()
    optimizer = ab.DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=0.1), module)
    for each in (module, other):
        each(rows(0, 0, 5, 12)).square().mean().backward()
    assert torch.equal(optimizer.clip_grad_norm_(0.01), nn.utils.clip_grad_norm_(other.parameters(), 0.01))
    optimizer.clip_grad_value_(1e-4)
    nn.utils.clip_grad_value_(other.parameters(), 1e-4)
    assert_equal([p.grad for p in module.parameters()], [p.grad for p in other.parameters()])


@pytest.mark.parametrize(
    "chooser",
    [
        {"tuner": "random", "budget": 3, "config": SMALL},
        {"tuner": "random", "budget": 3, "config": SMALL, "engine": "ps"},
        {"policy": "auto"},
    ],
)
def test_configs_are_searched_for_while_gradients_are_clipped(chooser: dict[str, Any]) -> None:
    on_ranks(_searched, 2, chooser)


def _searched(rank: int, chooser: dict[str, Any]) -> None:
    def told(wrap: Any) -> list[Tensor]:
        module = make_mlp()
        optimizer: Any = torch.optim.SGD(module.parameters(), lr=0.01)
        if wrap is with_ab:
            model, optimizer = module, ab.DistributedOptimizer(optimizer, module, keep=None, **chooser)
        else:
            model, optimizer = wrap(module, optimizer)
        for step in range(250):
            optimizer.zero_grad()
            model(rows(rank, step, 5, 12)).square().mean().backward()
            clip_norm(module, optimizer, 0.05, 2.0)
            optimizer.step()
        if isinstance(optimizer, ab.DistributedOptimizer):
            assert optimizer.training.job.clips
            report = optimizer.report()
            assert rank or (report is not None and report.trials), report
        return parameters_of(module, optimizer)

    close_to((told(with_ab), []), (told(with_ddp), []))


def test_a_checkpoint_goes_on_clipping() -> None:
    on_ranks(_checkpoint, 2)


def _checkpoint(rank: int) -> None:
    def told(wrap: Any, *, again: bool) -> list[Tensor]:
        module = make_mlp()
        model, optimizer = wrap(module, torch.optim.AdamW(module.parameters(), lr=0.01))
        for step in range(8):
            if step == 4 and again:
                state = copy.deepcopy((module.state_dict(), optimizer.state_dict()))
                if isinstance(optimizer, ab.DistributedOptimizer):
                    optimizer.close()
                module = make_mlp(seed=5)
                model, optimizer = wrap(module, torch.optim.AdamW(module.parameters(), lr=0.01))
                module.load_state_dict(state[0])
                optimizer.load_state_dict(state[1])
            optimizer.zero_grad()
            model(rows(rank, step, 5, 12)).square().mean().backward()
            clip_norm(module, optimizer, 0.05, 2.0)
            optimizer.step()
        return parameters_of(module, optimizer)

    close_to((told(with_ab, again=True), []), (told(with_ddp, again=False), []))


def test_an_order_that_rank_0_picks_clips_too() -> None:
    on_ranks(_led, 2)


def _led(rank: int) -> None:
    close_to(story(with_ab, rank, 0.05, 2.0, order="leader"), story(with_ddp, rank, 0.05, 2.0))


@pytest.mark.parametrize("engine", ENGINES)
def test_scaled_gradients_are_unscaled_and_clipped(engine: str) -> None:
    on_ranks(_scaled, 2, engine)


def _scaled(rank: int, engine: str) -> None:
    """In one pass, while the next forward pass goes on; an overflow on one rank skips the step on all."""

    def told(wrap: Any, way: str) -> tuple[list[Tensor], list[float]]:
        module = make_mlp()
        model, optimizer = wrap(module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        seen = []
        for step in range(STEPS + 2):
            optimizer.zero_grad()
            loss = model(rows(rank, step, 5, 12)).square().mean()
            scaler.scale(loss * (math.inf if (step, rank) == (4, 1) else 1.0)).backward()
            if way != "plain" or step % 3 == 0:
                scaler.unscale_(optimizer)
            if way == "looked at" and isinstance(optimizer, ab.DistributedOptimizer):
                optimizer.synchronize()
            if way == "looked at":
                seen.append(float(nn.utils.get_total_norm([p.grad for p in module.parameters()])))
            if way == "values" and step % 2:
                clip_value(module, optimizer, 0.004)
            elif way != "plain" or step % 3 == 0:
                seen.append(float(clip_norm(module, optimizer, 0.05, 1.0 if way == "norms" and step > 6 else 2.0)))
            if way == "twice":
                seen.append(float(clip_norm(module, optimizer, 0.02, 2.0)))
            scaler.step(optimizer)
            scaler.update()
            seen.append(scaler.get_scale())
            if way == "clipped" and isinstance(optimizer, ab.DistributedOptimizer):
                due = optimizer._mode._updates._due
                assert bool(due) == (step not in (0, 4)), f"step {step}: layers whose update is due: {due}"
        finite = [value if math.isfinite(value) else -1.0 for value in seen]
        return parameters_of(module, optimizer), finite

    for way in ("clipped", "plain", "looked at", "values", "norms", "twice"):
        ours, theirs = told(partial(with_ab, engine=engine), way), told(with_ddp, way)
        close_to(ours, theirs)
        assert ours[1].count(4.0) == theirs[1].count(4.0)
