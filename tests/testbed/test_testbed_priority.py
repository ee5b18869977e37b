"""Real-time priority while measuring: for the ranks and, above them, for what delivers their packets."""

import os

import psutil
import pytest

from autobyte.bench import priority


def delivery() -> list[int]:
    return [p.pid for p in psutil.process_iter(["name"]) if (p.info["name"] or "").startswith(priority.DELIVERY)]


def how(pid: int) -> tuple[int, int]:
    return os.sched_getscheduler(pid), os.sched_getparam(pid).sched_priority


@pytest.mark.skipif(os.geteuid() != 0 or not delivery(), reason="needs root, and the kernel's threads in sight")
def test_packets_come_before_ranks_and_all_is_undone() -> None:
    before = [how(pid) for pid in (0, *delivery())]
    with priority.undisturbed() as raised:
        assert raised
        assert how(0) == (os.SCHED_RR, priority.PRIORITY)
        assert {how(pid) for pid in delivery()} == {(os.SCHED_RR, priority.PRIORITY + 1)}
    assert [how(pid) for pid in (0, *delivery())] == before


@pytest.mark.skipif(os.geteuid() != 0 or not delivery(), reason="needs root, and the kernel's threads in sight")
def test_what_a_killed_run_left_raised_is_undone() -> None:
    for pid in delivery():
        os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(priority.PRIORITY + 1))
    with priority.undisturbed():
        pass
    assert {how(pid) for pid in delivery()} == {(os.SCHED_OTHER, 0)}


def test_nothing_is_raised_where_the_kernels_threads_are_out_of_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority, "DELIVERY", "no such thread")
    before = how(0)
    with priority.undisturbed() as raised:
        assert not raised
        assert how(0) == before
