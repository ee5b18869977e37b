"""The Gymnasium environment keeps Gymnasium's rules."""

import importlib
import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import pytest

from autobyte.congestion.objectives import Objective
from autobyte.errors import InputError, MissingExtra

if TYPE_CHECKING or find_spec("gymnasium") is not None:
    import gymnasium
    from gymnasium.utils.env_checker import check_env

    from autobyte.congestion.env import CongestionEnv

HAS_GYMNASIUM = find_spec("gymnasium") is not None
needs_gymnasium = pytest.mark.skipif(not HAS_GYMNASIUM, reason="needs the extra: pip install 'autobyte[congestion]'")


@needs_gymnasium
def test_an_episode_has_vector_rewards_and_is_truncated() -> None:
    env = CongestionEnv(Objective(0.8, 0.1, 0.1), steps=30)
    seen, _ = env.reset(seed=5)
    assert env.observation_space.contains(seen)
    np.testing.assert_allclose(seen[:3], [0.8, 0.1, 0.1], rtol=1e-6)
    env.action_space.seed(1)
    for step in range(30):
        seen, reward, terminated, truncated, about = env.step(env.action_space.sample())
        assert env.observation_space.contains(seen)
        assert env.reward_space.contains(reward)
        assert (terminated, truncated) == (False, step == 29)
        assert about["packets_per_s"] > 0


@needs_gymnasium
def test_a_seed_determines_the_episode() -> None:
    def play(seed: int) -> list[float]:
        env = CongestionEnv(Objective(0.8, 0.1, 0.1), steps=10)
        env.reset(seed=seed)
        return [float(env.step(np.ones(1))[1].sum()) for _ in range(10)]

    assert play(1) == play(1)
    assert play(1) != play(2)


@needs_gymnasium
def test_gymnasiums_own_checker_agrees_apart_from_the_vector() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is different from the unwrapped version")
        warnings.filterwarnings("ignore", message=".*(infinity|symmetric and normalized)")
        env = CongestionEnv(Objective(0.1, 0.8, 0.1), steps=20)
        check_env(
            gymnasium.wrappers.TransformReward(env, lambda reward: float(reward.mean())), skip_render_check=True
        )


@needs_gymnasium
def test_an_unknown_range_is_refused() -> None:
    with pytest.raises(InputError, match="unknown range 'moon'"):
        CongestionEnv(Objective(0.8, 0.1, 0.1), links="moon")


@pytest.mark.skipif(HAS_GYMNASIUM, reason="Gymnasium is installed")
def test_without_the_extra_the_command_is_told() -> None:
    with pytest.raises(MissingExtra, match=r"needs gymnasium: pip install 'autobyte\[congestion\]'"):
        importlib.import_module("autobyte.congestion.env")
