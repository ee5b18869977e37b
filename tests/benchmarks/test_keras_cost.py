"""What a gradient costs in Keras on TensorFlow, in CPU, with an engine that moves nothing."""

from pathlib import Path

import keras_ranks
import pytest

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

MOST_S = 150e-6


def test_a_gradient_costs_at_most_150_microseconds(tmp_path: Path) -> None:
    checks = Path(__file__).parent / "keras_cost.py"
    ranks = keras_ranks.run_checks(checks, ["at_once", "crossing"], tmp_path, backend="tensorflow")
    for name in ("at_once", "crossing"):
        assert all(isinstance(rank.get(name), float) for rank in ranks), [rank.get(name) for rank in ranks]
        least_s = min(rank[name] for rank in ranks)
        print(f"\n{name}: {1e6 * least_s:.0f} µs a gradient (at most {1e6 * MOST_S:.0f})")
        assert 0 < least_s <= MOST_S
