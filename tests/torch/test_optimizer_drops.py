"""Gradients that a loop lets go of without the wrapper's zero_grad(): their step is given up, as with DDP."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import RankError, on_ranks
from stories import assert_equal, make_mlp, parameters_of, rows, sgd, with_ab, with_ddp
from torch import Tensor, nn

import autobyte.torch as ab

ENGINES = ["allreduce", "ps", "ordered"]


class TwoPasses(torch.optim.SGD):
    """Sharpness-aware minimisation (Foret et al., ICLR 2021): gradients from where the loss is highest."""

    @torch.no_grad()
    def climb(self) -> None:
        """Go up along the gradients, and let go of them."""
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["up"] = 0.05 * parameter.grad / (1e-12 + parameter.grad.norm())
                parameter.add_(self.state[parameter]["up"])
        self.zero_grad()

    @torch.no_grad()
    def descend(self) -> None:
        """Go back, and take a step along the gradients of the second pass."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(self.state[parameter].pop("up"))
        torch.optim.SGD.step(self)
        self.zero_grad()


def two_passes(model: nn.Module, optimizer: Any, rank: int) -> None:
    for step in range(12):
        for way in (optimizer.climb, optimizer.descend):
            model(rows(rank, step, 5, 12)).square().mean().backward()
            way()


def skipped(model: nn.Module, optimizer: Any, rank: int) -> None:
    """A loop that clears gradients by the model, and leaves every third step out."""
    own = getattr(model, "module", model)
    for step in range(12):
        own.zero_grad()
        model(rows(rank, step, 5, 12)).square().mean().backward()
        if step % 3 != 1:
            optimizer.step()


STORIES: dict[str, tuple[Callable[..., Any], Callable[..., None]]] = {
    "two passes": (lambda model: TwoPasses(model.parameters(), lr=0.1), two_passes),
    "model.zero_grad": (sgd, skipped),
}


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("engine", ENGINES)
def test_parameters_are_ddps(engine: str, story: str) -> None:
    on_ranks(_as_ddp, 2, engine, story)


def _as_ddp(rank: int, engine: str, story: str) -> None:
    make, tell = STORIES[story]
    told: list[list[Tensor]] = []
    for wrap, keywords in ((with_ab, {"engine": engine}), (with_ddp, {})):
        model, optimizer = wrap(module := make_mlp(), make(module), **keywords)
        tell(model, optimizer, rank)
        told.append(parameters_of(module, optimizer))
        if wrap is with_ab:
            optimizer.close()
    assert_equal(*told)


def test_gradients_some_of_which_stay_are_of_the_same_step() -> None:
    with pytest.raises(
        RankError, match=r"'4.bias' got 2 backward passes in a step of 1: .* or call this optimizer's"
    ):
        on_ranks(_some_stay, 2)


def _some_stay(rank: int) -> None:
    model, _ = with_ab(module := make_mlp(), sgd(module))
    for step in range(2):
        model(rows(rank, step, 5, 12)).sum().backward()
        model[0].zero_grad()


def test_one_rank_that_drops_a_step_that_others_take_is_told() -> None:
    on_ranks(_one_drops, 2)


def _one_drops(rank: int) -> None:
    model, optimizer = with_ab(module := make_mlp(), sgd(module))
    with pytest.raises(ab.CommunicationError, match="1 of 2 ranks left out a step that others took"):
        for step in range(8):
            model(rows(rank, step, 5, 12)).sum().backward()
            if rank == 0 and step == 3:
                model.zero_grad()
            else:
                optimizer.step()
                optimizer.zero_grad()


class Bare(torch.optim.SGD):
    """An optimizer around another one that calls no constructor of torch's, as packages have."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.param_groups, self.defaults = inner, inner.param_groups, inner.defaults
        self.state = inner.state

    def __getstate__(self) -> dict[str, Any]:
        return {"inner": self.inner}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The other one's."""
        self.inner.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:
        """The other one's."""
        self.inner.step(closure)


def test_an_optimizer_without_torchs_constructor_trains() -> None:
    on_ranks(_bare, 2)


def _bare(rank: int) -> None:
    told = []
    for wrap in (with_ab, with_ddp):
        model, optimizer = wrap(module := make_mlp(), Bare(sgd(module)))
        for step in range(6):
            optimizer.zero_grad()
            model(rows(rank, step, 5, 12)).square().mean().backward()
            optimizer.step()
        told.append(parameters_of(module, optimizer))
    assert_equal(*told)
