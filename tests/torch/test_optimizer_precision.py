"""What GPU users take for granted: mixed precision, memory formats, fused optimizers, activations computed again.

Each way is trained with DDP and with AutoByte, bits compared. One launch of two ranks tries all ways on an engine.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from ranks import RankError, on_ranks
from stories import STEPS, assert_equal, make_mlp, parameters_of, rows, sgd, with_ab, with_ddp
from torch import Tensor, nn, optim
from torch.autograd.graph import save_on_cpu
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from autobyte.errors import InputError

BF16, FP16 = torch.bfloat16, torch.float16
OVERFLOWS = (2, 5)  # steps in which the loss of rank 1 alone is infinite


class MixedModel(nn.Module):
    """Layers of two dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow, self.last = make_mlp(), nn.Linear(4, 6).bfloat16(), nn.Linear(6, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.last(self.narrow(self.wide(inputs).bfloat16()).float())
        return output


class Pictures(nn.Module):
    """Convolutions and batch norm on pictures whose channels lie next to each other in memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.second, self.last = (
            *(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 3)),
            nn.Linear(4, 4),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        pictures = inputs.repeat(1, 25)[:, :300].reshape(5, 3, 10, 10).contiguous(memory_format=torch.channels_last)
        hidden = self.second(self.norm(self.first(pictures)).relu())
        output: Tensor = self.last(hidden.mean((2, 3)))
        return output


class Recomputed(nn.Module):
    """Activations of both halves are computed again in the backward pass."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.body, self.reentrant = make_mlp(), reentrant

    def forward(self, inputs: Tensor) -> Tensor:
        if self.reentrant:
            inputs = inputs.detach().requires_grad_()  # else it makes no gradients
        hidden = checkpoint(self.body[:3], inputs, use_reentrant=self.reentrant)
        output: Tensor = checkpoint(self.body[3:], hidden, use_reentrant=self.reentrant)
        return output


def bf16() -> nn.Module:
    return make_mlp().bfloat16()


def pictures() -> nn.Module:
    return Pictures().to(memory_format=torch.channels_last)


def made(kind: type[Optimizer], **keywords: Any) -> Callable[[nn.Module], Optimizer]:
    return lambda model: kind(model.parameters(), **keywords)


@dataclass(frozen=True)
class Way:
    """How a model is trained: its dtype, what autocast computes in, whether a scaler scales the loss, and so on."""

    make: Callable[[], nn.Module] = make_mlp
    optimizer: Callable[[nn.Module], Optimizer] = sgd
    dtype: torch.dtype = torch.float32
    cast: torch.dtype | None = None
    scaled: bool = False
    clipped: bool = False
    offloaded: bool = False
    compiled: str = ""  # which part is, after wrapping

    def __call__(self, wrap: Any, rank: int, **keywords: Any) -> list[Tensor]:
        torch.manual_seed(0)
        if self.compiled:
            torch._dynamo.reset()
        module = self.make()
        model, optimizer = wrap(module, self.optimizer(module), **keywords)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3, enabled=self.scaled)
        for part in module.modules():
            if self.compiled == "blocks" and isinstance(part, nn.Linear):
                part.compile(backend="aot_eager")
        step_ = torch.compile(optimizer.step, backend="eager") if self.compiled == "step" else optimizer.step
        scales = []
        for step in range(STEPS):
            optimizer.zero_grad()
            with (
                nullcontext() if self.cast is None else torch.autocast("cpu", self.cast),
                save_on_cpu() if self.offloaded else nullcontext(),
            ):
                loss = model(rows(rank, step, 5, 12).to(self.dtype)).float().square().mean()
            if self.scaled and step in OVERFLOWS and rank == 1:
                loss = loss * torch.inf
            scaler.scale(loss).backward()
            if self.clipped:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(module.parameters(), 0.1)
            if self.scaled:
                scaler.step(optimizer)
                scaler.update()
                scales.append(scaler.get_scale())
            else:
                step_()
        assert not scales or len(set(scales)) > 2, "the scale both shrank and grew"
        trained = parameters_of(module, optimizer)
        buffers = list(module.buffers()) if rank == 0 else []  # DDP sends rank 0's before every forward pass
        if wrap is with_ab:
            optimizer.close()
        return [*trained, *buffers, torch.tensor(scales)]


MOMENTUM = {"lr": 0.05, "momentum": 0.9}
KINDS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "SGD": (optim.SGD, MOMENTUM),
    "Adam": (optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "AdamW": (optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "Adagrad": (optim.Adagrad, {"lr": 0.01}),
}
WAYS = {
    "autocast to bf16": Way(cast=BF16),
    "autocast to bf16, scaled": Way(cast=BF16, scaled=True),
    "autocast to bf16, scaled and clipped": Way(cast=BF16, scaled=True, clipped=True),
    "autocast to fp16, scaled": Way(cast=FP16, scaled=True),
    "bf16": Way(bf16, made(optim.AdamW, lr=0.01), BF16),
    "fp16": Way(lambda: make_mlp().half(), sgd, FP16),
    "two dtypes": Way(MixedModel, made(optim.Adam, lr=0.01)),
    "two dtypes, foreach": Way(MixedModel, made(optim.Adam, lr=0.01, foreach=True)),
    "two dtypes, autocast": Way(MixedModel, cast=BF16),
    "channels_last": Way(pictures),
    "channels_last, autocast": Way(pictures, made(optim.AdamW, lr=0.01), cast=BF16),
    "channels_last, bf16, fused": Way(lambda: pictures().bfloat16(), made(optim.SGD, fused=True, **MOMENTUM), BF16),
    "channels_last inputs only": Way(Pictures),
    "activations computed again": Way(lambda: Recomputed(reentrant=False), cast=BF16),
    "activations computed again, reentrant": Way(lambda: Recomputed(reentrant=True), cast=BF16),
    "activations kept on the host": Way(offloaded=True),
    "learning rate as a tensor": Way(optimizer=made(optim.AdamW, lr=torch.tensor(0.01))),
    "learning rate as a tensor, fused": Way(optimizer=made(optim.AdamW, lr=torch.tensor(0.01), fused=True)),
    "blocks compiled": Way(compiled="blocks"),
    "blocks compiled, autocast": Way(cast=BF16, compiled="blocks"),
    "step compiled": Way(compiled="step"),
    **{
        f"{name}, {how}": Way(optimizer=made(kind, **{how: True}, **keywords))
        for name, (kind, keywords) in KINDS.items()
        for how in ("foreach", "fused")
    },
    **{
        f"{name}, fused, scaled": Way(optimizer=made(kind, fused=True, **keywords), scaled=True)
        for name, (kind, keywords) in KINDS.items()
    },
}
ON_SERVERS = ("autocast to bf16, scaled", "bf16", "two dtypes, foreach", "channels_last", "AdamW, fused")


def test_every_way_of_computing_gives_ddps_parameters() -> None:
    assert on_ranks(_differing, 2, timeout_s=240) == [[], []]


def _differing(rank: int) -> list[str]:
    wrong = []
    for name, way in WAYS.items():
        theirs = way(with_ddp, rank)
        for engine in ("allreduce", "ordered", *(["ps"] if name in ON_SERVERS else [])):
            try:
                assert_equal(way(with_ab, rank, engine=engine), theirs)
            except AssertionError as error:
                wrong.append(f"{name}, {engine}: {error}")
    return wrong


def test_layers_are_updated_one_by_one_in_every_way() -> None:
    """So that the test above compares what crosses the step; compiled blocks and step() allow no hooks."""
    on_ranks(_crossing, 2)


def _crossing(rank: int) -> None:
    for name, way in WAYS.items():
        if way.compiled == "blocks":
            continue
        model, optimizer = with_ab(module := way.make(), way.optimizer(module))
        for step in range(5):  # state that was there before is compared after the second, or a step later
            optimizer.zero_grad()
            model(rows(rank, step, 5, 12).to(way.dtype)).float().square().mean().backward()
            optimizer.step()
        first = next(iter(module.parameters()))
        assert type(first).__mro__[1].__name__ == "Pending", name
        optimizer.close()


def test_the_memory_format_may_change_after_wrapping() -> None:
    """Here DDP does not average some gradients; what is right is the mean by hand."""
    on_ranks(_format_changes, 2)


def _format_changes(rank: int) -> None:
    model, optimizer = with_ab(module := Pictures(), sgd(module))
    module.to(memory_format=torch.channels_last)
    alone = [pictures() for _ in range(2)]
    for other, copy in enumerate(alone):
        copy(rows(other, 0, 5, 12)).square().mean().backward()
    model(rows(rank, 0, 5, 12)).square().mean().backward()
    optimizer.synchronize()
    for averaged, one, two in zip(*(m.parameters() for m in (module, *alone)), strict=True):
        torch.testing.assert_close(averaged.grad, (one.grad + two.grad) / 2)


class Twice(nn.Module):
    """One layer, called twice, whose activations are computed again each time."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.reentrant = nn.Linear(12, 12), reentrant

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = checkpoint(self.layer, inputs.detach().requires_grad_(), use_reentrant=self.reentrant)
        output: Tensor = checkpoint(self.layer, hidden.tanh(), use_reentrant=self.reentrant)
        return output


def test_a_layer_that_is_called_twice_is_computed_again_without_reentering() -> None:
    """The reentrant way completes a gradient twice in one backward pass, and DDP's averages are wrong."""
    averaged, refusals = zip(*on_ranks(_twice, 2), strict=True)
    assert averaged == (False, False)
    assert all("got 2 backward passes in a step of 1" in refusal for refusal in refusals)


def _twice(rank: int) -> tuple[bool, str]:
    """Whether DDP's averages are right in the reentrant way, and what AutoByte says to it."""
    way = Way(lambda: Twice(reentrant=False))
    assert_equal(way(with_ab, rank), way(with_ddp, rank))
    alone = [Twice(reentrant=False) for _ in range(2)]
    for other, copy in enumerate(alone):
        copy(rows(other, 0, 5, 12)).square().mean().backward()
    mean = sum(copy.layer.weight.grad for copy in alone) / 2
    model, _ = with_ddp(module := Twice(reentrant=True), sgd(module))
    model(rows(rank, 0, 5, 12)).square().mean().backward()
    right = torch.allclose(module.layer.weight.grad, mean)
    model, _ = with_ab(module := Twice(reentrant=True), sgd(module))
    with pytest.raises(InputError) as refusal:
        model(rows(rank, 0, 5, 12)).square().mean().backward()
    return right, str(refusal.value)


@pytest.mark.parametrize("how", ["converted", "grad_dtype"])
def test_gradients_of_another_dtype_than_was_agreed_are_refused(how: str) -> None:
    with pytest.raises(
        RankError,
        match=r"parameter '4\.\w+' was torch\.float32 when the optimizer was wrapped, and its gradient is "
        r"torch\.bfloat16: convert the model before wrapping it",
    ):
        on_ranks(_another_dtype, 2, how)


def _another_dtype(rank: int, how: str) -> None:
    model, optimizer = with_ab(module := make_mlp(), sgd(module))
    if how == "converted":
        module.bfloat16()
    else:
        for parameter in module.parameters():
            parameter.grad_dtype = torch.bfloat16  # type: ignore[attr-defined]
    model(rows(rank, 0, 5, 12).to(module[0].weight.dtype)).float().square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"capturable": True}, "If capturable=True, params and state_steps must be on"),
        ({"differentiable": True}, "leaf"),
    ],
)
def test_optimizers_that_pytorch_refuses_on_a_cpu_say_so_here_too(keywords: dict[str, bool], says: str) -> None:
    for failed in on_ranks(_refused, 2, keywords):
        assert [says in each for each in failed] == [True, True], failed


def _refused(rank: int, keywords: dict[str, bool]) -> list[str]:
    said = []
    for wrap in (with_ddp, partial(with_ab, cross_step=False)):
        model, optimizer = wrap(module := make_mlp(), optim.Adam(module.parameters(), lr=0.01, **keywords))
        model(rows(rank, 0, 5, 12)).square().mean().backward()
        try:
            optimizer.step()
        except (AssertionError, RuntimeError) as error:
            said.append(str(error))
    return said
