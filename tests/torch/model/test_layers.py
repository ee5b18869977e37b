"""Which layers a model has, in which order, and which parameters stand in them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from autobyte.errors import InputError
from autobyte.models.profile import Profile
from autobyte.torch.profiling.profile import profile_model


def quick(model: nn.Module, inputs: object) -> Profile:
    return profile_model(model, inputs, warmup=1, repeats=2)


def table(profile: Profile) -> dict[str, list[str]]:
    return {layer.name: [tensor.name for tensor in layer.tensors] for layer in profile.layers}


def check_complete(model: nn.Module, profile: Profile) -> None:
    """Every trainable parameter of the model exactly once, under its name, with its size."""
    expected = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    tensors = profile.model().tensors
    assert sorted(t.name for t in tensors) == sorted(expected)
    assert {t.name: t.numel for t in tensors} == expected


def test_a_cnn_in_the_order_of_its_layers() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 5)
    )
    profile = quick(model, torch.randn(4, 3, 8, 8))
    assert table(profile) == {"0": ["0.weight", "0.bias"], "1": ["1.weight", "1.bias"], "5": ["5.weight", "5.bias"]}
    assert profile.batch_size == 4
    check_complete(model, profile)


class Backwards(nn.Module):
    """Calls its layers in another order than it registers them."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.first = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


def test_the_order_is_that_of_calls_not_of_registration() -> None:
    assert list(table(quick(Backwards(), torch.randn(3, 4)))) == ["first", "last"]


def test_a_parameter_whose_owner_is_never_called_belongs_to_the_module_above() -> None:
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    profile = quick(model, torch.randn(2, 5, 16))
    rows = table(profile)
    assert list(rows) == ["self_attn", "norm1", "linear1", "linear2", "norm2"]
    assert rows["self_attn"][-2:] == ["self_attn.out_proj.weight", "self_attn.out_proj.bias"]
    check_complete(model, profile)


class Functional(nn.Module):
    """Reads the weight of a layer that it never calls, and a list of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(4, 4)
        self.gains = nn.ParameterList([torch.ones(4)])
        self.called = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.called(functional.linear(x, self.read.weight, self.read.bias) * self.gains[0])


def test_a_model_that_uses_weights_itself_is_a_layer() -> None:
    rows = table(quick(Functional(), torch.randn(3, 4)))
    assert rows == {"Functional": ["read.weight", "read.bias", "gains.0"], "called": ["called.weight", "called.bias"]}


class Tied(nn.Module):
    """A language model whose last layer is registered first and shares its weight with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 50)
        self.body = nn.LSTM(8, 8, num_layers=2, batch_first=True)
        self.embedding = nn.Embedding(50, 8)
        self.embedding.weight = self.head.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(tokens))[0])


def test_tied_weights_are_one_tensor_of_the_layer_that_uses_them_first() -> None:
    model = Tied()
    profile = quick(model, torch.randint(50, (3, 7)))
    rows = table(profile)
    assert rows["embedding"] == ["head.weight"]
    assert rows["head"] == ["head.bias"]
    assert len(rows["body"]) == 8
    check_complete(model, profile)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(self.b(self.a(x)))


@pytest.mark.parametrize("alias", [False, True])
def test_a_module_called_twice_is_one_layer(alias: bool) -> None:
    model = Twice()
    if alias:
        model.again = model.a
    profile = quick(model, torch.randn(3, 4))
    assert table(profile) == {"a": ["a.weight", "a.bias"], "b": ["b.weight", "b.bias"]}
    check_complete(model, profile)


class Wasteful(nn.Module):
    """One layer is never called, the result of another is dropped, a third runs without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.idle, self.dropped, self.cut = (nn.Linear(4, 4) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        self.dropped(x)
        with torch.no_grad():
            self.cut(x)
        return self.last(x)


def test_unused_parameters_are_complete_when_the_backward_pass_is_over() -> None:
    model = Wasteful()
    profile = quick(model, torch.randn(3, 4))
    rows = table(profile)
    assert rows.pop("first") == [
        f"{name}.{p}" for name in ("first", "idle", "dropped", "cut") for p in ("weight", "bias")
    ]
    assert rows == {"dropped": [], "cut": [], "last": ["last.weight", "last.bias"]}
    check_complete(model, profile)


def test_frozen_parameters_do_not_travel() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    model[1].bias.requires_grad_(False)
    profile = quick(model, torch.randn(3, 4))
    assert table(profile) == {"0": [], "1": ["1.weight"], "2": ["2.weight", "2.bias"]}
    check_complete(model, profile)


def test_dtypes_are_those_of_the_parameters() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).to(torch.bfloat16)
    profile = quick(model, torch.randn(3, 4).to(torch.bfloat16))
    assert {tensor.dtype for tensor in profile.model().tensors} == {"bfloat16"}


class Recomputed(nn.Module):
    """Runs its middle a second time in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.middle, self.first(x), use_reentrant=False))


def test_checkpointing_calls_a_layer_once() -> None:
    model = Recomputed()
    profile = quick(model, torch.randn(3, 4))
    assert list(table(profile)) == ["first", "middle", "last"]
    check_complete(model, profile)


def test_lazy_layers_are_known_after_the_first_pass() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))
    profile = quick(model, torch.randn(3, 5))
    assert table(profile)["0"] == ["0.weight", "0.bias"]
    check_complete(model, profile)


def test_nothing_to_send_is_said() -> None:
    with pytest.raises(InputError, match="model 'Linear' has no trainable parameter"):
        quick(nn.Linear(4, 2).requires_grad_(False), torch.randn(3, 4, requires_grad=True))
    with pytest.raises(InputError, match="does not depend on any trainable parameter"):
        quick(Unrelated(), torch.randn(3, 4, requires_grad=True))


class Unrelated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.ParameterList([torch.ones(4)])

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def test_a_sparse_gradient_is_refused() -> None:
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2))
    with pytest.raises(InputError, match=r"parameter '0\.weight' has a sparse gradient"):
        quick(model, torch.tensor([[1, 2]]))


def compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile()
    return model


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("make", [torch.compile, compiled_in_place, torch.jit.script])
def test_a_compiled_module_is_refused(make: Callable[[nn.Module], nn.Module]) -> None:
    with pytest.raises(InputError, match=r"module '1' is compiled: no hooks; profile it uncompiled"):
        quick(nn.Sequential(nn.Linear(4, 4), make(nn.Linear(4, 2))), torch.randn(3, 4))


class CallsItself(Functional):
    """Has its own way of being called, past all hooks."""

    def __call__(self, x: Tensor) -> Tensor:
        return self.forward(x)


def test_a_model_that_no_hook_sees_is_called_all_the_same() -> None:
    assert list(table(quick(CallsItself(), torch.randn(3, 4)))) == ["CallsItself", "called"]
