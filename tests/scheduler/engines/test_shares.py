"""Shares between the halves of an all-reduce: their norm is that of the whole."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jobs import make_job

from autobyte.config import Config
from autobyte.scheduler.engines.shares import Shares, total_norm
from autobyte.scheduler.policies import make_plan

BLOCKS = make_plan(make_job(*range(1, 20)), Config(8, 8)).tiling.blocks


@given(st.lists(st.lists(st.floats(-1e3, 1e3, width=32), max_size=9), min_size=1, max_size=19), st.integers(1, 4),
       st.sampled_from([0.5, 1.0, 2.0, 3.0, math.inf]))  # fmt: skip
def test_the_norm_of_all_shares_is_that_of_the_whole(parts: list[list[float]], ranks: int, kind: float) -> None:
    own = [Shares() for _ in range(ranks)]
    for shares in own:
        shares.measure(kind)
    for index, part in enumerate(parts):
        own[index % ranks].put(BLOCKS[index], torch.tensor(part))
    norms = torch.tensor([shares.norm() for shares in own], dtype=torch.float64)
    whole = torch.tensor([value for part in parts for value in part], dtype=torch.float64)
    expected = float(torch.linalg.vector_norm(whole, kind)) if len(whole) else 0.0
    assert total_norm(norms, kind) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_a_share_is_given_once() -> None:
    shares, share = Shares(), torch.ones(3)
    shares.put(BLOCKS[0], share)
    assert shares.pop(BLOCKS[0]) is share
    with pytest.raises(KeyError):
        shares.pop(BLOCKS[0])


def test_a_step_counts_by_itself() -> None:
    shares = Shares()
    assert math.isnan(shares.norm()), "nothing is measured unless it is asked for"
    for value in (3.0, 4.0):
        shares.measure(2.0)
        shares.put(BLOCKS[0], torch.full((4,), value))
        assert shares.norm() == 2 * value


@pytest.mark.parametrize(("norms", "whole"), [([1.0, math.nan], math.nan), ([math.inf, 1.0], math.inf), ([], 0.0)])
def test_what_is_not_finite_stays_so(norms: list[float], whole: float) -> None:
    for kind in (2.0, math.inf):
        assert total_norm(torch.tensor(norms or [0.0], dtype=torch.float64), kind) == pytest.approx(
            whole, nan_ok=True
        )
