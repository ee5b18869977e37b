"""A call that never ends is left when the time is over."""

import threading
import time
from datetime import timedelta

import pytest

from autobyte.exchange.deadline import Deadline


def test_what_ends_in_time_gives_its_result_or_raises_its_error() -> None:
    deadline = Deadline(timedelta(seconds=10))
    assert deadline.run(lambda: "said") == "said"
    with pytest.raises(KeyError, match="unknown"):
        deadline.run(lambda: {}["unknown"])


def test_a_wait_that_has_become_useless_ends_at_once() -> None:
    deadline, never, looked = Deadline(timedelta(seconds=60)), threading.Event(), []

    def check() -> None:
        looked.append(time.monotonic())
        if len(looked) == 3:
            raise ConnectionError("rank 2 has failed")

    began = time.monotonic()
    with pytest.raises(ConnectionError, match="rank 2 has failed"):
        deadline.run(never.wait, check=check)
    assert time.monotonic() - began < 10
    never.set()


def test_several_waits_share_one_deadline() -> None:
    deadline, never = Deadline(timedelta(seconds=0.3)), threading.Event()
    began = time.monotonic()
    for _ in range(3):
        with pytest.raises(TimeoutError, match=r"no answer within 0.3 s"):
            deadline.run(never.wait)
    assert 0.3 <= time.monotonic() - began < 0.8
    assert deadline.left_s == 0
    never.set()
