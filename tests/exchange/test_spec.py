"""Gradients as front ends describe them."""

from autobyte.exchange.spec import ArraySpec, groups_of


def _specs(*sizes: int) -> list[ArraySpec]:
    return [ArraySpec(f"v{place}", "layer", (size,), "float32") for place, size in enumerate(sizes)]


def test_small_gradients_are_in_the_group_of_the_one_before_them() -> None:
    assert groups_of(_specs(1000, 2, 2, 1000, 2), small=16) == [[0, 1, 2], [3, 4]]


def test_a_group_has_few_bytes_beside_its_first_gradient() -> None:
    assert groups_of(_specs(1000, 2, 1, 1, 1, 4), small=16) == [[0, 1, 2, 3], [4, 5]]
    assert groups_of(_specs(1, 1, 1), small=0) == [[0], [1], [2]]
