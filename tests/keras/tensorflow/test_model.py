"""Keras on TensorFlow: what averaging after backward gives, with gradients that leave from within the graph."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras_ranks
import pytest

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

CHECKS = Path(__file__).parent / "checks.py"
PARITY = ("sgd_allreduce", "sgd_ps_cross", "adamw_allreduce_cross", "adamw_ps", "run_eagerly", "everything_at_once")
OTHERS = (
    "mixed_precision",
    "eager_and_tape",
    "beside_fit",
    "unusual",
    "flushed",
    "overlap",
    "held",
    "measured",
    "example",
)
WRONG = ("refusals", "wrong_in_graph", "half_way", "stopped", "killed")


def test_two_ranks_train_as_with_averaging_after_backward(tmp_path: Path) -> None:
    first, second = launched(PARITY, tmp_path)
    for found in (first, second):
        check_alike(found, PARITY)
        for name in PARITY[:-1]:
            assert found[name]["steps"] == 20, name
    logged = "; ".join(second["run_eagerly"]["log"])  # rank 0's handler gives way to that of the check
    assert "the gradient of 'embedding/embeddings' is sparse: all of its 200 elements travel" in logged
    assert "run_eagerly=True runs operations one after the other" in logged


def launched(names: Sequence[str], folder: Path) -> list[Any]:
    """What checks return, in one launch, because importing TensorFlow takes longer than most of them."""
    first, second = keras_ranks.run_checks(CHECKS, names, folder, backend="tensorflow")
    said = "".join((folder / f"rank{rank}.log").read_text()[-2000:] for rank in range(2))
    assert names[-1] in first, said
    for found in (first, second):
        for name in names:
            assert name == "killed" or not str(found[name]).startswith("raised"), f"{name}: {found[name]}"
    return [first, second]


def check_alike(found: dict[str, Any], names: Sequence[str]) -> None:
    for name in names:
        assert found[name]["apart"] <= 1e-6, f"{name}: {found[name]}"
        assert found[name]["ranks"], name


def test_what_else_two_ranks_do(tmp_path: Path) -> None:
    first, second = launched(OTHERS, tmp_path)
    for found in (first, second):
        check_alike(found, ("eager_and_tape", "beside_fit", "unusual", "mixed_precision"))
        theirs, ours = found["mixed_precision"]["scales"]
        assert ours == theirs
        assert found["beside_fit"]["waiting"] == 30
        assert not found["beside_fit"]["kept"]
        assert found["unusual"]["logs"] == [[1, 0.5], 0.5]
        assert "float8" in found["unusual"]["float8"]
        check_flushed(found["flushed"])
        for way in ("after", "crossing"):
            assert found["measured"][way]["steps"] == 20
            assert found["measured"][way]["median_s"] > 0.019, "layers sleep for so long"
        assert found["overlap"]["leaves"] > 0.08, "gradients leave while layers below compute theirs"
        assert found["overlap"]["first waits"] > 0.1, "the first layer computes before the last average is there"
        assert found["overlap"]["last waits"] > 0, "and the last one afterwards"
        assert found["held"]["left"] == [2, 1, 0] * 4, "as layers are done in a backward pass"
        assert found["held"]["averages"] == [[[1.5 + step]] * 3 for step in range(4)]
        assert found["overlap"]["lost"] == 0, "TensorFlow's threads keep their state in Python"
    assert first["flushed"]["losses"] == second["flushed"]["losses"], "MetricAverage"
    assert first["flushed"]["loaded"] == [True, True, "SGD", 22]
    assert second["flushed"]["loaded"] == [21, 22, True], "predict() takes the update that is due"
    assert first["flushed"]["report"] == ["random", "small", 2]
    assert first["flushed"]["windows"] >= 1
    crossing = first["measured"]["crossing"]
    assert 0 <= crossing["exposed_s"] < crossing["step_s"] - 0.018, "a step stands still while no layer sleeps"
    check_example(first["example"])
    assert second["example"] == []


def test_what_goes_wrong_is_told(tmp_path: Path) -> None:
    first, second = launched(WRONG, tmp_path)
    for found in (first, second):
        assert len(found["half_way"]) == 2, found["half_way"]
        assert "a step failed half-way" in found["half_way"][1]
        check_refusals(found["refusals"])
        assert found["wrong_in_graph"]["fit"] == "RuntimeError: no average for 0 today"
        assert "RuntimeError: no average for 0 today" in found["wrong_in_graph"]["own"], found["wrong_in_graph"]
    assert re.match(r"CommunicationError: rank 0, step \d+: .*no word from rank 1", first["stopped"]["fit"])
    assert re.match(r"CommunicationError: rank 1, step \d+: ", second["stopped"]["fit"])
    assert first["killed"]["said"].startswith("CommunicationError: rank 0, step")
    assert "no word from rank 1" in first["killed"]["said"]
    assert first["killed"]["after_s"] < 40


def check_flushed(found: dict[str, Any]) -> None:
    assert found["iterations"] == [10, 20, 22]
    assert found["moved"]
    assert found["restored"], "a checkpoint has the last update of its epoch"
    assert found["put back"] == []


def check_example(said: list[str]) -> None:
    """After three of six epochs; two ranks take half as many steps as one."""
    found = [re.match(r"(\w+), (\d) ranks: ([\d.]+)% of the test images right", line) for line in said]
    assert [(each[1], each[2]) for each in found if each] == [("plain", "1"), ("AutoByte", "2")]
    assert all(float(each[3]) > 75 for each in found if each), said


def check_refusals(said: dict[str, str]) -> None:
    for what, words in (
        ("not compiled", "InputError: model 'small' is not compiled"),
        ("not built", "is not built: give it an Input"),
        ("no model", "say distribute(model) with a keras.Model, got Linear"),
        ("another backend", "got Model, whose Keras is another one than is loaded now"),
        ("a layer", "with a keras.Model, got Dense"),
        ("jit", "say jit_compile=False"),
        ("engine", "engine='nccl' needs autobyte.torch"),
        ("tape", "DistributedGradientTape: "),
        ("another model", "CommunicationError: ranks [1] have a model unlike rank 0's"),
        ("compiled again", "compile() was called after distribute()"),
        ("thawed late", "was added after the model was wrapped"),
        ("own optimizer", "InputError: train_step did not use model.optimizer"),
        ("thawed", "was added after the model was wrapped"),
        ("applied twice", "InputError: cross_step=True: train_step applies gradients more than once"),
        ("another optimizer", "InputError: train_step applies gradients with self.other beside model.optimizer"),
        ("no variable", "InputError: tape.gradient(): averages are of variables, got EagerTensor"),
    ):
        assert words in said[what], f"{what}: {said[what]}"
