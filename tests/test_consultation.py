"""A tuner in its own thread: late, hanging, failing, thinking on; nobody waits for it longer than agreed."""

import logging
import threading
import time

import pytest

from autobyte.config import Config, Space
from autobyte.consultation import BACKLOG
from autobyte.trace import Measurement
from autobyte.tuners import Tuner
from autobyte.tuning import Tuning

DEFAULT, A, B = (Config(size, size) for size in (100, 200, 300))
SPACE = Space((100, 1600), (1.0, 4.0), DEFAULT)


class Slow(Tuner):
    """Asks for A, then B, then A …; before it answers, or while it works, it waits at a gate."""

    def __init__(self, *, at: str) -> None:
        self._at = at
        self.gate = threading.Event()
        self.told: list[int] = []
        self.threads: set[int] = set()

    def _wait(self, where: str) -> None:
        self.threads.add(threading.get_ident())
        if where == self._at:
            self.gate.wait(30)

    def tell(self, measurement: Measurement) -> None:
        self.told.append(measurement.iteration)
        self._wait("tell")

    def ask(self) -> Config:
        self._wait("ask")
        return (B, A)[len(self.told) % 2]

    def work(self) -> None:
        self._wait("work")


def window(number: int, config: Config = DEFAULT) -> Measurement:
    return Measurement(config, number, (1.0, 1.0))


@pytest.mark.parametrize("at", ["tell", "ask", "work"])
def test_a_tuner_that_hangs_holds_nobody_up(at: str, caplog: pytest.LogCaptureFixture) -> None:
    tuner = Slow(at=at)
    tuning = Tuning(tuner, SPACE, patience_s=0.05)
    began_s = time.monotonic()
    with caplog.at_level(logging.WARNING):
        configs = [tuning.observe(window(number)) for number in range(4)]
    assert time.monotonic() - began_s < 2
    assert configs == ([A] if at == "work" else [DEFAULT]) + [DEFAULT] * 3
    assert len(caplog.messages) == 1
    assert "training goes on without it" in caplog.messages[0]
    tuner.gate.set()
    tuning.close()


def test_an_answer_that_comes_late_counts_for_the_next_decision() -> None:
    tuner = Slow(at="ask")
    tuning = Tuning(tuner, SPACE, patience_s=0.05)
    assert tuning.observe(window(0)) == DEFAULT
    tuner.gate.set()
    while tuning._consultation._said.empty():  # it says A now, to nobody
        time.sleep(0.001)
    tuner.gate.clear()
    assert tuning.observe(window(1)) == A
    tuner.gate.set()
    tuning.close()


def test_a_tuner_catches_up_with_what_it_missed_and_the_oldest_is_forgotten() -> None:
    tuner = Slow(at="work")
    tuning = Tuning(tuner, SPACE, patience_s=0.0)
    last = BACKLOG + 10
    for number in range(last):
        tuning.observe(window(number))
        while not tuner.told:
            time.sleep(0.001)
    tuner.gate.set()
    while last - 1 not in tuner.told:
        time.sleep(0.001)
    assert tuner.told[0] == 0
    assert tuner.told[1:] == list(range(last - BACKLOG, last))
    tuning.close()


def test_what_it_works_out_costs_cpu_time_of_the_next_decision() -> None:
    class Busy(Slow):
        def work(self) -> None:
            until_s = time.thread_time() + 0.05
            while time.thread_time() < until_s:
                pass

    tuning = Tuning(Busy(at=""), SPACE, patience_s=30)
    for number in range(2):
        tuning.observe(window(number))
    first, second = tuning.decisions
    assert first.cpu_s < 0.04
    assert second.cpu_s >= 0.05
    tuning.close()


def test_one_thread_calls_a_tuner_and_ends_with_it() -> None:
    tuner = Slow(at="")
    tuning = Tuning(tuner, SPACE)
    for number in range(3):
        tuning.observe(window(number))
    (thread,) = tuner.threads
    assert thread != threading.get_ident()
    tuning.close()
    for _ in range(1000):
        if thread not in {other.ident for other in threading.enumerate()}:
            break
        time.sleep(0.01)
    else:
        pytest.fail("the thread goes on")
    assert tuning.observe(window(3)) == DEFAULT  # and the loop without it


def test_what_fails_at_work_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Slow):
        def work(self) -> None:
            raise RuntimeError("work")

    tuning = Tuning(Failing(at=""), SPACE, patience_s=30.0)
    configs, began_s = [], time.monotonic()
    with caplog.at_level(logging.ERROR):
        for number in range(3):
            configs.append(tuning.observe(window(number)))
            time.sleep(0.1)  # it has failed by now
    assert configs == [A, DEFAULT, DEFAULT]
    assert time.monotonic() - began_s < 10  # nobody waits for who is gone
    assert [decision.failure for decision in tuning.decisions] == ["", "RuntimeError: work", ""]


def test_a_long_run_is_not_remembered_for_ever() -> None:
    tuning = Tuning(Slow(at=""), SPACE)
    for number in range(400):
        tuning.observe(window(number))
    assert len(tuning.decisions) == 256
    tuning.close()
