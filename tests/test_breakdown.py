"""Where a step goes, beside what is counted by hand."""

import pytest

from autobyte.breakdown import Breakdown, breakdown, mean


def test_a_step_is_compute_exposed_communication_and_idle_time() -> None:
    """Blocks travel from 2 to 6, and two from 7 to 9; the rank waits from 5 to 6 and from 8 to 10."""
    part = breakdown((0, 12), [(0, 3), (3, 5), (6, 8)], [(5, 6), (8, 10)], [(2, 6), (7, 9), (7.5, 8.5)])
    assert (part.step_s, part.compute_s, part.exposed_s, part.idle_s) == (12, 7, 3, 2)
    assert (part.communication_s, part.overlapped_s) == (6, 4)
    assert part.overlap == pytest.approx(4 / 6)


def test_what_lies_beyond_the_step_does_not_count() -> None:
    part = breakdown((10, 20), [(5, 12), (19, 25)], [(12, 13), (0, 4)], [(8, 14), (30, 40)])
    assert (part.step_s, part.compute_s, part.exposed_s, part.idle_s) == (10, 3, 1, 6)
    assert (part.communication_s, part.overlapped_s) == (4, 3)


def test_without_communication_there_is_no_overlap() -> None:
    part = breakdown((0, 1), [(0, 1)], [], [])
    assert part.overlap is None
    assert Breakdown.from_json(part.to_json(), step_s=1) == part


def test_a_mean_is_weighed_by_time() -> None:
    parts = [Breakdown(1, 0.5, 0.25, 0.5, 0.25), Breakdown(3, 1.5, 0.25, 1.5, 1.25)]
    assert mean(parts) == Breakdown(2, 1, 0.25, 1, 0.75)
    assert mean(parts).overlap == 0.75


def test_json_is_in_milliseconds_and_comes_back() -> None:
    part = Breakdown(0.02, 0.01, 0.005, 0.008, 0.002)
    data = part.to_json()
    assert data["exposed_communication_ms"] == pytest.approx(5)
    assert data["idle_ms"] == pytest.approx(5)
    again = Breakdown.from_json(data, step_s=0.02)
    assert again.overlapped_s == pytest.approx(0.002)
    with pytest.raises(KeyError):
        Breakdown.from_json({}, step_s=1)
