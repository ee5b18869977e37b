"""Auto: candidates are measured, the close ones again, the fastest stays; a change calls for another round."""

from jobs import make_job

from autobyte.config import Config
from autobyte.job import Job
from autobyte.simulator.choose import shortlist
from autobyte.torch.tuning.audition import AGAIN, FINALISTS, Audition

TRULY_S = {"ddp": 1.0, "bytescheduler": 0.9}  # others take 1.2


def truly_s(config: Config) -> float:
    return TRULY_S.get(config.policy, 1.2)


def hold(audition: Audition, job: Job, config: Config, windows: int, factor: float = 1.0) -> list[Config]:
    heard = []
    for _ in range(windows):
        config = audition.choose(job, config, factor * truly_s(config))
        heard.append(config)
    return heard


def test_candidates_are_heard_once_those_that_are_close_again_and_the_fastest_stays() -> None:
    job, audition = make_job(500_000, 2_000_000, 4_000_000), Audition()
    wanted = shortlist(job)
    assert wanted[-1].policy == "ddp"
    assert len(set(wanted)) == len(wanted)
    close = [config for config in wanted if truly_s(config) == 0.9][:FINALISTS]
    assert len(close) > 1
    first = audition.choose(job, Config(1, 1), None)
    heard = [first, *hold(audition, job, first, len(wanted) + AGAIN * len(close) + 2)]
    assert heard[: len(wanted)] == wanted
    assert heard[len(wanted) : -3] == AGAIN * close
    assert heard[-3:] == [min(wanted, key=truly_s)] * 3


def test_one_lucky_window_does_not_decide() -> None:
    job, audition = make_job(500_000, 2_000_000, 4_000_000), Audition()
    wanted = shortlist(job)
    config = audition.choose(job, Config(1, 1), None)
    lucky, steady = [config for config in wanted if truly_s(config) == 0.9][:2]
    windows = {lucky: [0.85, 0.95, 0.95], steady: [0.88, 0.88, 0.88]}
    for _ in range(len(wanted) + AGAIN * len(windows)):
        last = windows[config].pop(0) if windows.get(config) else 1.2
        config = audition.choose(job, config, last)
    assert config == steady


def test_a_change_calls_for_another_round() -> None:
    job, audition = make_job(500_000, 2_000_000, 4_000_000), Audition()
    wanted = shortlist(job)
    last = hold(audition, job, audition.choose(job, Config(1, 1), None), len(wanted) + AGAIN * FINALISTS)[-1]
    assert hold(audition, job, last, 1, factor=1.5) == [last]  # once may be noise
    assert hold(audition, job, last, 1, factor=1.5) == wanted[:1]


def test_noise_does_not() -> None:
    job, audition = make_job(500_000, 2_000_000, 4_000_000), Audition()
    last = hold(audition, job, audition.choose(job, Config(1, 1), None), len(shortlist(job)) + AGAIN * FINALISTS)[-1]
    for factor in (1.5, 1.0, 1.5, 0.95, 1.05, 1.09):
        assert hold(audition, job, last, 1, factor=factor) == [last]
