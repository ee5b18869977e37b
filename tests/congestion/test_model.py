"""The network to be trained: seeds, sizes, the limits of its spread."""

import numpy as np
import pytest
import torch

from autobyte.congestion.model import STD_LIMITS, ActorCritic


def test_a_seed_determines_the_weights_and_leaves_others_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, other, third = (ActorCritic(seed=seed).policy().arrays for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert not np.array_equal(one["actor.wish.weight"], third["actor.wish.weight"])


@pytest.mark.parametrize("preference", [True, False])
def test_a_policy_becomes_the_model_that_it_was(preference: bool) -> None:
    policy = ActorCritic(preference=preference, seed=5).policy()
    again = ActorCritic.of(policy).policy()
    assert all(np.array_equal(policy.arrays[name], again.arrays[name]) for name in policy.arrays)
    again.arrays["log_std"][0] = 0.3
    assert policy.log_std == 0


def test_both_networks_are_about_as_large() -> None:
    joined, plain = (sum(p.numel() for p in ActorCritic(preference=p).parameters()) for p in (True, False))
    assert 7000 < joined < plain < 9000


def test_the_spread_stays_within_limits() -> None:
    model = ActorCritic()
    for value, kept in ((9.0, STD_LIMITS[1]), (-9.0, STD_LIMITS[0])):
        with torch.no_grad():
            model.log_std.fill_(value)
        model.clamp()
        assert float(model.log_std.detach()) == pytest.approx(kept)
