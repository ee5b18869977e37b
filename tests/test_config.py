"""The two knobs and the box they are searched in."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autobyte.config import BYTESCHEDULER_DEFAULT, P3_DEFAULT, Config, Space
from autobyte.errors import InputError
from autobyte.units import GIB, KIB


def test_a_config_has_whole_positive_bytes() -> None:
    assert Config(4e6, 16e6) == Config(4_000_000, 16_000_000)
    assert type(Config(4e6, 16e6).partition_bytes) is int


@pytest.mark.parametrize("value", [0, -1, 0.5, 1.5, math.nan, math.inf, 1 << 63, 10**400])
@pytest.mark.parametrize("name", ["partition_bytes", "credit_bytes"])
def test_a_size_that_cannot_be_is_named(name: str, value: float) -> None:
    sizes = {"partition_bytes": 1, "credit_bytes": 1} | {name: value}
    with pytest.raises(
        InputError, match=rf"^{name} must be a positive whole number of bytes below 2\^63, got {value}"
    ):
        Config(**sizes)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_knob_is_a_finite_number(value: float) -> None:
    with pytest.raises(InputError, match=f"knob 'fusion' must be a finite number, got {value}"):
        Config(1, 1, knobs={"fusion": value})


def test_equal_configs_are_one_key() -> None:
    one = Config(1, 2, "p3", {"a": 1.0, "b": 2.0})
    assert {one: "kept"}[Config(1, 2, "p3", {"b": 2, "a": 1})] == "kept"
    others = [Config(2, 2, "p3", one.knobs), Config(1, 1, "p3", one.knobs), Config(1, 2, knobs=one.knobs)]
    others += [Config(1, 2, "p3"), Config(1, 2, "p3", {"a": 1.0, "b": 3.0}), Config(1, 2, "p3", {"a": 1.0})]
    assert one not in others
    assert len({one, *others}) == 7


def test_the_label_is_the_pair_as_the_paper_writes_it() -> None:
    assert Config(4 << 20, 16 << 20).label == "⟨4 MiB, 4x⟩"
    assert Config(1 << 30, 500).label == "⟨1 GiB, 500 B⟩"


@given(st.integers(1, 1 << 40), st.integers(1, 1 << 40), st.dictionaries(st.text(), st.floats(-1, 1)))
def test_json_gives_the_config_back(partition: int, credit: int, knobs: dict[str, float]) -> None:
    for policy in ("bytescheduler", "mine"):
        config = Config(partition, credit, policy, knobs)
        assert Config.from_json(config.to_json()) == config


def test_json_is_short_where_nothing_differs_from_the_default() -> None:
    assert Config(1, 2).to_json() == {"partition_bytes": 1, "credit_bytes": 2}


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"partition_bytes": 1},
        {"partition_bytes": 1, "credit_bytes": 2, "colour": 3},
        5,
        None,
        [],
        {"partition_bytes": "1", "credit_bytes": 2},
        {"partition_bytes": 1, "credit_bytes": 2, "knobs": None},
    ],
)
def test_what_is_no_config_is_said_to_be_none(data) -> None:
    with pytest.raises(InputError, match=r"^not a config: "):
        Config.from_json(data)


def test_the_grid_is_the_papers() -> None:
    grid = Space().grid()
    assert len(grid) == len(set(grid)) == 304
    assert {config.partition_bytes for config in grid} == {4 * KIB * 2**k for k in range(19)}
    assert {config.credit_bytes / config.partition_bytes for config in grid} == set(range(1, 17))
    assert all(config in Space() for config in grid)


def test_both_ends_are_included() -> None:
    space = Space()
    assert space.at([0, 0]) == Config(4 * KIB, 4 * KIB)
    assert space.at([1, 1]) == Config(GIB, 16 * GIB)
    assert space.at([0.5, 0.5]) == Config(2 << 20, 8 << 20)  # the geometric mean of both ranges
    assert space.locate(Config(4 * KIB, 4 * KIB)) == (0, 0)
    assert space.locate(Config(GIB, 16 * GIB)) == (1, 1)
    assert Config(4 * KIB, 4 * KIB) in space
    assert Config(4 * KIB - 1, 4 * KIB) not in space
    assert Config(GIB, 16 * GIB) in space
    assert Config(GIB + 1, GIB + 1) not in space
    assert Config(GIB, 16 * GIB + 2) not in space
    assert Config(GIB, GIB - 2) not in space
    fused = Space(default=Config(1 << 20, 1 << 20, knobs={"fusion": 1.0}))
    assert Config(1 << 22, 1 << 22, knobs={"fusion": 1.0}) in fused
    assert Config(1 << 22, 1 << 22) not in fused  # what is not searched stays as it is


def test_every_grid_point_has_its_place() -> None:
    space = Space()
    assert [space.at(space.locate(config)) for config in space.grid()] == space.grid()


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """Boxes of all shapes, points and lines among them."""
    low, ratio = draw(st.integers(1, 1 << 30)), draw(st.floats(0.01, 100))
    partition = (low, low * draw(st.integers(1, 1 << 10)) + draw(st.integers(0, 7)))
    knobs = {name: (low, low + draw(st.floats(0, 5))) for name in "ab"[: draw(st.integers(0, 2))]}
    default = Config(low, low, draw(st.sampled_from(["bytescheduler", "p3"])))
    return Space(partition, (ratio, ratio * draw(st.floats(1, 50))), default, knobs)


@given(spaces(), st.data())
def test_every_point_of_the_cube_is_a_config_of_the_space(space: Space, data: st.DataObject) -> None:
    unit = data.draw(st.lists(st.floats(0, 1), min_size=len(space.names), max_size=len(space.names)))
    config = space.at(unit)
    assert config in space
    again = space.at(space.locate(config))
    assert (again.partition_bytes, again.credit_bytes) == (config.partition_bytes, config.credit_bytes)
    assert again.knobs == pytest.approx(dict(config.knobs))


@given(spaces())
def test_the_grid_lies_in_the_space(space: Space) -> None:
    grid = space.grid()
    assert grid
    assert all(config in space for config in grid if config.credit_bytes > 1)


def test_a_config_outside_is_brought_to_the_nearest_edge() -> None:
    space = Space((100, 200), (1.0, 2.0), Config(100, 100, "p3"))
    assert space.at(space.locate(Config(50, 50))) == Config(100, 100, "p3")
    assert space.at(space.locate(Config(10_000, 100_000))) == Config(200, 400, "p3")


def test_knobs_are_searched_linearly_and_others_stay_at_their_default() -> None:
    space = Space(default=Config(4096, 4096, "mine", {"fixed": 7.0}), knobs={"free": (2.0, 4.0)})
    assert space.names == ("partition", "credit", "free")
    assert space.at([0, 0, 0.25]) == Config(4096, 4096, "mine", {"fixed": 7.0, "free": 2.5})
    assert space.locate(Config(4096, 4096, "mine", {"free": 3.5})) == (0, 0, 0.75)
    assert Config(4096, 4096, "mine", {"free": 4.5}) not in space
    assert Config(4096, 4096, "other", {"free": 3.0}) not in space


@pytest.mark.parametrize("unit", [[], [0.5], [0.5, 0.5, 0.5], [-0.1, 0], [0, 1.1], [math.nan, 0]])
def test_a_point_outside_the_cube_is_refused(unit: list[float]) -> None:
    with pytest.raises(InputError, match=r"a point of the unit cube has 2 numbers in \[0, 1\], got "):
        Space().at(unit)


@pytest.mark.parametrize("bounds", [(0, 1), (-1, 1), (2, 1), (math.nan, 1), (1, math.nan), (1, math.inf)])
def test_a_range_that_cannot_be_is_named(bounds: tuple[float, float]) -> None:
    with pytest.raises(InputError, match=r"^partition_bytes must be a range of positive numbers, low first"):
        Space(partition_bytes=bounds)
    with pytest.raises(InputError, match=r"^credit_ratio must be a range of positive numbers, low first"):
        Space(credit_ratio=bounds)


@pytest.mark.parametrize("bounds", [(2.0, 1.0), (math.nan, 1.0), (0.0, math.inf), (-math.inf, 0.0)])
def test_a_knobs_range_that_cannot_be_is_named(bounds: tuple[float, float]) -> None:
    with pytest.raises(InputError, match=r"^knob 'fusion' must be a range, low first"):
        Space(knobs={"fusion": bounds})


def test_the_published_defaults_are_what_was_published() -> None:
    assert Config(4 * 10**6, 4 * 4 * 10**6) == BYTESCHEDULER_DEFAULT  # 1e6 and 4e6 fp32 parameters
    assert Config(4 * 40_000, 4 * 40_000) == P3_DEFAULT  # slices of 40,000 fp32 parameters, one at a time
    assert BYTESCHEDULER_DEFAULT in Space()
    assert P3_DEFAULT in Space()


def test_the_grid_ends_before_the_edge_if_it_does_not_meet_it() -> None:
    space = Space(((1 << 30), (1 << 31) - 1), (1.0, 1.0))
    assert [config.partition_bytes for config in space.grid()] == [1 << 30]
    assert [config.partition_bytes for config in Space((100, 500)).grid()][::16] == [100, 200, 400]
