"""What trials may cost is a part of the time trained, beyond what DDP's buckets would have taken."""

import pytest

from autobyte.exchange.tuning.losses import LossBudget


def test_trials_wait_until_their_share_of_the_time_trained_is_there() -> None:
    budget = LossBudget(0.01)
    budget.add([0.1] * 1001, tried=False)
    assert not budget.affords(steps=1), "nobody knows what a step takes with DDP's buckets"
    budget.reference_s = 0.1
    assert budget.affords(steps=10)
    assert not budget.affords(steps=11)
    assert budget.affords(steps=10, seconds=0.99)
    assert not budget.affords(steps=10, seconds=1.01)


def test_what_is_lost_is_told_beside_ddp_and_gains_pay_for_it() -> None:
    budget = LossBudget(0.01)
    budget.reference_s = 0.1
    budget.add([0.1] * 1000, tried=False)
    budget.add([0.15] * 10, tried=True)
    assert budget.lost_s == pytest.approx(0.5)
    budget.lose(0.25)
    budget.add([0.09] * 25, tried=True)
    assert budget.lost_s == pytest.approx(0.5)
    assert budget.left_s == pytest.approx(0.01 * (100 + 1.5 + 2.25) - 0.5)


def test_an_evaluation_within_a_trial_is_not_a_loss() -> None:
    budget = LossBudget(0.01)
    budget.reference_s = 0.1
    budget.add([0.1] * 9 + [30.0], tried=True)
    assert budget.lost_s == pytest.approx(0.2)


def test_a_slow_trial_counts_whole() -> None:
    budget = LossBudget(0.01)
    budget.reference_s = 0.1
    budget.add([1.0] * 3, tried=True)
    assert budget.lost_s == pytest.approx(2.7)


def test_a_share_of_nothing_allows_nothing() -> None:
    budget = LossBudget(0.0)
    budget.reference_s = 0.1
    budget.add([0.01] * 1000, tried=True)
    assert budget.left_s > 0
    assert not budget.affords(steps=1)


def test_another_job_begins_with_nothing() -> None:
    budget = LossBudget(1.0)
    budget.reference_s = 0.1
    budget.add([0.1] * 1001, tried=False)
    budget.begin_again()
    budget.add([0.2] * 1001, tried=False)
    assert not budget.affords(steps=1)
    budget.reference_s = 0.2
    assert budget.affords(steps=1000)
