"""What users do around a wrapped optimizer that it cannot see; each once trained wrong parameters, or could have."""

import atexit
import contextlib
import copy
import os
from datetime import timedelta
from typing import Any

import pytest
import torch
from ranks import RankError, on_ranks
from stories import SMALL, assert_equal, from_rank_0, make_mlp, parameters_of, rows, sgd, train, with_ab, with_ddp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab
from autobyte.errors import InputError
from autobyte.exchange import parting
from autobyte.scheduler.engines import allreduce
from autobyte.scheduler.engines.abandoned import abandoned


def same_on_all(tensors: list[Tensor]) -> None:
    assert_equal(tensors, [from_rank_0(tensor) for tensor in tensors])


def test_tensors_with_gaps_in_memory_are_sent_as_they_are() -> None:
    on_ranks(_gaps, 2)


def _gaps(rank: int) -> None:
    torch.manual_seed(rank)
    model, around = make_mlp(seed=rank), torch.randn(8, 3)
    model.register_buffer("slice", torch.randn(6, 6)[:, :3])
    model.register_buffer("rows", around[::2])
    model.register_parameter("weight", nn.Parameter(torch.randn(6, 6)[:, :3]))
    between = around[1::2].clone()
    _, optimizer = with_ab(model, sgd(model))
    same_on_all([*parameters_of(model, optimizer), *model.buffers()])
    assert torch.equal(around[1::2], between)


def test_a_model_that_is_never_called_itself() -> None:
    on_ranks(_uncalled, 2)


class Scaled(nn.Module):
    """Its own parameter is read outside of every call of a module."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale, self.layer = nn.Parameter(torch.ones(12)), nn.Linear(12, 4)

    def loss(self, inputs: Tensor) -> Tensor:
        loss: Tensor = self.layer(inputs * self.scale).square().mean()
        return loss


def _uncalled(rank: int) -> None:
    told = []
    for cross_step in (True, False):
        model = Scaled()
        _, optimizer = with_ab(model, sgd(model), cross_step=cross_step)
        for step in range(5):
            optimizer.zero_grad()
            model.loss(rows(rank, step, 5, 12)).backward()
            optimizer.step()
        told.append(parameters_of(model, optimizer))
        optimizer.close()
    assert_equal(*told)


def test_what_the_users_own_optimizer_is_used_for() -> None:
    on_ranks(_own, 2)


def _own(rank: int) -> None:
    model, calls = make_mlp(), []
    model[0].requires_grad_(False)
    raw = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    plain = raw.step
    raw.step = lambda *given: (calls.append(1), plain(*given))  # type: ignore[assignment, method-assign]
    optimizer = ab.DistributedOptimizer(raw, model, config=SMALL)
    train(model, optimizer, rank, range(4))
    assert len(calls) == 4  # a step of its own is taken
    model[0].requires_grad_(True)
    raw.add_param_group({"params": list(model[0].parameters())})
    optimizer.zero_grad()
    model(rows(rank, 9, 5, 12)).square().mean().backward()
    with pytest.raises(InputError, match=r"2 parameters were added .* close\(\) this wrapper"):
        optimizer.step()


def test_a_checkpoint_of_the_users_own_optimizer_has_all_updates() -> None:
    on_ranks(_torn, 2)


def _torn(rank: int) -> None:
    model = make_mlp()
    raw = sgd(model)
    _, optimizer = with_ab(model, raw)
    train(model, optimizer, rank)
    early = [entry["momentum_buffer"].clone() for entry in raw.state_dict()["state"].values()]
    optimizer.flush()
    assert_equal(early, [raw.state[p]["momentum_buffer"] for p in model.parameters()])


def test_wrapping_again_and_failing_to_wrap() -> None:
    on_ranks(_again, 2)


def _again(rank: int) -> None:
    model = make_mlp()
    with pytest.raises(InputError, match="unknown tuner 'bayesain'; did you mean 'bayesian'"):
        with_ab(model, sgd(model), tuner="bayesain")
    raw = sgd(model)
    _, optimizer = with_ab(model, raw)
    with pytest.raises(InputError, match=r"wrapped already: close\(\) that wrapper first"):
        with_ab(model, sgd(model))
    optimizer.close()
    _, optimizer = with_ab(model, raw)
    optimizer.zero_grad()
    optimizer.step()  # without a pass: layers are looked for later
    train(model, optimizer, rank)
    assert len(optimizer._mode._updates._layers) == 3
    same_on_all(parameters_of(model, optimizer))


def test_all_ranks_search_a_line_by_the_same_losses() -> None:
    on_ranks(_searched, 2)


def _searched(rank: int) -> None:
    model = make_mlp()
    raw = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    optimizer = ab.DistributedOptimizer(raw, model, config=SMALL)
    for step in range(4):

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = (1 + 3 * rank) * model(rows(rank, step, 5, 12)).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    same_on_all(parameters_of(model, optimizer))


@pytest.mark.parametrize("where", ["before backward", "after backward"])
def test_a_loop_goes_on_after_a_closure_that_raised_on_all_ranks(where: str) -> None:
    on_ranks(_raised, 2, where)


def _raised(rank: int, where: str) -> None:
    def told(wrap: Any) -> list[Tensor]:
        module = make_mlp()
        model, optimizer = wrap(module, sgd(module))
        for step in range(6):

            def closure(step: int = step) -> Tensor:
                optimizer.zero_grad()
                loss = model(rows(rank, step, 5, 12)).square().mean()
                if step == 3 and where == "before backward":
                    raise ZeroDivisionError
                loss.backward()
                if step == 3:
                    raise ZeroDivisionError
                return loss

            with contextlib.suppress(ZeroDivisionError):
                optimizer.step(closure)
        return parameters_of(module, optimizer)

    assert_equal(told(with_ab), told(with_ddp))


def test_a_closure_that_raises_on_one_rank_ends_the_others_in_words() -> None:
    going, raised = on_ranks(_raises_on_one, 2)
    assert raised.startswith("ZeroDivisionError")
    assert going.startswith("rank 0, step "), "it hears that rank 1 has ended, or finds out itself"
    assert "1 of 2 ranks left out a step that others took" in going + raised


def _raises_on_one(rank: int) -> str:
    model = make_mlp()
    optimizer = ab.DistributedOptimizer(sgd(model), model, policy="bytescheduler", timeout=timedelta(seconds=10))
    said = ""
    for step in range(6):

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = model(rows(rank, step, 5, 12)).square().mean()
            loss.backward()
            if step == 3 and rank == 1:
                raise ZeroDivisionError
            return loss

        try:
            optimizer.step(closure)
        except ZeroDivisionError:
            said = "ZeroDivisionError"
        except ab.CommunicationError as error:
            return said + str(error)
    return said


@pytest.mark.parametrize("engine", ["allreduce", "ps", "ordered"])
def test_gradients_in_a_buffer_of_the_users_are_averaged_there(engine: str) -> None:
    on_ranks(_flat_buffer, 2, engine)


def _flat_buffer(rank: int, engine: str) -> None:
    def story(wrap: Any, **keywords: Any) -> list[Tensor]:
        module = make_mlp()
        flat = torch.zeros(sum(parameter.numel() for parameter in module.parameters()))
        views = flat.split([parameter.numel() for parameter in module.parameters()])
        for parameter, view in zip(module.parameters(), views, strict=True):
            parameter.grad = view.view_as(parameter)
        model, optimizer = wrap(module, sgd(module), **keywords)
        seen = []
        for step in range(6):
            flat.zero_()
            model(rows(rank, step, 5, 12)).square().mean().backward()
            if step % 2:  # clip the buffer as a whole
                if wrap is with_ab:
                    optimizer.synchronize()
                seen.append(flat.clone())
                flat.mul_(0.1)
            optimizer.step()
        return [*parameters_of(module, optimizer), *seen]

    assert_equal(story(with_ab, engine=engine), story(with_ddp))


def test_a_model_that_is_wrapped_by_ddp_afterwards_is_named() -> None:
    with pytest.raises(RankError, match="the model is in DistributedDataParallel, too"):
        on_ranks(_wrapped_again, 2)


def _wrapped_again(rank: int) -> None:
    module = make_mlp()
    _, optimizer = with_ab(module, sgd(module))
    train(DistributedDataParallel(module), optimizer, rank)


def test_a_forked_child_that_exits_leaves_training_alone() -> None:
    on_ranks(_forked, 2)


def _forked(rank: int) -> None:
    model = make_mlp()
    _, optimizer = with_ab(model, sgd(model))
    train(model, optimizer, rank, range(3))
    abandoned.append(None)  # of the parent's, which would cut it off at its end
    child = os.fork()
    if not child:
        allreduce.hang_up = parting.hang_up = lambda **_: os._exit(1)
        atexit._run_exitfuncs()  # as a process does that ends by itself
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    abandoned.clear()
    train(model, optimizer, rank, range(3, 6))
    same_on_all(parameters_of(model, optimizer))


def test_gradients_that_are_zeroed_in_place_and_come_from_another_rank() -> None:
    on_ranks(_detours, 2)


class Detour(nn.Module):
    """A layer that only some ranks use in a step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.some, self.last = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, inputs: Tensor, detour: bool) -> Tensor:
        hidden = self.first(inputs).tanh()
        output: Tensor = self.last(self.some(hidden) if detour else hidden)
        return output


def _detours(rank: int) -> None:
    def story(wrap: Any, **keywords: Any) -> list[Tensor]:
        model, optimizer = wrap(module := Detour(), sgd(module), **keywords)
        for step in range(12):
            optimizer.zero_grad(set_to_none=False)
            model(rows(rank, step, 5, 12), step % 4 == rank or step % 4 == 3).square().mean().backward()
            optimizer.step()
        return parameters_of(module, optimizer)

    assert_equal(story(with_ab), story(with_ddp, find_unused_parameters=True))


@pytest.mark.parametrize("end", ["close", "recover"])
def test_parameters_are_read_as_they_are_once_a_refused_update_is_given_up(end: str) -> None:
    on_ranks(_refused, 2, end)


def _refused(rank: int, end: str) -> None:
    model = make_mlp()
    optimizer = ab.DistributedOptimizer(sgd(model), model, config=SMALL)
    train(model, optimizer, rank)
    first, middle, last = model[0].weight, model[2].weight, model[4].weight
    before, kinds = last.detach().clone(), {type(parameter) for parameter in make_mlp().parameters()}
    model(rows(rank, 99, 5, 12)).square().mean().backward()
    held = middle.grad
    optimizer.step()
    held.add_(1)  # while the average of it is on its way into a parameter
    with pytest.raises(InputError, match=r"the gradient of '2\.weight' was changed after step"):
        getattr(optimizer, end)()
    assert {type(parameter) for parameter in model.parameters()} == kinds
    assert optimizer.training is None
    assert not any(parameter.isnan().any() for parameter in model.parameters())
    assert torch.equal(last, before)
    copy.deepcopy(model)
    assert first.sum().isfinite()
