"""Costs of blocks and bytes, recovered from what was made with known ones."""

import numpy as np
import pytest

from autobyte.config import Config
from autobyte.exchange.tuning.costs import BESIDES_S, NOMINAL_S, BlockCosts, sent, totals
from autobyte.job import Floats
from autobyte.scheduler.runner import Passage

PER_BLOCK_S, PER_BYTE_S = 2e-3, 1e-8
COARSE, FINE = Config(4_000_000, 16_000_000), Config(500_000, 2_000_000)


def passages(sizes: list[int], *, slower: float = 1.0) -> list[Passage]:
    """Blocks four at a time: they end together, and the first seems to have taken all the time."""
    made = []
    for start in range(0, len(sizes), 4):
        together = sizes[start : start + 4]
        spent = sum(PER_BLOCK_S + nbytes * PER_BYTE_S * slower for nbytes in together)
        made += [Passage(nbytes, 0.0 if index else spent, False) for index, nbytes in enumerate(together)]
    return made


def of_ranks(made: list[Passage], *others: list[Passage]) -> Floats:
    """Three ranks that saw the same, or what others saw."""
    return np.array([totals(each, 2) for each in ([made, *others] if others else [made] * 3)])


def test_two_configs_tell_a_block_from_its_bytes() -> None:
    costs = BlockCosts()
    for config, size in ((COARSE, 4_000_000), (FINE, 500_000)):
        made = passages([size] * 40)
        costs.add(config, of_ranks(made))
    assert costs.per_block_s == pytest.approx(PER_BLOCK_S)
    assert costs.per_byte_s == pytest.approx(PER_BYTE_S)


def test_totals_are_those_of_a_step() -> None:
    made = passages([3_000_000] * 12)
    for steps in (1, 3):
        blocks, nbytes, seconds, _ = totals(made, steps)
        assert (blocks, nbytes) == (12 / steps, 36_000_000 / steps)
        assert seconds == pytest.approx(12 * (PER_BLOCK_S + 3_000_000 * PER_BYTE_S) / steps)


def test_a_block_never_costs_next_to_nothing() -> None:
    """Where the coarser config was slower: its messages are packed while nothing travels."""
    costs = BlockCosts()
    for config, size, slower in ((COARSE, 4_000_000, 1.5), (FINE, 500_000, 1.0)):
        made = passages([size] * 40, slower=slower)
        costs.add(config, of_ranks(made))
    assert costs.per_block_s == BESIDES_S
    assert PER_BYTE_S < costs.per_byte_s < 1.5 * PER_BYTE_S + PER_BLOCK_S / 500_000


def test_one_config_tells_both_if_its_blocks_travel_one_at_a_time() -> None:
    """In most steps: now and then a block waits until other ranks have it."""
    waits = np.random.default_rng(0).exponential(0.02, 200) * (np.arange(200) % 3 == 0)
    sizes = [4_000, 90_000, 400_000, 1_000_000] * 50
    made = [Passage(n, PER_BLOCK_S + n * PER_BYTE_S + wait, True) for n, wait in zip(sizes, waits, strict=True)]
    costs = BlockCosts()
    costs.add(COARSE, of_ranks(made))
    assert (costs.per_block_s, costs.assumed) == (pytest.approx(PER_BLOCK_S, rel=1e-6), False)
    assert costs.beside()[0] == BESIDES_S
    costs.add(FINE, of_ranks(made, passages([1_000_000] * 64), made))  # one rank that cannot tell is left out
    assert costs.per_block_s == pytest.approx(PER_BLOCK_S, rel=1e-6)


@pytest.mark.parametrize("sizes", [[1_000_000] * 64, [500_000, 2_000_000] * 3])
def test_blocks_too_like_in_size_or_too_few_do_not(sizes: list[int]) -> None:
    costs = BlockCosts()
    costs.add(COARSE, of_ranks([Passage(n, PER_BLOCK_S + n * PER_BYTE_S, True) for n in sizes]))
    assert (costs.per_block_s, costs.assumed) == (NOMINAL_S, True)


def test_one_config_alone_leaves_a_block_its_nominal_cost() -> None:
    costs, made = BlockCosts(), passages([1_000_000] * 64)
    costs.add(COARSE, of_ranks(made))
    assert costs.per_block_s == NOMINAL_S
    assert costs.per_block_s + 1_000_000 * costs.per_byte_s == pytest.approx(PER_BLOCK_S + 1_000_000 * PER_BYTE_S)


def test_a_link_that_changes_is_learnt_anew() -> None:
    costs = BlockCosts()
    for config, size, slower in ((COARSE, 4_000_000, 1.0), (FINE, 500_000, 1.0), (COARSE, 4_000_000, 3.0)):
        made = passages([size] * 40, slower=slower)
        costs.add(config, of_ranks(made))
    per_coarse_byte_s = costs.per_byte_s + costs.per_block_s / 4_000_000
    assert per_coarse_byte_s == pytest.approx(3 * PER_BYTE_S + PER_BLOCK_S / 4_000_000)


def test_a_link_that_fades_slowly_is_learnt_anew() -> None:
    costs = BlockCosts()
    costs.add(FINE, of_ranks(passages([500_000] * 40)))
    for n in range(12):
        costs.add(COARSE, of_ranks(passages([4_000_000] * 40, slower=1.1**n)))
    _, per_byte_s = costs.beside()
    assert per_byte_s > 2.5 * PER_BYTE_S


def test_an_order_is_made_for_the_link_as_most_windows_saw_it() -> None:
    costs = BlockCosts()
    assert costs.beside() == (0.0, 0.0)

    def add(config: Config, slower: float) -> float:
        """How much slower the link of the order is, then."""
        costs.add(config, of_ranks(passages([4_000_000] * 40, slower=slower)))
        per_block_s, per_byte_s = costs.beside()
        assert per_block_s == BESIDES_S
        return (per_block_s + 4_000_000 * per_byte_s - PER_BLOCK_S) / (4_000_000 * PER_BYTE_S)

    assert add(COARSE, 1.2) == pytest.approx(1.2)
    assert add(FINE, 1.0) == pytest.approx(1.0)
    assert add(Config(9, 9), 0.7) == pytest.approx(1.0)
    assert add(Config(8, 8), 1.1) == pytest.approx(1.0)
    assert add(Config(7, 7), 1.1) == pytest.approx(1.1)


def test_what_was_sent_is_of_a_step_and_large_blocks_alone() -> None:
    made = [Passage(8.0, 2.0, True, 8), Passage(8.0, 1.0, False, 16), Passage(1.0, 5.0, False, 17)] * 10
    every, light = sent(made, steps=10, credit_bytes=16)
    assert every.tolist() == [2, 16, 3, 8 * 8 + 8 * 16]
    assert light.tolist() == [1, 8, 2, 64]
    assert not sent([], steps=10, credit_bytes=16).any()
