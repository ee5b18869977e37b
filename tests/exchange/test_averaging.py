"""Averages of NumPy arrays, by index, as a front end without `torch.nn` asks for them."""

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import Ranks, on_ranks

from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.exchange import ArraySpec, Averaging
from autobyte.exchange.averaging import AveragingSettings
from autobyte.exchange.control import CommunicationError
from autobyte.exchange.spec import check_specs, layers_of, shape_of
from autobyte.exchange.times import ArrayTimes

SPECS = [
    ArraySpec("first/kernel", "first", (30, 20), "float32"),
    ArraySpec("first/bias", "first", (20,), "float32"),
    ArraySpec("last/kernel", "last", (20, 3), "float64"),
]
SMALL = Config(400, 800)  # many blocks


def gradients(rank: int, step: int) -> list[Any]:
    rng = np.random.default_rng([rank, step])
    return [rng.normal(size=spec.shape).astype(spec.dtype) for spec in SPECS]


def step_of(averaging: Averaging, mine: list[Any]) -> list[Any]:
    """A step whose last gradient is complete first."""
    averaging.begin()
    averaging.loss()
    for place in reversed(range(len(mine))):
        averaging.ready(place, mine[place])
    averaging.end()
    return [averaging.wait(place) for place in range(len(mine))]


def farthest(rank: int, settings: dict[str, Any], folder: str) -> dict[str, Any]:
    keep = None if settings.get("tuner") is None else Path(folder) / "kept.toml"
    named = [spec._replace(name=f"{spec.name}_{rank}") for spec in SPECS]  # as Keras numbers layers by process
    averaging = Averaging("arrays", named, AveragingSettings(**settings, keep=keep, diagnostics=None))
    worst, steps, first, lie = 0.0, 60 if keep else 20, [], set()
    for step in range(steps):
        averages = step_of(averaging, gradients(rank, step))
        wanted = [(a + b) / 2 for a, b in zip(gradients(0, step), gradients(1, step), strict=True)]
        worst = max(worst, *(float(np.abs(a - b).max()) for a, b in zip(averages, wanted, strict=True)))
        assert [a.shape for a in averages] == [spec.shape for spec in SPECS]
        first = first or [averages[0][:1], averages[0][:1].copy()]
        lie.add(averages[0].ctypes.data)
        del averages
    assert np.array_equal(*first), "an average stays as it is while a part of it is held"
    assert len(lie) == 2, "those that nobody holds are overwritten"
    with pytest.raises(InputError, match="has 600 elements, and its gradient has 1"):
        averaging.ready(0, np.zeros(1, np.float32))
    report = averaging.report()
    averaging.close()
    averaging.close()
    return {"worst": worst, "trials": len(report.trials), "kept": bool(keep and keep.exists())}


@pytest.mark.parametrize(
    "settings",
    [{"config": SMALL}, {"config": SMALL, "engine": "ps"}, {"tuner": "random", "budget": 2}],
    ids=["allreduce", "ps", "tuned"],
)
def test_averages_are_means_over_ranks(settings: dict[str, Any], tmp_path: Path) -> None:
    first, second = on_ranks(farthest, 2, settings, str(tmp_path))
    assert max(first["worst"], second["worst"]) <= 1e-7
    if "tuner" in settings:
        assert first["trials"] >= 1
        assert first["kept"]


def lent(rank: int, settings: dict[str, Any]) -> float:
    """How far averages of gradients that are lent in some steps, and missing in others, are from means."""
    averaging = Averaging("arrays", SPECS, AveragingSettings(**settings, keep=None, diagnostics=None))
    with pytest.raises(InputError, match=r"'first/kernel' cannot be lent: it must be contiguous and float32"):
        averaging.ready(0, np.zeros((20, 30), np.float32).T, lent=True)
    with pytest.raises(InputError, match=r"'last/kernel' cannot be lent: it must be contiguous and float64"):
        averaging.ready(2, np.zeros((20, 3), np.float32), lent=True)
    worst, kept = 0.0, []
    for step in range(12):
        mine, had = gradients(rank, step), [(step + place) % 4 > 0 for place in range(len(SPECS))]
        for place in reversed(range(len(SPECS))):
            if had[place]:
                averaging.ready(place, mine[place], lent=step % 3 > 0)
        averaging.end()
        for place in range(len(SPECS)):
            average = averaging.wait(place)
            kept.append(average)  # the next one is another
            wanted = np.mean([gradients(r, step)[place] for r in range(2)], axis=0) * had[place]
            worst = max(worst, float(np.abs(average - wanted).max()))
            if had[place]:
                assert np.shares_memory(average, mine[place]) == (step % 3 > 0)
    averaging.close()
    return worst


@pytest.mark.parametrize(
    "settings",
    [{"config": SMALL}, {"config": SMALL, "engine": "ps"}, {"config": SMALL, "wire_dtype": "fp16"}],
    ids=["allreduce", "ps", "halved"],
)
def test_lent_gradients_become_their_averages(settings: dict[str, Any]) -> None:
    assert max(on_ranks(lent, 2, settings)) <= (1e-2 if "wire_dtype" in settings else 1e-7)


def something_wrong(rank: int, what: str) -> str:
    specs = SPECS
    if what == "another model" and rank:
        specs = [*SPECS[:2], ArraySpec("last/kernel", "last", (20, 4), "float64")]
    config = Config(800, 800) if what == "another setting" and rank else SMALL
    settings = AveragingSettings(config=config, keep=None, timeout=timedelta(seconds=3), diagnostics=None)
    try:
        averaging = Averaging("arrays", specs, settings)
        mine = gradients(rank, 0)
        step_of(averaging, mine)
        if what == "twice":
            averaging.ready(0, mine[0])
            averaging.ready(0, mine[0])
        if what == "uneven":
            averaging.ready(0, mine[0])
            if rank:
                averaging.ready(1, mine[1])
            averaging.end()
        if what == "killed" and rank:
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "stopped" and rank:
            os.kill(os.getpid(), signal.SIGSTOP)
        for step in range(3):
            step_of(averaging, gradients(rank, step))
    except CommunicationError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("another model", ("have a model unlike rank 0's", "last/kernel (20, 3) float64")),
        ("another setting", ("have settings unlike rank 0's",)),
        ("twice", ("rank 0, step 1", "tensor 'first/kernel' has a second gradient")),
        ("uneven", ("rank 0, step", "tensor 'first/bias' had a gradient on 1 of 2 ranks")),
        ("killed", ("rank 0, step 1", "no word from rank 1")),
        ("stopped", ("rank 0, step 1", "tensor '", "no word from rank 1")),  # what waits, or what gloo sends
    ],
)
def test_what_goes_wrong_is_a_line_in_time(what: str, words: tuple[str, ...]) -> None:
    began_s = time.monotonic()
    ranks = Ranks(something_wrong, 2, what)
    try:
        said = ranks._outcome(0)
    finally:
        ranks.kill()
    for each in words:
        assert each in said
    assert time.monotonic() - began_s < 30


def test_specs_that_cannot_travel_are_named() -> None:
    for specs, words in (
        ([], "no trainable variable"),
        ([SPECS[0], SPECS[0]], "two variables are named 'first/kernel'"),
        ([ArraySpec("ids", "ids", (3,), "int32")], "variable 'ids' is int32"),
        ([ArraySpec("late", "late", (None, 3), "float32")], "variable 'late' has no fixed shape"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InputError, match=words):
            check_specs(specs)
    assert layers_of(SPECS) == {"first": [0, 1], "last": [2]}
    layers = shape_of("arrays", SPECS).layers
    assert [[tensor.numel for tensor in layer.tensors] for layer in layers] == [[600, 20], [60]]


def test_settings_that_contradict_each_other_are_refused() -> None:
    for settings, words in (
        ({"policy": "nothing"}, "unknown policy"),
        ({"tuner": "nothing"}, "unknown tuner"),
        ({"policy": "auto", "tuner": "random"}, "chooses its own config"),
        ({"config": "autobyte.toml"}, "config must be a Config"),
        ({"timeout": 3}, "timeout must be a timedelta"),
    ):
        with pytest.raises(InputError, match=words):
            AveragingSettings(**settings)  # type: ignore[arg-type]


def test_ranks_must_have_met() -> None:
    with pytest.raises(InputError, match="before Averaging"):
        Averaging("arrays", SPECS)


def test_layer_times_are_those_of_the_moments() -> None:
    now = [10.0]
    times = ArrayTimes([[0, 1], [2]], clock=lambda: now[0])

    def at(moment_s: float, event: Any, *arguments: Any) -> None:
        now[0] = moment_s
        event(*arguments)

    at(10.0, times.begin)
    at(14.0, times.loss)
    at(14.5, times.open)
    at(15.0, times.complete, 2)
    at(16.0, times.complete, 0)
    at(17.0, times.complete, 1)
    forward, backward = times.sample() or ([], [])
    assert np.allclose(backward, [2.0, 1.0])
    assert np.allclose(forward, [8 / 3, 4 / 3])  # shared as the backward pass is
    assert times.sample() is None
    at(18.0, times.wait, 0, 17.5)  # behind the step: the model stands still
    assert times.waits.total_s == pytest.approx(0.5)
    at(20.0, times.begin)
    at(22.0, times.loss)
    times.open()
    at(23.0, times.complete, 2)
    forward, backward = times.sample() or ([], [])
    assert np.allclose(backward, [0.0, 1.0]), "a layer without a gradient takes no time"
    assert np.allclose(forward, [0.0, 2.0])
    at(30.0, times.open)
    at(31.0, times.complete, 2)
    at(32.0, times.complete, 0)
    forward, backward = times.sample() or ([], [])
    assert np.allclose(backward, [1.0, 0.0]), "nothing shows when this step began"
    assert np.allclose(forward, [0.5, 0.0]), "half of the backward pass"


@pytest.mark.parametrize(
    ("arrives_s", "stalls_s"),
    [((0.0, 0.5), 0.0), ((1.0, 2.0), 1.0), ((0.0, 4.0), 3.0), ((5.0, 2.0), 5.0)],
    ids=["in time", "the first layer waits", "the last one waits", "the second comes before the first is over"],
)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["in order", "sorted by name"])
def test_a_forward_pass_beside_averages_stands_still_for_some(
    order: tuple[int, int], arrives_s: tuple[float, float], stalls_s: float
) -> None:
    """Layers of 1 and 2 s, of which each begins when the one before is over and its average is there."""
    now = [10.0]
    times = ArrayTimes([[place] for place in order], clock=lambda: now[0])
    times.begin()
    for place in np.argsort(arrives_s).tolist():
        now[0] = 10.0 + arrives_s[place]
        times.wait(place, 10.0)
    loss_s = now[0] = 10.0 + max(arrives_s[0] + 1.0, arrives_s[1]) + 2.0
    times.loss()
    times.open()
    for place, backward_s in ((1, 4.0), (0, 2.0)):
        now[0] += backward_s
        times.complete(place)
    forward, backward = times.sample() or ([], [])
    assert np.allclose(backward, np.array([2.0, 4.0])[[*order]])
    assert np.allclose(forward, np.array([1.0, 2.0])[[*order]])
    assert times.waits.total_s == pytest.approx(stalls_s)
    assert times.waits.total_s == pytest.approx(loss_s - 10.0 - 3.0)


def test_short_last_layers_do_not_stretch_a_forward_pass() -> None:
    """Of a layer of 10 s and one of 0.1 s that waits: the 0.6 s behind the wait look like a pass of a minute."""
    now = [10.0]
    times = ArrayTimes([[0], [1]], clock=lambda: now[0])

    def step(arrives_s: dict[int, float], forward_s: float, *, alone: bool = False) -> float:
        began_s = now[0]
        times.begin(alone=alone)
        for place, arrival_s in arrives_s.items():
            now[0] = began_s + arrival_s
            times.wait(place, began_s)
        now[0] = began_s + forward_s
        times.loss()
        times.open()
        for place, backward_s in ((1, 0.2), (0, 20.0)):
            now[0] += backward_s
            times.complete(place)
        return float((times.sample() or [np.zeros(2)])[0].sum())

    late = {0: 0.0, 1: 25.0}, 25.6
    assert step(*late) == pytest.approx(25.6), "nothing tells better"
    for alone_s in (10.4, 10.1, 9.9):
        assert step({}, alone_s) == pytest.approx(alone_s)
    before_s = times.waits.total_s
    assert step(*late) == pytest.approx(9.9), "the pass that was disturbed least"
    assert times.waits.total_s - before_s == pytest.approx(25.6 - 9.9)
    assert step({0: 0.0, 1: 0.1}, 9.0, alone=True) == pytest.approx(9.0), "both averages were there"
    assert step(*late) == pytest.approx(9.0)


def test_importing_autobyte_loads_no_framework() -> None:
    names = ("torch", "tensorflow", "keras")
    script = f"import sys, autobyte; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
