"""The network in NumPy is the one in PyTorch."""

import re

import numpy as np
import pytest
import torch

from autobyte.congestion.model import ActorCritic
from autobyte.congestion.policy import RatePolicy
from autobyte.errors import InputError


@pytest.mark.parametrize("preference", [True, False])
def test_numpy_and_pytorch_agree(preference: bool) -> None:
    model = ActorCritic(preference=preference, seed=3)
    policy = model.policy()
    inputs = np.random.default_rng(0).normal(size=(50, 33)).astype(np.float32)
    with torch.no_grad():
        np.testing.assert_allclose(policy.action(inputs), model.actor(torch.from_numpy(inputs)), atol=2e-6)
        np.testing.assert_allclose(policy.value(inputs), model.critic(torch.from_numpy(inputs)), atol=2e-6)


def test_arrays_that_are_none_of_a_policy_are_refused() -> None:
    good = ActorCritic().policy().arrays
    for name, bad in (
        ("actor.wish.weight", None),
        ("critic.out.bias", np.zeros(2, dtype=np.float32)),
        ("log_std", np.array([np.nan], dtype=np.float32)),
    ):
        arrays = {key: value for key, value in good.items() if key != name} | ({} if bad is None else {name: bad})
        with pytest.raises(InputError, match=re.escape(f"as '{name}'")):
            RatePolicy(arrays)
