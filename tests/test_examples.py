"""Every example does what it says."""

import contextlib
import importlib.util
import io
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from beds import needs_namespaces
from clusters import WITH_MXNET
from loops import IMPORTS
from optuna.trial import TrialState
from ranks import on_ranks

from autobyte.cli import run
from autobyte.cli.options import make_job
from autobyte.scenario import Scenario
from autobyte.testing import TunerContract
from autobyte.torch.profiling.source import load_factory
from autobyte.tuners import TUNERS

EXAMPLES = Path(__file__).parent.parent / "examples"
needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)
CARRIED = ["--autobyte", "--engine", "kvstore"]


def test_a_tuner_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "--model", "alexnet", "--plugin", str(EXAMPLES / "my_tuner.py"), "--budget", "12"]
    assert run([*words, "--tuners", "default,doubling", "--seeds", "1", "--json"]) == 0
    default, mine = json.loads(capsys.readouterr().out)["tuners"]
    assert mine["samples_per_s"] > default["samples_per_s"]
    source = (EXAMPLES / "my_tuner.py").read_text().split("class ")[1]
    assert len(source.splitlines()) <= 20


def test_a_study_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commands, one after the other: what the first has tried is there for the second."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    monkeypatch.setenv("SHARED_STUDY", url)
    words = ["compare", "--model", "alexnet", "--plugin", str(EXAMPLES / "shared_study.py"), "--budget", "4"]
    for windows in (4, 8):
        assert run([*words, "--tuners", "shared", "--seeds", "1"]) == 0
        study = optuna.load_study(study_name="alexnet on eight hosts", storage=url)
        assert len(study.get_trials(states=[TrialState.COMPLETE])) == windows


def test_it_keeps_the_contract() -> None:
    run(["compare", "--model", "alexnet", "--plugin", str(EXAMPLES / "my_tuner.py"), "--budget", "0"])
    contract = type("Contract", (TunerContract,), {"tuner": TUNERS["doubling"]})()
    for name in dir(contract):
        if name.startswith("test_"):
            getattr(contract, name)()


@pytest.mark.parametrize("file", sorted((EXAMPLES / "scenarios").glob("*.toml")), ids=lambda file: file.stem)
def test_scenarios_change_something_within_200_iterations(file: Path) -> None:
    """Every change is one to the job that the file's command names."""
    scenario, text = Scenario.load(file), file.read_text()
    words = next(line for line in text.splitlines() if "--model" in line).split()
    given = dict(zip(words[3::2], words[4::2], strict=True))
    assert given["--scenario"] == f"examples/scenarios/{file.name}"
    arch, rate = given.get("--arch", "allreduce"), given.get("--bandwidth", "10Gbit")
    base = make_job(given["--model"], arch=arch, workers=int(given.get("--workers", 8)), bandwidth=rate).cluster
    assert scenario.changes_between(1, 200)
    for at in scenario.changes_between(1, 200):
        assert scenario.cluster(base, at) != scenario.cluster(base, at - 1)


def says(*words: str) -> str:
    """What rank 0 of an example prints, which is called on two ranks as torchrun calls it."""
    torchrun = {"LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}
    return on_ranks(_run, 2, *words, timeout_s=200, environ=torchrun, init=False, imports=IMPORTS)[0]


def _run(_rank: int, *words: str) -> str:
    sys.argv = [str(EXAMPLES / words[0]), *words[1:]]
    sys.path.insert(0, str(EXAMPLES))  # as Python does for a script
    with contextlib.redirect_stdout(io.StringIO()) as said:
        runpy.run_path(sys.argv[0], run_name="__main__")
    return said.getvalue()


def test_digits_are_learned_alike_with_ddp_and_autobyte() -> None:
    """The README's command, and the same parameters to the bit: so the same images are right."""
    right = {}
    for how in ("--ddp", "--autobyte"):
        said = says("train_digits.py", how, "--epochs", "3")
        name, right[how] = re.search(r"^(\w+), 2 ranks: ([\d.]+)% of the test images right", said).groups()
        assert name == {"--ddp": "DDP", "--autobyte": "AutoByte"}[how]
    assert right["--autobyte"] == right["--ddp"]
    assert float(right["--autobyte"]) > 90


TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ON_HOSTS = ("autobyte", "testbed", "run", "--hosts", "2", "--check", "off", "--", "python")


def launched(launcher: tuple[str, ...], script: str, *words: str, **environ: str) -> str:
    """What two ranks of an example print under torchrun, or on two hosts."""
    done = subprocess.run(
        [sys.executable, "-m", *launcher, EXAMPLES / script, *words],
        check=True, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"} | environ,
    )  # fmt: skip
    return done.stdout


@WITH_MXNET
@needs_namespaces
def test_digits_are_learned_alike_by_gluon_with_and_without_autobyte() -> None:
    right = []
    for launcher, way in ((TORCHRUN, ["--plain"]), (ON_HOSTS, ["--autobyte"]), (TORCHRUN, CARRIED)):
        said = launched(launcher, "train_mxnet.py", *way)
        right += re.findall(r"(?:plain|autobyte): ([\d.]+) % of 360 new digits right", said)
    assert len(right) == 3
    assert len(set(right)) == 1, right
    assert float(right[0]) > 90


@pytest.mark.parametrize(
    ("backend", "launcher"),
    [
        ("torch", TORCHRUN),
        pytest.param("tensorflow", ON_HOSTS, marks=[needs_namespaces, needs_tensorflow]),
    ],
    ids=["torch", "tensorflow"],
)
def test_digits_are_learned_by_keras_on_two_ranks(backend: str, launcher: tuple[str, ...]) -> None:
    """In the processes that users start; tests/keras have the rest."""
    said = launched(launcher, "train_keras.py", "--autobyte", "--epochs", "3", KERAS_BACKEND=backend)
    (right,) = re.findall(r"AutoByte, 2 ranks: ([\d.]+)% of the test images right", said)
    assert float(right) > 75


@pytest.mark.parametrize(
    "words", [["accelerate"], ["trainer"], ["lightning"], ["lightning", "--fabric"]], ids="-".join
)
def test_a_gpt2_is_trained_alike_with_ddp_and_autobyte(words: list[str]) -> None:
    pytest.importorskip(words[0].replace("trainer", "transformers"))
    losses = {}
    for how in ("--ddp", "--autobyte"):
        said = says(f"train_{words[0]}.py", how, *words[1:], "--steps", "6")
        (losses[how],) = re.findall(r"^\w+, 2 ranks: loss ([\d.]+) on texts held out", said, re.MULTILINE)
    assert float(losses["--autobyte"]) == pytest.approx(float(losses["--ddp"]), abs=2e-4)
    assert float(losses["--ddp"]) < 5.0, "nothing was learned"


def test_a_rank_is_lost_and_training_ends_with_the_parameters_of_ddp(tmp_path: Path) -> None:
    """On both engines torchrun starts the ranks again, and they go on where the survivor was."""
    running = {}
    for engine in ("allreduce", "ps", "ddp"):
        words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
        words += ["--standalone", EXAMPLES / "train_elastic.py", tmp_path / engine]
        words += ["--ddp"] if engine == "ddp" else ["--engine", engine, "--die-at", "25"]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        environ["TMPDIR"] = str(tmp_path)  # where the survivor leaves what it knows of the failure
        running[engine] = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ, cwd=tmp_path
        )
    said = {engine: process.communicate(timeout=150)[0] for engine, process in running.items()}
    parameters = {name: re.findall(r"40 steps: parameters (\w+)", words) for name, words in said.items()}
    assert all(len(each) == 1 for each in parameters.values()), said
    assert parameters["allreduce"] == parameters["ps"] == parameters["ddp"]
    for engine in ("allreduce", "ps"):
        (went_on_after,) = re.findall(r"attempt 1 goes on after (\d+) steps", said[engine])
        assert int(went_on_after) in (24, 25), "the survivor's checkpoint is later than the periodic one"


def test_the_model_of_the_demo() -> None:
    made = load_factory(f"{EXAMPLES / 'small_vgg.py'}:make_model")
    assert sum(parameter.numel() for parameter in made.model.parameters()) == 10_006_180
