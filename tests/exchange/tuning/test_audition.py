"""Auto: candidates are measured, the close ones again, the fastest stays; a change calls for another round."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from jobs import make_job

from autobyte.config import Config
from autobyte.exchange.planning import priced
from autobyte.exchange.tuning.audition import AGAIN, FINALISTS, HOLD, KNOWN, Audition
from autobyte.job import Job
from autobyte.scheduler.policies.ddp import BUCKETS
from autobyte.simulator.choose import shortlist

TRULY_S = {"ddp": 1.0, "bytescheduler": 0.9}  # others take 1.2


def truly_s(config: Config) -> float:
    return TRULY_S.get(config.policy, 1.2)


def hold(audition: Audition, job: Job, config: Config, windows: int, factor: float = 1.0) -> list[Config]:
    heard = []
    for _ in range(windows):
        config = audition.choose(lambda: job, config, factor * truly_s(config))
        heard.append(config)
    return heard


def test_candidates_are_heard_once_those_that_are_close_again_and_the_fastest_stays() -> None:
    job, audition = make_job(500_000, 2_000_000, 4_000_000), Audition()
    wanted = shortlist(job)
    ddps = [config for config in wanted if config.policy == "ddp"]
    assert wanted[: len(ddps)] == ddps, "DDP's buckets come first"
    assert BUCKETS[0] in ddps
    assert len(set(wanted)) == len(wanted)
    close = [config for config in wanted if truly_s(config) == 0.9][:FINALISTS]
    assert len(close) > 1
    first = audition.choose(lambda: job, Config(1, 1), None)
    heard = [first, *hold(audition, job, first, len(wanted) + AGAIN * len(close) + 2)]
    assert heard[: len(wanted)] == wanted
    assert heard[len(wanted) : -3] == AGAIN * close
    assert heard[-3:] == [min(wanted, key=truly_s)] * 3


def test_one_lucky_window_does_not_decide() -> None:
    job, audition = make_job(500_000, 2_000_000, 4_000_000), Audition()
    wanted = shortlist(job)
    config = audition.choose(lambda: job, Config(1, 1), None)
    lucky, steady = [config for config in wanted if truly_s(config) == 0.9][:2]
    windows = {lucky: [0.85, 0.95, 0.95], steady: [0.88, 0.88, 0.88]}
    for _ in range(len(wanted) + AGAIN * len(windows)):
        last = windows[config].pop(0) if windows.get(config) else 1.2
        config = audition.choose(lambda: job, config, last)
    assert config == steady


@pytest.mark.parametrize("gain", [0.99, 1.01, 1.03])
def test_ddps_buckets_stay_unless_another_gains_two_percent(gain: float) -> None:
    job, audition = make_job(500_000, 2_000_000, 4_000_000), Audition()
    config = audition.choose(lambda: job, Config(1, 1), None)
    while not audition.over:
        seconds = {"ddp": 1.0 if config == BUCKETS[0] else 1.1, "bytescheduler": 1 / gain}
        config = audition.choose(lambda: job, config, seconds.get(config.policy, 1.2))
    assert (config == BUCKETS[0]) == (gain < 1.02)
    assert audition.usual_s == pytest.approx(1.0 if gain < 1.02 else 1 / gain)


def test_on_each_engine_candidates_are_heard_that_fit_it_and_the_fastest_of_all_stays() -> None:
    """By the second engine a block costs more, so others are worth measuring there; one of them wins."""
    job = make_job(500_000, 2_000_000, 4_000_000)
    dear = priced(job, bytes_per_s=1e9, per_block_s=5e-3)
    audition, config, step_s, heard = Audition(["", "host"]), Config(1, 1), None, []
    opening = []
    by_engine = {"": job, "host": dear}.__getitem__
    assert shortlist(job) != shortlist(dear)
    while not audition.over:
        config = audition.choose(partial(by_engine, config.engine), config, step_s)
        step_s = truly_s(config) * (0.95 if config.engine else 1.0)
        heard.append(config)
        opening += [config] * audition.opens
    first, there = shortlist(job), [replace(each, engine="host") for each in shortlist(dear)]
    begin = replace(min(first, key=truly_s), engine="host")
    assert heard[: len(first) + 1] == [*first, begin]
    assert opening == [begin]
    then = [each for each in there if each != begin]
    assert heard[len(first) + 1 :][: len(then)] == then
    assert heard[-1] == min(dict.fromkeys(heard), key=lambda each: truly_s(each) * (0.95 if each.engine else 1.0))
    assert heard[-1].engine == "host"


def settled(job: Job) -> tuple[Audition, Config]:
    """An audition that is over, and the winner."""
    audition = Audition()
    first = audition.choose(lambda: job, Config(1, 1), None)
    return audition, hold(audition, job, first, len(shortlist(job)) + AGAIN * FINALISTS)[-1]


@pytest.mark.parametrize("known", [0, KNOWN])
def test_a_change_that_lasts_calls_for_another_round(known: int) -> None:
    job = make_job(500_000, 2_000_000, 4_000_000)
    audition, last = settled(job)
    hold(audition, job, last, known)
    assert hold(audition, job, last, HOLD - 1, factor=1.5) == [last] * (HOLD - 1)
    assert audition.over
    assert hold(audition, job, last, 1, factor=1.5) == shortlist(job)[:1]
    assert not audition.over


@pytest.mark.parametrize(("factor", "again"), [(0.89, True), (0.91, False), (1.09, False), (1.11, True)])
def test_a_change_of_a_tenth_counts_where_steps_are_regular(factor: float, again: bool) -> None:
    job = make_job(500_000, 2_000_000, 4_000_000)
    audition, last = settled(job)
    hold(audition, job, last, KNOWN)
    hold(audition, job, last, 3 * HOLD, factor=factor)
    assert audition.over != again


def test_noise_does_not() -> None:
    job = make_job(500_000, 2_000_000, 4_000_000)
    audition, last = settled(job)
    for factor in (1.5, 1.0, 1.5, 0.95, 1.05, 1.09, *[1.5] * (HOLD - 1), 1.0):
        assert hold(audition, job, last, 1, factor=factor) == [last]
    hold(audition, job, last, 2 * (HOLD - 1) - 1, factor=1.5)
    assert audition.over  # half as long has passed already
    hold(audition, job, last, 1, factor=1.5)
    assert not audition.over


def test_a_round_that_finds_all_as_it_was_makes_the_next_wait_longer() -> None:
    job = make_job(500_000, 2_000_000, 4_000_000)
    audition, last = settled(job)
    first = hold(audition, job, last, HOLD, factor=1.5)[-1]
    assert hold(audition, job, first, len(shortlist(job)) + AGAIN * FINALISTS)[-1] == last
    hold(audition, job, last, 2 * HOLD - 1, factor=1.5)
    assert audition.over
    hold(audition, job, last, 1, factor=1.5)
    assert not audition.over


def test_the_step_of_an_earlier_training_may_have_been_another_machines() -> None:
    job = make_job(500_000, 2_000_000, 4_000_000)
    winner = min(shortlist(job), key=truly_s)
    for earlier_s, again in ((0.75, False), (1.1, False), (0.5, True)):
        audition = Audition()
        audition.settle(winner, earlier_s)
        hold(audition, job, winner, HOLD)
        assert audition.over != again


def median_s(rng: np.random.Generator, cv: float) -> float:
    """The median of eight steps of 1 s that vary."""
    return float(np.median(rng.gamma(1 / cv**2, cv**2, size=8)))


@pytest.mark.parametrize("kept", [False, True])
def test_jitter_rarely_calls_for_another_round(kept: bool) -> None:
    """Steps that vary by 25 %, in 20 trainings of 200 windows; what it was before said so 210 to 250 times."""
    job, alarms = make_job(500_000, 2_000_000, 4_000_000), 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        audition, config = settled(job)
        if kept:
            audition = Audition()
            audition.settle(config, truly_s(config) * rng.uniform(0.85, 1.15))
        for _ in range(200):
            before = audition.over
            config = audition.choose(lambda: job, config, truly_s(config) * median_s(rng, 0.25))
            alarms += before and not audition.over
    assert alarms <= 20


def test_while_the_winner_stays_nobody_asks_for_the_job() -> None:
    """It takes milliseconds of the interpreter, beside the thread that trains."""
    job, asked = make_job(500_000, 2_000_000, 4_000_000), []
    audition, winner = settled(job)
    for _ in range(3 * HOLD):
        assert audition.choose(lambda: asked.append(1) or job, winner, truly_s(winner)) == winner
    assert not asked


def test_a_round_begins_with_a_window_that_is_fresh() -> None:
    """A window of DDP's reducer shows a step, but not how long layers and blocks take."""
    job, heard = make_job(500_000, 2_000_000, 4_000_000), Audition()
    chosen = Config(1, 1, "ddp")
    heard.settle(chosen, 1.0)
    for _ in range(KNOWN):
        assert heard.choose(lambda: job, chosen, 1.0, fresh=False) == chosen
    for _ in range(HOLD):
        assert heard.over
        assert heard.choose(lambda: job, chosen, 1.5, fresh=False) == chosen
    assert not heard.over
    assert heard.left is None
    assert heard.choose(lambda: job, chosen, 1.5) == shortlist(job)[0]
    assert heard.left == len(shortlist(job)) - 1
