"""Inputs, outputs and losses of every shape, and what is said when a pass fails."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from autobyte.errors import InputError
from autobyte.torch.model.step import Step, mean_loss
from autobyte.torch.profiling.profile import profile_model

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Output:
    logits: Tensor
    hidden: tuple[Tensor, ...]
    label: str = "none"


def test_the_loss_is_the_sum_of_the_means_of_what_can_be_derived() -> None:
    x = torch.tensor([1.0, 3.0], requires_grad=True)
    constant, whole = torch.ones(2), torch.tensor([7])
    for outputs in (
        (x, [x * 2, constant]),
        {"a": x, "b": {"c": x * 2, "d": whole}},
        Output(x, (x * 2, whole)),
        Pair(x, (x * 2, None)),
        (x.half(), x.double() * 2),
    ):
        assert mean_loss(outputs).item() == 2 + 4


@pytest.mark.parametrize("outputs", [None, "text", torch.ones(3), [torch.tensor([1])]])
def test_nothing_to_derive_is_said(outputs: object) -> None:
    with pytest.raises(InputError, match=f"the model returned {type(outputs).__name__} without a floating tensor"):
        mean_loss(outputs)


class Echo(nn.Module):
    """Returns what it was called with, and a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, *args: object, **kwargs: object) -> tuple[object, object, Tensor]:
        self.seen = args, kwargs
        return args, kwargs, self.gain


@pytest.mark.parametrize(
    ("inputs", "args", "keys"),
    [
        (torch.ones(2), 1, []),
        ((torch.ones(2), torch.ones(3)), 2, []),
        ({"x": torch.ones(2), "flag": True}, 0, ["x", "flag"]),
        ([torch.ones(2), torch.ones(3)], 1, []),
        ((Pair(torch.ones(2), 5),), 1, []),
    ],
)
def test_inputs_are_positional_named_or_the_only_one(inputs: object, args: int, keys: list[str]) -> None:
    model = Echo()
    Step(model, inputs).forward()
    assert len(model.seen[0]) == args
    assert list(model.seen[1]) == keys


def test_inputs_are_copied() -> None:
    rows = torch.ones(2, 3)
    step = Step(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 1)), -rows)
    step.inputs[0].zero_()
    assert rows.sum() == 6


def test_a_loss_of_ones_own() -> None:
    step = Step(
        nn.Linear(3, 2),
        torch.ones(4, 3),
        loss=lambda outputs: nn.functional.cross_entropy(outputs, torch.ones(4).long()),
    )
    step.backward(step.forward())
    assert step.model.weight.grad is not None


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("the first line\nthe second")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            Step(nn.Sequential(nn.Linear(3, 2), nn.Sequential(Broken())), torch.ones(1, 3)),
            r"^forward failed in layer '1\.0': RuntimeError: the first line$",
        ),
        (Step(nn.Linear(3, 2), torch.ones(1, 4)), "^forward failed in layer 'Linear': RuntimeError: mat1 and mat2"),
        (Step(nn.Linear(3, 2), torch.ones(1, 3), loss=lambda y: y), r"must be a tensor of one number, got \(1, 2\)"),
        (
            Step(nn.Linear(3, 2), torch.ones(1, 3), loss=lambda y: None),
            "must be a tensor of one number, got NoneType",
        ),
        (
            Step(nn.Linear(3, 2), torch.ones(1, 3), loss=lambda y: 1 / 0),
            "^the loss failed: ZeroDivisionError: division",
        ),
        (Step(nn.Linear(3, 2), torch.ones(1, 3), loss=lambda y: torch.ones(1)), "does not depend on any trainable"),
    ],
)
def test_what_goes_wrong_in_a_forward_pass_is_one_line(step: Step, message: str) -> None:
    with pytest.raises(InputError, match=message):
        step.forward()


class Remembering(nn.Module):
    """Keeps its state from pass to pass, with its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.state = torch.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        self.state = torch.tanh(self.layer(x + self.state))
        return self.state


def test_what_goes_wrong_in_a_backward_pass_is_one_line() -> None:
    with pytest.raises(
        InputError, match=r"^backward failed: RuntimeError: Trying to backward through the graph a second time"
    ):
        profile_model(Remembering(), torch.ones(2, 3))


def test_inputs_must_hold_a_tensor() -> None:
    with pytest.raises(InputError, match="must hold a tensor, got str"):
        profile_model(Echo(), "text")
