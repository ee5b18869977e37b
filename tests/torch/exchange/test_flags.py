"""What ranks count at the end of a step: added up as numbers, read by name."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from autobyte.torch.exchange.flags import StepCounts, StepFlags

RANKS = st.lists(
    st.builds(
        StepFlags,
        had=st.lists(st.booleans(), min_size=5, max_size=5),
        left_out=st.booleans(),
        joined=st.booleans(),
        announces=st.booleans(),
        loaded=st.booleans(),
        clips=st.sampled_from([None, (1.0, 2.0), (0.5, 2.0)]),
    ),
    min_size=1,
    max_size=4,
)


@given(ranks=RANKS)
def test_flags_are_counted_over_ranks(ranks: list[StepFlags]) -> None:
    counts = StepCounts(torch.stack([flags.pack() for flags in ranks]).sum(dim=0))
    assert [counts.having(gradient) for gradient in range(5)] == [
        sum(each.had[g] for each in ranks) for g in range(5)
    ]
    assert counts.any_gradient == any(any(each.had) for each in ranks)
    assert counts.left_out == sum(each.left_out for each in ranks)
    assert counts.joined == sum(each.joined for each in ranks)
    assert counts.announcing == sum(each.announces for each in ranks)
    assert counts.loaded == sum(each.loaded for each in ranks)
    clips = [each.clips for each in ranks if each.clips is not None]
    assert counts.clipping == len(clips)
    for each in ranks:
        if each.clips is not None:
            assert counts.clip_as(each) == (len(set(clips)) == 1)
