"""A window on every rank goes over the wire as numbers, and is the same when it is there."""

from dataclasses import astuple
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from autobyte.exchange.tuning.window import RankWindow
from autobyte.tuning import WINDOW

SECONDS = st.floats(0, 1e9) | st.just(float("nan"))


@st.composite
def windows(draw: st.DrawFn) -> list[RankWindow]:
    """Of ranks that have taken as many steps, in a model of as many layers."""
    steps, layers = draw(st.integers(1, WINDOW)), draw(st.integers(1, 5))
    rows = (arrays(float, shape, elements=SECONDS) for shape in (steps, layers, layers, 4, (2, 4)))
    one: Any = st.builds(RankWindow, *rows, SECONDS)
    return draw(st.lists(one, min_size=1, max_size=4))


@given(ranks=windows())
def test_a_window_comes_back_as_it_was_packed(ranks: list[RankWindow]) -> None:
    rows = np.stack([window.pack() for window in ranks])
    again = RankWindow.unpack(rows, steps=len(ranks[0].step_s))
    for window, other in zip(ranks, again, strict=True):
        for expected, array in zip(astuple(window), astuple(other), strict=True):
            np.testing.assert_array_equal(array, expected)


def test_rows_are_as_long_whatever_the_number_of_steps() -> None:
    one, ten = (
        RankWindow(np.ones(steps), *np.ones((2, 3)), np.ones(4), np.ones((2, 4)), 1.0) for steps in (1, WINDOW)
    )
    assert one.pack().shape == ten.pack().shape == (WINDOW + 6 + 13,)
