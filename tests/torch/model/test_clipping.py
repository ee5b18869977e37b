"""Clipping of averages, beside torch's own."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from autobyte.errors import InputError
from autobyte.torch.model.clipping import Clipping, check_finite, check_norm

VALUES = st.lists(st.floats(-1e3, 1e3, width=32) | st.sampled_from([math.inf, math.nan]), min_size=1, max_size=6)


def parameters(values: list[float]) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.zeros(1)) for _ in values] + [nn.Parameter(torch.zeros(1))]
    for parameter, value in zip(made, values, strict=False):  # the last one has no gradient
        parameter.grad = torch.tensor([value])
    return made


@given(VALUES, st.sampled_from([0.0, 0.1, 1.0, 1e4]))
def test_by_norm_it_does_what_torch_does(values: list[float], limit: float) -> None:
    ours, theirs = parameters(values), parameters(values)
    total = nn.utils.clip_grad_norm_(theirs, limit)
    Clipping.by_norm(float(total), limit).apply(ours)
    for one, other in zip(ours, theirs, strict=True):
        if other.grad is None:
            assert one.grad is None
        else:
            torch.testing.assert_close(one.grad, other.grad, equal_nan=True, rtol=1e-6, atol=1e-9)


@given(VALUES, st.sampled_from([0.0, 0.1, 100.0]))
def test_by_value_it_does_what_torch_does(values: list[float], limit: float) -> None:
    ours, theirs = parameters(values), parameters(values)
    nn.utils.clip_grad_value_(theirs, limit)
    Clipping(limit=limit).apply(ours)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.grad is None) == (other.grad is None)
        if other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, equal_nan=True, rtol=0, atol=0)


def test_nothing_is_touched_where_nothing_is_clipped() -> None:
    made = parameters([1.0, 2.0])
    versions = [p.grad._version for p in made if p.grad is not None]
    Clipping.by_norm(0.5, 1.0).apply(made)
    Clipping().apply(made)
    assert [p.grad._version for p in made if p.grad is not None] == versions


@pytest.mark.parametrize("arguments", [(math.nan, 2.0), (1.0, 0.0), (1.0, -1.0), (1.0, math.nan)])
def test_arguments_out_of_range_are_named(arguments: tuple[float, float]) -> None:
    with pytest.raises(InputError, match=r"^(max_norm|norm_type) must be .*, got "):
        check_norm(*arguments)


def test_a_norm_that_is_not_finite_is_refused_in_torchs_words() -> None:
    check_finite(math.nan, 2.0, error_if_nonfinite=False)
    check_finite(1.0, 2.0, error_if_nonfinite=True)
    made = parameters([math.inf])
    with pytest.raises(RuntimeError) as theirs:
        nn.utils.clip_grad_norm_(made, 1.0, error_if_nonfinite=True)
    with pytest.raises(RuntimeError) as ours:
        check_finite(math.inf, 2.0, error_if_nonfinite=True)
    assert str(ours.value) == str(theirs.value)
