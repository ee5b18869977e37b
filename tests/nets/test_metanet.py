"""The network's two parts, its file, and the same answers on another backend."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from nets.small import fitted, groups

from autobyte.config import Space
from autobyte.errors import FileError, InputError, MissingExtra
from autobyte.features.runtime import Watch
from autobyte.features.vector import candidates, describe
from autobyte.job import Cluster, Job
from autobyte.models import load
from autobyte.nets import backend, metanet, stored
from autobyte.nets.forward import Forward
from autobyte.nets.lstm import lstm
from autobyte.nets.metanet import VARIANTS, MetaNet, Net
from autobyte.simulator.world import World

JOB = Job(load("vgg16"), Cluster.uniform(8, 1.25e9))
SLOW = Job(load("vgg16"), Cluster.uniform(4, 1.25e8))
GRID = Space().grid()


def predictions(net: Net) -> list[float]:
    state = Watch(JOB.model).add(World(JOB).measure(Space().default, iterations=10, warmup=2))
    return net.step_s(state.samples, describe(state), candidates(state, GRID)).tolist()


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_all_candidates_in_one_batch_are_as_each_alone(variant: str) -> None:
    net, _ = fitted(variant)
    state = Watch(JOB.model).add(World(JOB).measure(Space().default, iterations=10, warmup=2))
    code = net.encode(describe(state))
    together = net.rate(code, candidates(state, GRID))
    alone = [net.rate(code, candidates(state, [config]))[0] for config in GRID[::50]]
    assert together.shape == (304,)
    assert together[::50] == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_without_keras_it_says_what_keras_says(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, _ = fitted(variant)
    here = Forward(variant, net.scale, net.weights)
    assert predictions(here) == pytest.approx(predictions(net), rel=1e-5)
    monkeypatch.setattr(metanet, "lstm", lambda: backend.keras().layers.LSTM)  # and not torch's own
    plain = MetaNet(variant, net.scale)
    plain.weights = net.weights
    assert predictions(plain) == pytest.approx(predictions(net), rel=1e-5)


@pytest.mark.parametrize("size", [0.3, 100.0])
def test_a_layer_of_lstm_is_what_it_is_by_the_book(size: float) -> None:
    """Beside Hochreiter's gates in double precision, in Keras's order; saturated, too."""
    random, units = np.random.default_rng(5), 8
    fed = (size * random.normal(size=(3, 12, 4 * units))).astype(np.float32)
    recurrent = random.normal(size=(3, units, 4 * units)).astype(np.float32)
    state, cell, states = np.zeros((3, units)), np.zeros((3, units)), []
    for row in range(fed.shape[1]):
        gates = fed[:, row].astype(float) + np.einsum("mu,mug->mg", state, recurrent.astype(float))
        lets_in, keeps, fresh, shows = np.split(gates, 4, axis=1)
        cell = cell / (1 + np.exp(-keeps)) + np.tanh(fresh) / (1 + np.exp(-lets_in))
        state = np.tanh(cell) / (1 + np.exp(-shows))
        states.append(state)
    assert lstm(fed, recurrent) == pytest.approx(np.stack(states, axis=1), abs=2e-5)


def test_candidates_may_each_have_a_state_of_their_own() -> None:
    net, _ = fitted()
    here = Forward("improved", net.scale, net.weights)
    states = [
        Watch(JOB.model).add(World(job).measure(Space().default, iterations=10, warmup=2)) for job in (JOB, SLOW)
    ]
    codes, asked = [here.encode(describe(state)) for state in states], candidates(states[0], GRID[100:102])
    alone = [here.rate(code, asked)[place] for place, code in enumerate(codes)]
    assert here.rate(np.stack(codes), asked) == pytest.approx(alone, abs=1e-6)


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_targets_and_seconds_are_each_others_inverse(variant: str) -> None:
    net, _ = fitted(variant)
    step_s, floor_s, samples = np.array([0.1, 0.5]), np.array([0.2, 0.3]), np.array([256.0, 512.0])
    assert net.seconds(net.target(step_s, floor_s, samples), floor_s, samples) == pytest.approx(step_s, rel=1e-4)


def test_a_speed_below_zero_is_not_believed() -> None:
    net, _ = fitted("paper")
    assert (net.seconds(np.array([-1e6]), np.array([1.0]), np.array([256.0])) > 0).all()


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_a_network_is_read_back_as_it_was_and_nothing_is_unpickled(variant: str, tmp_path: Path) -> None:
    net, replay = fitted(variant)
    stored.save(net, replay, tmp_path / "net.npz", about={"what": "simulated"})
    again, replayed = stored.load(tmp_path / "net.npz")
    assert predictions(again) == predictions(net)
    assert predictions(stored.forward(tmp_path / "net.npz")[0]) == pytest.approx(predictions(net), rel=1e-5)
    assert len(replayed) == len(replay) == len(groups())
    assert np.allclose(replayed.state, replay.state, rtol=1e-3, atol=2e-3)  # float16
    assert stored.about(tmp_path / "net.npz") == {"what": "simulated"}
    with np.load(tmp_path / "net.npz", allow_pickle=False) as file:
        assert all(file[name].dtype != object for name in file.files)


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    net, replay = fitted()
    path = tmp_path / "net.npz"
    with pytest.raises(FileError, match="make them with `autobyte fit`"):
        stored.load(path)
    stored.save(net, replay, path, about={})
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    header = json.loads(arrays["header"].tobytes())

    def wrote(changed: dict[str, object], **others: object) -> Path:
        raw = np.frombuffer(json.dumps(header | changed).encode(), dtype=np.uint8)
        np.savez(path, **(arrays | {"header": raw} | others))  # type: ignore[arg-type]
        return path

    with pytest.raises(FileError, match=r"features of schema 99; this version has \d+: fit them anew"):
        stored.load(wrote({"schema": 99}))
    with pytest.raises(FileError, match="for other columns than 'improved' takes in"):
        stored.load(wrote({"choice": header["choice"] | {"static": ["workers"]}}))
    with pytest.raises(FileError, match="damaged: weights of other shapes"):
        stored.load(wrote({}, weight_000=np.zeros((1, 1))))
    with pytest.raises(FileError, match="damaged: weights of other shapes"):
        stored.forward(path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(FileError, match="holds no weights of this project, or damaged ones"):
        stored.load(path)


def test_an_unknown_variant_is_named() -> None:
    with pytest.raises(InputError, match="unknown variant of the meta-network 'papr'; did you mean 'paper'"):
        MetaNet("papr", fitted()[0].scale)


def test_a_missing_package_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    with pytest.raises(MissingExtra, match="pip install tensorflow"):
        backend.keras()
    monkeypatch.setattr(backend, "find_spec", find_spec)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(MissingExtra, match="fitting the meta-network needs keras: pip install"):
        backend.keras()


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_tensorflow_predicts_and_learns_as_torch_does(tmp_path: Path) -> None:
    net, replay = fitted()
    stored.save(net, replay, tmp_path / "net.npz", about={})
    script = Path(__file__).parent / "on_another_backend.py"
    environment = os.environ | {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, script, tmp_path / "net.npz"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["backend"] == "tensorflow"
    assert said["predicted"] == pytest.approx(predictions(net), rel=1e-4)
    assert said["losses"][-1] < said["losses"][0]


def test_importing_the_package_imports_no_keras() -> None:
    code = "import autobyte, autobyte.tuners, autobyte.cli, sys; print('keras' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
