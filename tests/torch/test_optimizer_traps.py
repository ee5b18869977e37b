"""What users do around a wrapped optimizer that it cannot see; each once trained wrong parameters, or could have."""

import contextlib

import pytest
import torch
from ranks import on_ranks
from stories import SMALL, assert_equal, from_rank_0, make_mlp, parameters_of, rows, sgd, train, with_ab
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join

import autobyte.torch as ab
from autobyte.errors import InputError


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


def test_a_refused_update_is_refused_again() -> None:
    on_ranks(_refused, 2)


def _refused(rank: int) -> None:
    model = make_mlp()
    _, optimizer = with_ab(model, sgd(model))
    alias = model[0].weight.detach()  # nobody can see what is done by way of it
    train(model, optimizer, rank, range(2))
    alias.mul_(1.0)
    for _ in range(2):
        with pytest.raises(InputError, match=r"parameter '0.weight' was changed after step\(\)"):
            model(rows(rank, 2, 5, 12))
    with contextlib.suppress(InputError):
        optimizer.close()


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
    assert len(optimizer._updates._layers) == 3
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


def test_learning_rates_are_the_same_after_uneven_inputs() -> None:
    on_ranks(_scheduled, 2)


def _scheduled(rank: int) -> None:
    model = make_mlp()
    _, optimizer = with_ab(model, sgd(model))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    with Join([optimizer]):
        for step in range(4 + 2 * rank):
            train(model, optimizer, rank, range(step, step + 1))
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.9**6)
    train(model, optimizer, rank, range(20, 25))
    same_on_all(parameters_of(model, optimizer))
