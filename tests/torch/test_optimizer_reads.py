"""Programs that read and write parameters between and after steps: each gives what DDP gives, to the bit."""

import os

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from programs import ACTIONS, run
from ranks import on_ranks

#: Programs to draw: a few for `make test`, thousands by night.
PROGRAMS = int(os.environ.get("AUTOBYTE_PROGRAMS", "60"))
BATCH = 20  # programs that one pair of ranks runs

programs = st.tuples(
    st.sampled_from(["sgd", "adamw"]),
    st.lists(st.sampled_from(sorted(ACTIONS)), max_size=8).map(
        lambda drawn: ["step", *(each for name in drawn for each in (name, "step"))][: 2 * len(drawn) + 1]
    )
    | st.lists(st.sampled_from(["step", "step", "step", *sorted(ACTIONS)]), max_size=16),
)


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_between_and_after_steps(name: str) -> None:
    """One at a time: what fails here is the shortest program."""
    batch = [(make, [*["step", "step", "step", name] * 2, "step", name]) for make in ("sgd", "adamw")]
    assert on_ranks(run, 2, batch) == [[], []]


@pytest.mark.timeout(300 + PROGRAMS)
@given(st.lists(programs, min_size=BATCH, max_size=BATCH))
@settings(
    max_examples=max(1, PROGRAMS // BATCH),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
def test_programs(batch: list[tuple[str, list[str]]]) -> None:
    assert on_ranks(run, 2, batch, timeout_s=250) == [[], []]
