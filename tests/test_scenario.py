"""What changes, and when: by hand, from files, and spelled out."""

import math
from pathlib import Path

import numpy as np
import pytest

from autobyte.errors import FileError, InputError
from autobyte.job import Cluster
from autobyte.scenario import STEADY, Change, Scenario, Timeline, resized

BASE = Cluster(3, up_bytes_per_s=(100.0, 200.0, 400.0), down_bytes_per_s=(10.0,), slowdown=(1.0, 2.0, 1.0))


def rates(*changes: Change, at: int, base: Cluster = BASE) -> tuple[float, ...]:
    """Every worker's rate out at an iteration."""
    return Scenario("s", changes).cluster(base, at).up_bytes_per_s


def test_nothing_changes_before_its_time() -> None:
    change = Change(at=5, up=7.0)
    assert rates(change, at=4) == BASE.up_bytes_per_s
    assert rates(change, at=5) == rates(change, at=500) == (7.0, 7.0, 7.0)
    assert Scenario("s", (change,)).cluster(BASE, 5).down_bytes_per_s == BASE.down_bytes_per_s


def test_a_percentage_is_of_each_workers_own_rate_and_does_not_compound() -> None:
    again = Change(at=2, every=3, up="50%")
    assert rates(again, at=1) == BASE.up_bytes_per_s
    assert rates(again, at=2) == rates(again, at=100) == (50.0, 100.0, 200.0)


def test_one_worker_alone() -> None:
    cluster = Scenario("s", (Change(at=0, worker=1, up="10%", down=3.0, slowdown=4.0),)).cluster(BASE, 0)
    assert cluster.up_bytes_per_s == (100.0, 20.0, 400.0)
    assert cluster.down_bytes_per_s == (10.0, 3.0, 10.0)
    assert cluster.slowdown == (1.0, 8.0, 1.0)  # a multiple of its own


def test_the_latest_change_to_the_same_thing_counts() -> None:
    early, late = Change(at=2, up=1.0), Change(at=4, up=2.0)
    assert rates(late, early, at=9) == (2.0, 2.0, 2.0)  # the order in the file does not
    assert rates(Change(at=2, up=1.0), Change(at=2, up=2.0), at=2) == (2.0, 2.0, 2.0)  # unless they are at once
    assert rates(Change(at=2, worker=0, up=1.0), Change(at=4, up=2.0), at=4) == (2.0, 2.0, 2.0)
    assert rates(Change(at=2, up=2.0), Change(at=4, worker=0, up=1.0), at=4) == (1.0, 2.0, 2.0)


def test_changes_to_different_things_add_up() -> None:
    cluster = Scenario("s", (Change(at=1, up=5.0), Change(at=2, slowdown=3.0))).cluster(BASE, 2)
    assert cluster.up_bytes_per_s == (5.0, 5.0, 5.0)
    assert cluster.slowdown == (3.0, 6.0, 3.0)


def test_two_repeating_changes_alternate() -> None:
    dip = (Change(at=10, every=10, up=1.0), Change(at=15, every=10, up="100%"))
    slow = [i for i in range(40) if rates(*dip, at=i) == (1.0, 1.0, 1.0)]
    assert slow == [10, 11, 12, 13, 14, 20, 21, 22, 23, 24, 30, 31, 32, 33, 34]
    assert Scenario("s", dip).changes_between(0, 31) == [10, 15, 20, 25, 30]
    assert Scenario("s", dip).changes_between(11, 15) == []


def test_last_is_the_latest_time_it_happened() -> None:
    assert [Change(at=3).last(i) for i in (0, 2, 3, 9)] == [-1, -1, 3, 3]
    assert [Change(at=3, every=4).last(i) for i in (2, 3, 6, 7, 12)] == [-1, 3, 3, 7, 11]


def test_workers_join_as_copies_of_the_last_and_leave_from_the_end() -> None:
    grown, shrunk = (Scenario("s", (Change(at=1, workers=n),)).cluster(BASE, 1) for n in (5, 2))
    assert grown.up_bytes_per_s == (100.0, 200.0, 400.0, 400.0, 400.0)
    assert shrunk.slowdown == (1.0, 2.0)
    assert resized(BASE, 3) is BASE


@pytest.mark.parametrize(("servers", "expected"), [(0, (0, 0)), (3, (2, 5)), (2, (2, 2)), (1, (1, 1))])
def test_servers_stay_on_every_host_if_they_were(servers: int, expected: tuple[int, int]) -> None:
    base = Cluster(3, servers=servers)
    assert (resized(base, 2).servers, resized(base, 5).servers) == expected


def test_who_has_left_takes_his_changes_along_and_brings_them_back() -> None:
    changes = (Change(at=1, worker=2, up=7.0), Change(at=2, workers=2), Change(at=3, workers=4))
    seen = [rates(*changes, at=i) for i in range(4)]
    assert seen == [BASE.up_bytes_per_s, (100.0, 200.0, 7.0), (100.0, 200.0), (100.0, 200.0, 7.0, 400.0)]


def test_a_worker_that_there_never_is_is_told_at_once() -> None:
    scenario = Scenario("crowd", (Change(at=50, worker=4, up=1.0), Change(at=60, workers=4)))
    with pytest.raises(InputError, match=r"^scenario 'crowd': no worker 4 among 4$"):
        scenario.cluster(BASE, 0)
    Scenario("crowd", (Change(at=50, worker=3, up=1.0), Change(at=60, workers=4))).cluster(BASE, 50)


def test_rates_may_be_written_as_people_do() -> None:
    assert Change(at=0, up="10Gbit", down="inf") == Change(at=0, up=1.25e9, down=math.inf)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"at": -1}, "at must be a whole number of at least 0, got -1"),
        ({"at": 1.5}, "at must be a whole number of at least 0, got 1.5"),
        ({"at": True}, "at must be a whole number of at least 0, got True"),
        ({"every": 0}, "every must be a whole number of at least 1, got 0"),
        ({"worker": -1}, "worker must be a whole number of at least 0, got -1"),
        ({"workers": 0}, "workers must be a whole number of at least 1, got 0"),
        ({"slowdown": 0.0}, "slowdown must be a positive number, got 0.0"),
        ({"slowdown": math.nan}, "slowdown must be a positive number, got nan"),
        ({"slowdown": math.inf}, "slowdown must be a positive number, got inf"),
        ({"slowdown": "2"}, "slowdown must be a positive number, got '2'"),
        ({"up": 0.0}, "bandwidth must be positive, got '0.0'"),
        ({"down": -1.0}, "bandwidth must be positive, got '-1.0'"),
        ({"up": math.nan}, "bandwidth must be positive, got 'nan'"),
        ({"up": "0%"}, "bandwidth must be positive, got '0%'"),
        ({"up": "nan%"}, "bandwidth must be positive, got 'nan%'"),
        ({"up": "half%"}, "cannot read bandwidth 'half%'; write it like 10Gbit or 50%"),
        ({"up": "10"}, "cannot read bandwidth '10'; write it like 10Gbit or 1.25GB/s"),
    ],
)
def test_a_change_that_cannot_be_is_told_why(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        Change(**({"at": 0} | wrong))


@pytest.fixture
def write(tmp_path: Path):
    def to(text: str) -> Path:
        path = tmp_path / "dip.toml"
        path.write_text(text)
        return path

    return to


def test_a_file_says_it_all(write) -> None:
    path = write("""
        schema = 1
        name = "a dip, then a straggler"
        [[change]]
        at = 20
        every = 40
        bandwidth = "3Gbit"
        down = "50%"
        [[change]]
        at = 30
        worker = 1
        slowdown = 2
        workers = 4
    """)
    expected = (
        Change(at=20, every=40, up=3.75e8, down="50%"),
        Change(at=30, worker=1, slowdown=2, workers=4),
    )
    assert Scenario.load(path) == Scenario.load(str(path)) == Scenario("a dip, then a straggler", expected)


def test_a_file_without_a_name_is_called_after_itself(write) -> None:
    assert Scenario.load(write("[[change]]\nat = 1\nslowdown = 2")).name == "dip"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", InputError, "scenario {} changes nothing: it needs at least one [[change]]"),
        ("name = 'x", FileError, "cannot read scenario {}: "),
        ("schema = 2\nnew = 1", FileError, "scenario {} has schema 2; this version reads 1"),
        ("nmae = 'x'", InputError, "scenario {}: unknown key 'nmae'; did you mean 'name'?"),
        ("[[changes]]\nat = 1", InputError, "scenario {}: unknown key 'changes'; did you mean 'change'?"),
        ("[change]\nat = 1", InputError, "scenario {}: every change is a table of its own, under [[change]]"),
        ("change = 5", InputError, "scenario {}: every change is a table of its own, under [[change]]"),
        ("change = [1]", InputError, "scenario {}: every change is a table of its own, under [[change]]"),
        ("[[change]]\nup = 1", InputError, "scenario {}: a [[change]] needs `at`, the iteration at which it happens"),
        ("[[change]]\nbandwith = 1", InputError, "scenario {}: unknown key 'bandwith'; did you mean 'bandwidth'?"),
        ("[[change]]\nat = 1\nbandwidth = [1]", InputError, "scenario {}: cannot read bandwidth '[1]'"),
        ("[[change]]\nat = 1\nup = '0Gbit'", InputError, "scenario {}: bandwidth must be positive, got '0Gbit'"),
        ("[[change]]\nat=1\nslowdown = nan", InputError, "scenario {}: slowdown must be a positive number, got nan"),
        ("[[change]]\nat = 1\nworker = 2", InputError, "scenario {}: the [[change]] at 1 changes nothing: give it"),
        ("[[change]]\nat = '1'", InputError, "scenario {}: at must be a whole number of at least 0, got '1'"),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(write, text: str, error: type[Exception], message: str) -> None:
    path = write(text)
    with pytest.raises(error) as caught:
        Scenario.load(path)
    assert str(caught.value).startswith(message.format(path))
    assert "\n" not in str(caught.value)
    assert path.read_text() == text


def test_a_file_that_is_absent_or_not_text(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(FileError, match=f"^cannot read scenario {path}: "):
            Scenario.load(path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match=r"cannot read scenario .*binary.toml: 'utf-8' codec"):
        Scenario.load(tmp_path / "binary.toml")


def test_a_timeline_is_the_cluster_at_every_iteration() -> None:
    pulse = (Change(at=4, every=2, slowdown=3.0), Change(at=5, every=2, slowdown=1.0))
    scenario = Scenario("s", (Change(at=3, worker=0, up="50%"), *pulse))
    timeline = Timeline.of(BASE, scenario, first=2, iterations=5)
    assert timeline.up_bytes_per_s.tolist() == [[100, 200, 400]] + [[50, 200, 400]] * 4
    assert timeline.slowdown.tolist() == [[1, 2, 1], [1, 2, 1], [3, 6, 3], [1, 2, 1], [3, 6, 3]]
    assert timeline.down_bytes_per_s.tolist() == [[10, 10, 10]] * 5


def test_a_steady_timeline_repeats_the_cluster() -> None:
    timeline = Timeline.of(BASE, STEADY, first=7, iterations=2)
    assert np.array_equal(timeline.up_bytes_per_s, [BASE.up_bytes_per_s] * 2)
    assert np.array_equal(timeline.slowdown, [BASE.slowdown] * 2)


def test_workers_may_change_at_the_end_of_a_timeline_and_not_before() -> None:
    scenario = Scenario("growth", (Change(at=4, workers=5),))
    assert Timeline.of(BASE, scenario, first=2, iterations=3).up_bytes_per_s.shape == (3, 3)
    assert Timeline.of(BASE, scenario, first=4, iterations=2).up_bytes_per_s.shape == (2, 5)
    with pytest.raises(InputError, match=r"^scenario 'growth' changes the number of workers within one simulation$"):
        Timeline.of(BASE, scenario, first=2, iterations=4)
