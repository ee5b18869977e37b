"""What a window shows: a change in the middle of it, and no change where there is only noise."""

import numpy as np

from autobyte.tuners.twin.windows import broken


def test_a_change_within_a_window_is_seen_and_noise_is_not() -> None:
    random = np.random.default_rng(3)
    noise = np.exp(0.08 * random.normal(size=(300, 10)))
    assert np.mean([broken(steps.tolist()) > 0 for steps in noise]) <= 0.03
    for at in range(1, 10):
        slower = np.where(np.arange(10) < at, 1.0, 2.0)
        found = [broken((steps * slower).tolist()) for steps in noise[:100]]
        assert np.mean([each == at for each in found]) >= 0.9
    assert broken([0.2] * 10) == 0
