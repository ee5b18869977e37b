"""Policies side by side: equal budgets, judged without noise; and `auto`, which may not be slower than DDP."""

import json

import numpy as np
import pytest
from small import small_job

from autobyte.bound import bound_s
from autobyte.cli import run
from autobyte.comparison import policies
from autobyte.comparison.policies import Entrant, compare_policies
from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.job import Cluster, Job, Model
from autobyte.models import load
from autobyte.scheduler.policies import POLICIES
from autobyte.scheduler.policies.ddp import BUCKETS
from autobyte.simulator.choose import MARGIN, candidates, choose
from autobyte.simulator.effects import Effects
from autobyte.simulator.steady import reference_s, step_s

JOB = Job(load("alexnet"), Cluster.uniform(4, 1.25e9))
ROW = {"name", "config", "step_s", "samples_per_s", "over_bound", "gap_closed"}
ASKED = "compare --model vgg16 --arch allreduce --workers 8 --bandwidth 10Gbit --budget 4 --seeds 2 --policies"


def test_prints_what_the_issue_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    names = "fifo,wfbp,mgwfbp,p3,bytescheduler,usbyte"
    assert run([*ASKED.split(), names, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {"job", "bound_s", "tuner", "budget", "seeds", "policies"}
    assert [row["name"] for row in answer["policies"]] == names.split(",")
    job = Job(load("vgg16"), Cluster.uniform(8, 1.25e9))
    assert answer["bound_s"] == bound_s(job)
    for row in answer["policies"]:
        assert set(row) == ROW
        assert row["step_s"] == step_s(job, Config.from_json(row["config"]))  # the truth, not what was measured
        assert row["samples_per_s"] == pytest.approx(job.samples / row["step_s"])
        assert row["over_bound"] == pytest.approx(row["step_s"] / answer["bound_s"])
    steps = {row["name"]: row["step_s"] for row in answer["policies"]}
    assert steps["usbyte"] == min(steps.values())
    assert steps["fifo"] > steps["wfbp"] > steps["mgwfbp"]


def test_who_cannot_take_part_says_so_before_anybody_has_searched(capsys: pytest.CaptureFixture[str]) -> None:
    words = ASKED.replace("allreduce", "ps").split()
    assert run([*words, "fifo,dear", "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "fifo" not in err
    assert "policy 'dear' halves all-reduces" in err


def test_the_ten_policies_of_the_family_take_part_on_a_ring() -> None:
    names = ["fifo", "wfbp", "ddp", "horovod", "mgwfbp", "p3", "tictac", "bytescheduler", "usbyte", "dear"]
    rows = compare_policies(JOB, names, budget=2, seeds=1)["policies"]
    assert [row["name"] for row in rows] == names
    assert all(row["over_bound"] >= 1 for row in rows)


def test_prints_a_table_and_keeps_the_numbers(capsys: pytest.CaptureFixture[str], tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    words = [*ASKED.split(), "ddp,bytescheduler:fusion=1,auto", "--out", str(tmp_path / "out")]
    assert run(words) == 0
    out = capsys.readouterr().out
    assert "bytescheduler:fusion=1" in out
    assert "auto: usbyte" in out
    kept = json.loads((tmp_path / "out" / "policies.json").read_text())
    assert [row["name"] for row in kept["policies"]] == ["ddp", "bytescheduler:fusion=1", "auto"]
    assert run(words) == 2  # nothing is overwritten
    assert "choose another folder" in capsys.readouterr().err


def test_every_policy_has_the_same_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    windows: dict[str, int] = {}

    class Counting(policies.World):
        def measure(self, config, **how):  # type: ignore[no-untyped-def]
            windows[config.policy] = windows.get(config.policy, 0) + 1
            return super().measure(config, **how)

    monkeypatch.setattr(policies, "World", Counting)
    compare_policies(JOB, ["ddp", "horovod", "usbyte"], budget=3, seeds=2)
    assert windows == {"ddp": 6, "horovod": 6, "usbyte": 6}


def test_given_knobs_stay_as_they_are() -> None:
    rows = compare_policies(JOB, ["bytescheduler:fusion=1", "horovod:cycle_ms=5", "horovod"], budget=6, seeds=1)
    fixed, cycle, free = (row["config"] for row in rows["policies"])
    assert fixed["knobs"] == {"fusion": 1}
    assert cycle["knobs"] == {"cycle_ms": 5}
    assert free["policy"] == "horovod"


def test_noise_is_in_the_world_and_not_in_the_verdict() -> None:
    rows = compare_policies(JOB, ["wfbp"], budget=2, seeds=3, effects=Effects(jitter=0.2))
    assert rows["policies"][0]["step_s"] == step_s(JOB, Config.from_json(rows["policies"][0]["config"]))


@pytest.mark.parametrize(
    ("names", "what"),
    [
        ("wfpb", "unknown policy 'wfpb'; did you mean 'wfbp'?"),
        ("", "policies must be at least 1, got 0"),
        ("ddp,ddp", "policy 'ddp' is named twice"),
        ("p3:fusion=1", "unknown knob of p3 'fusion'"),
        ("usbyte:fusion=yes", "cannot read 'fusion=yes' of 'usbyte:fusion=yes'; write it like fusion=1"),
        ("ddp --scenario x.toml", "--policies compares steady jobs; leave --scenario out"),
        ("usbyte --knob fusion=0", "--policies tunes every policy's own knobs, with --tune-with; leave --knob out"),
        ("ddp --retune drift", "--policies tunes every policy's own knobs, with --tune-with; leave --retune out"),
        ("ddp --before all", "--policies tunes every policy's own knobs, with --tune-with; leave --before out"),
        ("ddp,horovod --tune-with grid", "'grid' does not tune cycle_ms of 'horovod': take another tuner"),
        ("ddp --tune-with baysian", "unknown tuner 'baysian'"),
    ],
)
def test_refuses(names: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ASKED.split(), *(names.split() or [""])]) == 2
    assert what in capsys.readouterr().err


@pytest.mark.parametrize("cluster", [Cluster.uniform(8, float("inf")), Cluster(1)], ids=["infinite rate", "alone"])
def test_a_step_that_takes_no_time_is_no_yardstick(cluster: Cluster) -> None:
    idle = Model.build("idle", [(f"l{i}", [(f"w{i}", 1000)], 0.0, 0.0) for i in range(3)], batch_size=1)
    with pytest.raises(
        InputError, match=r"^a step of idle need not take any time: .*; give layers times, or links a rate$"
    ):
        compare_policies(Job(idle, cluster), ["fifo", "usbyte"], budget=2, seeds=1)


def test_auto_is_never_slower_than_ddp_at_its_best() -> None:
    rng = np.random.default_rng(5)
    for job in [*(small_job(rng, int(rng.integers(1, 20))) for _ in range(15)), JOB]:
        chosen = choose(job)
        assert step_s(job, chosen) <= reference_s(job)
        assert chosen in BUCKETS or step_s(job, chosen) < (1 - MARGIN) * reference_s(job)


def test_auto_leaves_ddp_alone_where_there_is_nothing_to_gain() -> None:
    assert choose(Job(load("vgg16"), Cluster.uniform(8, 1e12))) in BUCKETS


def test_auto_chooses_among_all_policies() -> None:
    among = candidates(JOB)
    sizes: dict[str, set[int]] = {}
    for config in (*among, *BUCKETS):
        sizes.setdefault(config.policy, set()).add(config.partition_bytes)
    assert set(sizes) == set(POLICIES.names())
    untuned = {name for name in sizes if len(sizes[name]) == 1}
    assert untuned == {"fifo", "wfbp", "mgwfbp", "tictac"}  # no size is a knob of theirs
    assert {
        config.policy for config in candidates(Job(JOB.model, Cluster.uniform(4, 1.25e9, architecture="ps")))
    } == set(POLICIES.names()) - {"ddp", "dear"}
    assert step_s(JOB, choose(JOB)) <= min(step_s(JOB, config) for config in among) * (1 + 1e-12)


def test_an_entrant_names_policy_and_knobs() -> None:
    assert Entrant("usbyte:fusion=0:published=1").policy == "usbyte"
    with pytest.raises(InputError, match="unknown policy 'usbite'"):
        Entrant("usbite")
