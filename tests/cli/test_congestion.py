"""`autobyte congestion`: a small training, judged, adapted and compared; and bad input, a line each."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from autobyte.cli import run
from autobyte.congestion.datapath.measure import Measured
from autobyte.congestion.stored import digest, load_policy

SMALL = ("--mode", "mixed", "--iterations", "2", "--links", "8")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer steps to judge by, and in an update."""
    monkeypatch.setattr("autobyte.congestion.record.UNSEEN", 3)
    monkeypatch.setattr("autobyte.congestion.adapt.STEPS", 16)
    monkeypatch.setattr("autobyte.congestion.evaluate.serve.__kwdefaults__", {
        "links": 2, "steps": 20, "settled": 10, "seed": 0
    })  # fmt: skip


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    capsys.readouterr()
    assert run(["congestion", *words, "--json"]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def test_train_evaluate_and_adapt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights, adapted = tmp_path / "mocc.npz", tmp_path / "adapted.npz"
    about = shown(capsys, "train", "--out", str(weights), *SMALL, "--seed", "3")
    assert json.loads(weights.with_suffix(".json").read_text()) == about | {"digest": digest(load_policy(weights))}
    assert about["recipe"]["environment_steps"] == 2 * 8 * 128
    assert set(about["scores"]) == {"paper", "paper-test"}
    assert [path.name for path in tmp_path.iterdir() if "half" in path.name] == []

    judged = shown(capsys, "evaluate", "--weights", str(weights), "--objective", "0.1,0.1,0.8", "--links", "2")
    assert [one["objective"] for one in judged["objectives"]] == [[0.1, 0.1, 0.8]]
    assert 0 <= judged["objectives"][0]["loss"] < 1

    words = ("adapt", "--weights", str(weights), "--objective", "0.7,0.2,0.1", "--updates", "1")
    moved = shown(capsys, *words, "--out", str(adapted))
    assert moved["from"] == digest(load_policy(weights)) != digest(load_policy(adapted))
    assert set(moved["rewards"]) == {"new", "old"}
    assert moved["adapted_to"] == [[0.7, 0.2, 0.1]]

    again = ("adapt", "--weights", str(adapted), "--objective", "0.55,0.3,0.15", "--updates", "1")
    once_more = shown(capsys, *again, "--out", str(adapted))  # the first adaptation is one of the old ones now
    assert once_more["adapted_to"] == [[0.7, 0.2, 0.1], [0.55, 0.3, 0.15]]
    assert (moved["pool"], once_more["pool"]) == (35, 36)  # 0.7, 0.2, 0.1 is a landmark, and was new
    adapted.with_suffix(".json").unlink()
    assert run(["congestion", *again, "--out", str(adapted), "--no-replay"]) == 0
    told = capsys.readouterr()
    assert "old objectives" in told.out
    assert f"what {adapted} was adapted to before is not among the old objectives" in told.err


def test_bench_runs_each_on_the_link(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("bench", "--rate", "8Mbit", "--delay", "25ms", "--loss", "1%", "--seconds", "6s", "--simulated")
    data = shown(capsys, *words, "--algorithms", "cubic,bbr,mocc", "--objective", "0.8,0.1,0.1")
    assert "loss_error" not in data["runs"][0]
    twice = shown(capsys, *words, "--algorithms", "cubic", "--seeds", "2")["runs"][0]
    assert twice["utilisation"] == pytest.approx(data["runs"][0]["utilisation"], rel=0.5)
    assert twice["utilisation_error"] > 0
    names = [one["algorithm"] for one in data["runs"]]
    rates = {one["algorithm"]: one["bytes_per_s"] for one in data["runs"]}
    assert names == ["cubic", "bbr", "mocc"]
    assert rates["cubic"] < rates["bbr"] < 1e6
    assert data["runs"][2]["objective"] == [0.8, 0.1, 0.1]
    assert run(["congestion", *words, "--algorithms", "vegas,mocc"]) == 0
    table = capsys.readouterr().out
    assert table.count("mocc") == 3
    assert "⟨0.1, 0.8, 0.1⟩" in table


def test_bench_measures_beside_the_simulation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("bench", "--rate", "4Mbit", "--delay", "10ms", "--seconds", "1s")
    for limit in ("LATE", "MISSED"):
        monkeypatch.setattr(f"autobyte.congestion.datapath.beside.{limit}", 1e9)  # however busy this machine is
    (row,) = shown(capsys, *words, "--algorithms", "bbr")["runs"]
    assert row["p99_s"] >= 0.99 * row["round_trip_s"]
    assert 0 < row["measured"]["utilisation"] <= 1.05
    assert row["measured"]["others_cores"] >= 0
    monkeypatch.setattr("autobyte.congestion.datapath.beside.LATE", 0.0)
    monkeypatch.setattr("autobyte.congestion.datapath.beside.TRIES", 1)
    assert run(["congestion", *words, "--algorithms", "bbr"]) == 2
    assert "never came to it: this machine is too slow or too busy for this link" in capsys.readouterr().err
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert run(["congestion", *words, "--algorithms", "kernel-cubic"]) == 2
    assert "the testbed needs root, to make network namespaces" in capsys.readouterr().err


def test_bench_keeps_what_was_measured_before_a_run_failed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_over_relay(hop: Any, control: Any, *, seconds: float, settled_s: float) -> Measured:
        missed = 0.5 if "Vegas" in type(control).__name__ else 0.0
        return Measured(1e5, 9e4, 0.2, math.nan, math.nan, 0.0, 1.0, 0.0, missed)

    def refuse(name: str) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr("autobyte.congestion.datapath.beside.run_over_relay", run_over_relay)
    words = ("bench", "--rate", "4Mbit", "--delay", "10ms", "--seconds", "1s", "--algorithms")
    data = shown(capsys, *words, "cubic,vegas")
    (row,) = data["runs"]
    assert (row["algorithm"], row["measured"]["round_trip_s"]) == ("cubic", None)
    assert "50 % never came to it" in data["left_out"]["vegas"]
    assert run(["congestion", *words, "cubic,vegas"]) == 0
    assert "vegas is left out: the relay" in capsys.readouterr().out
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("autobyte.congestion.datapath.tunnel.create", refuse)
    assert run(["congestion", *words, "kernel-bbr"]) == 2
    said = capsys.readouterr().err
    assert "the tunnel's two hosts cannot be made here: [Errno 1] Operation not permitted" in said or "pip" in said


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("bench --simulated --algorithms kernel-bbr", "the kernel's TCP is not simulated: leave it out of"),
        ("bench --rate 0bit", "rate must be positive, got '0bit'"),
        ("bench --loss 120%", "loss must be from 0 to below 100 %, got '120%'"),
        ("bench --delay 0s", "a round trip must be a positive time, got 0.0 s"),
        ("bench --queue=-1", "a queue must hold at least 0 packets, got -1"),
        ("bench --algorithms cubic,renoo", "unknown congestion control 'renoo' (known: allegro,"),
        ("bench --objective 0.8,0.1,0.2", "weights must sum to 1, got ⟨0.8, 0.1, 0.2⟩ with sum 1.1"),
        ("bench --objective nan,0.5,0.5", "weight of throughput must be a number from 0 to 1, got nan"),
        ("bench --seed=-1", "'--seed': Input should be greater than or equal to 0"),
        ("evaluate --seed=-1", "'--seed': Input should be greater than or equal to 0"),
        ("bench --seeds 0", "'--seeds': Input should be greater than or equal to 1"),
        ("bench --seconds 0s", "a run of 0 s must be longer than"),
        ("evaluate --objective 1.1,-0.1,0", "weight of latency must be a number from 0 to 1, got -0.1"),
        ("evaluate --weights nowhere.npz", "no weights at nowhere.npz: make them with `autobyte congestion train`"),
        ("evaluate --range moon", "unknown range 'moon'"),
        ("evaluate --links 0", "links must be at least 1, got 0"),
        ("train --out x.json", "--out must end in .npz, got 'x.json'"),
        ("train --out x.npz --mode all", "unknown mode 'all'"),
        ("train --out x.npz --mode individual", "mode individual learns one objective"),
        ("adapt --objective 0.8,0.1,0.1 --out x", "--out must end in .npz, got 'x'"),
        ("adapt --objective 0.8,0.1,0.1 --out x.npz --updates 0", "updates must be at least 1, got 0"),
    ],
)
def test_bad_input_is_one_line(words: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["congestion", *words.split()]) == 2
    said = capsys.readouterr().err.strip()
    assert re.search(re.escape(complaint), said), said
    assert said.count("\n") == 0
