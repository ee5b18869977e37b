"""Commands with `--gpu`: one line where there is no GPU, and what a launch that fails leaves."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from autobyte.bench import real
from autobyte.cli import run
from autobyte.cli.rig import _verdict
from autobyte.testbed import LaunchError, TestbedError
from autobyte.testbed.rig import Rig

NO_GPU = "autobyte: no GPU on this machine: nvidia-smi does not run\n"


@pytest.mark.parametrize(
    "words",
    [
        ("bench", "--gpu", "--model", "small:cnn"),
        ("doctor", "--gpu", "small:cnn"),
        ("probe", "--gpu"),
        ("calibrate", "--gpu", "--out", "never.json"),
        ("testbed", "run", "--gpu", "--", "true"),
    ],
    ids=lambda words: words[0],
)
def test_without_a_gpu_there_is_one_line(
    words: Sequence[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run([*words]) == 2
    assert capsys.readouterr() == ("", NO_GPU)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "torchvison:resnet50"), "unknown model 'torchvison:resnet50'; did you mean"),
        (("--ratio", "some"), "cannot read ratio 'some'; write it like 0.5,1,2"),
        (("--batch", "-1"), "batch must be at least 1, got -1"),
        (("--tuner", "twim"), "unknown tuner 'twim'; did you mean 'twin'?"),
        (("--policies", "ddp"), "--policies is for emulated models: leave it out, or leave out --gpu and --rehearse"),
        (("--dilate", "2"), "--dilate is for emulated models"),
        (("--size-scale", "0.5"), "--size-scale is for emulated models"),
        (("--compute", "1s"), "--compute is for emulated models"),
        (("--real-time",), "--real-time is for emulated models"),
    ],
)
def test_bad_input_is_one_line(words: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--rehearse", *words]) == 2
    assert capsys.readouterr().err.startswith(f"autobyte: {message}")


@pytest.mark.parametrize("words", [("--batch", "8"), ("--input", "8,3,64,64"), ("--ratio", "1")])
def test_what_real_models_are_given_is_not_left_aside(
    words: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *words]) == 2
    said = f"autobyte: {words[0]} is for real models: leave it out, or say --gpu or --rehearse"
    assert capsys.readouterr().err.startswith(said)


def test_one_tuner_is_for_emulated_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--tuner", "twin,metanet"]) == 2
    assert "one tuner finds the config of autobyte-tuned, not 2: twin,metanet" in capsys.readouterr().err


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """A launch that writes records and fails; without records, it fails at once."""
    rows: list[dict[str, Any]] = []

    @contextmanager
    def told(rig: Rig, *_: Any, out: Path, **more: Any) -> Iterator[Path]:
        if rows:
            out.write_text("".join(json.dumps(row) + "\n" for row in rows))
        yield out

    def launch(rig: Rig, *_: Any, **more: Any) -> None:
        raise LaunchError("rank 1 on host 1 was killed by SIGKILL", [], 137)

    monkeypatch.setattr(real, "told", told)
    monkeypatch.setattr(Rig, "run", launch)
    return rows


WORDS = ("bench", "--rehearse", "--batch", "4", "--rate", "1Gbit")


def test_what_a_launch_had_measured_before_it_failed_is_shown_and_kept(
    fails: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    facts = {"what": "rehearsal", "card": "none", "torch": "2", "model": "small:cnn", "batch": 4, "ranks": 4}
    facts |= {"rate": 1.25e8, "wire_s": 0.1, "wire_dtype": None, "arm": "compute", "scheduler": "compute"}
    fails.append(facts | {"median_s": 0.2, "host_s": 0.1})
    assert run([*WORDS, "--out", str(tmp_path / "kept")]) == 1
    out, err = capsys.readouterr()
    assert "small:cnn, batch 4 on each of 4 ranks, links of 1 Gbit/s, communication 0.50 of compute" in out
    assert "a rehearsal, which measures nothing" in out
    assert err == ("autobyte: small:cnn: rank 1 on host 1 was killed by SIGKILL; what was measured before is shown\n")
    assert len(real.read(tmp_path / "kept" / "small-cnn-1000Mbit.jsonl")) == 1
    assert run([*WORDS, "--out", str(tmp_path / "kept")]) == 2
    assert "exists already: name another folder, or remove it" in capsys.readouterr().err
    assert run([*WORDS, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["what"], told["ranks_on_card"]) == ("rehearsal", 4)
    assert told["cells"][0]["rows"][0]["step_s"] == 0.2


def test_a_launch_that_fails_at_once_is_one_line(
    fails: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*WORDS]) == 2
    assert capsys.readouterr().err == "autobyte: rank 1 on host 1 was killed by SIGKILL\n"
    assert issubclass(LaunchError, TestbedError)


@pytest.mark.parametrize(
    ("measured", "right", "end"),
    [(0.1, True, "measured: 10 % by AutoByte auto: right"), (0.02, False, "measured: 2 % by AutoByte auto: wrong"),
     (0.1, None, "measured: 10 % by AutoByte auto"), (None, None, "nothing of AutoByte's was measured")],
)  # fmt: skip
def test_doctors_verdict_is_a_line_beside_what_was_measured(
    measured: float | None, right: bool | None, end: str
) -> None:
    told = {"verdict": "gain", "expected_gain": 0.123, "measured_gain": measured, "right": right}
    line = _verdict(told | {"method": "AutoByte auto"})
    assert line == f"doctor says gain, and expects 12 % over DDP's best; {end}"
