"""Costs of blocks and bytes, recovered from what was made with known ones."""

import numpy as np
import pytest

from autobyte.config import Config
from autobyte.torch.costs import NOMINAL_S, Costs, affine, totals

PER_BLOCK_S, PER_BYTE_S = 2e-3, 1e-8
COARSE, FINE = Config(4_000_000, 16_000_000), Config(500_000, 2_000_000)


def passages(sizes: list[int], *, slower: float = 1.0) -> list[tuple[int, float]]:
    """Blocks four at a time: they end together, and the first seems to have taken all the time."""
    made = []
    for start in range(0, len(sizes), 4):
        together = sizes[start : start + 4]
        spent = sum(PER_BLOCK_S + nbytes * PER_BYTE_S * slower for nbytes in together)
        made += [(nbytes, 0.0 if index else spent) for index, nbytes in enumerate(together)]
    return made


def test_sums_over_blocks_that_travel_together_are_fitted() -> None:
    sizes = np.random.default_rng(0).integers(1_000, 4_000_000, size=160).tolist()
    assert affine(passages(sizes)) == pytest.approx([PER_BLOCK_S, PER_BYTE_S], rel=1e-6)
    assert affine([]).tolist() == [0.0, 0.0]


def test_equal_blocks_tell_what_bytes_cost_altogether() -> None:
    per_block_s, per_byte_s = affine(passages([1_000_000] * 64))
    assert per_block_s + 1_000_000 * per_byte_s == pytest.approx(PER_BLOCK_S + 1_000_000 * PER_BYTE_S)
    assert min(per_block_s, per_byte_s) >= 0


def test_two_configs_tell_a_block_from_its_bytes() -> None:
    costs = Costs()
    for config, size in ((COARSE, 4_000_000), (FINE, 500_000)):
        made = passages([size] * 40)
        costs.add(config, totals(made), affine(made))
    assert costs.per_block_s == pytest.approx(PER_BLOCK_S)
    assert costs.per_byte_s == pytest.approx(PER_BYTE_S)


def test_one_config_alone_leaves_a_block_its_nominal_cost() -> None:
    costs, made = Costs(), passages([1_000_000] * 64)
    costs.add(COARSE, totals(made), np.array([0.0, 0.0]))
    assert costs.per_block_s == NOMINAL_S
    assert costs.per_block_s + 1_000_000 * costs.per_byte_s == pytest.approx(PER_BLOCK_S + 1_000_000 * PER_BYTE_S)


def test_a_link_that_changes_is_learnt_anew() -> None:
    costs = Costs()
    for config, size, slower in ((COARSE, 4_000_000, 1.0), (FINE, 500_000, 1.0), (COARSE, 4_000_000, 3.0)):
        made = passages([size] * 40, slower=slower)
        costs.add(config, totals(made), affine(made))
    per_coarse_byte_s = costs.per_byte_s + costs.per_block_s / 4_000_000
    assert per_coarse_byte_s == pytest.approx(3 * PER_BYTE_S + PER_BLOCK_S / 4_000_000)
