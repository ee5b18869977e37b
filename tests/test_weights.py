"""Weights of any names; the tests of objectives and of preferences have the errors."""

import pytest

from autobyte.errors import InputError
from autobyte.weights import check_weights, parse_weights, show_weights


def test_weights_are_read_in_any_order_and_without_names() -> None:
    for text in ("b=0.25,a=0.75", " a = 0.75 , b = 0.25".replace(" = ", "="), "0.75,0.25"):
        assert parse_weights(text, ("a", "b"), example=(0.5, 0.5)) == [0.75, 0.25]
    assert show_weights((0.75, 0.25)) == "⟨0.75, 0.25⟩"


def test_what_cannot_be_read_is_shown_with_an_example_of_these_names() -> None:
    with pytest.raises(InputError, match=r"^cannot read objective 'a=1'; write it like a=0\.5,b=0\.5$"):
        parse_weights("a=1", ("a", "b"), example=(0.5, 0.5))
    with pytest.raises(InputError, match=r"write 0\.5, 0\.5$"):
        check_weights((0.0, 0.0), ("a", "b"), example=(0.5, 0.5))
