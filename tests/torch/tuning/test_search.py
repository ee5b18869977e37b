"""A search stays in its space, keeps to its budget, and goes on next time."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from ranks import on_ranks
from tuned import CONFIGS, Script, adam, beside_ddp, make_model

import autobyte.torch as ab
from autobyte.config import Config, Space
from autobyte.errors import InputError
from autobyte.job import Cluster, Job, Model
from autobyte.torch.tuning.kept import Kept
from autobyte.torch.tuning.search import made_in_time
from autobyte.trace import Measurement
from autobyte.tuners import Tuner
from autobyte.tuning import Tuning, make_tuner


def test_a_search_that_did_not_end_is_kept_and_goes_on(tmp_path: Path) -> None:
    on_ranks(_goes_on, 2, str(tmp_path / "kept.toml"))


def _goes_on(rank: int, keep: str) -> None:
    begun = None
    for budget in (None, 50):  # without end, and longer than training lasts
        optimizer, used = beside_ddp(rank, tuner="script", budget=budget, keep=keep)
        assert set(CONFIGS) <= set(used)
        assert begun in (None, used[0])
        optimizer.close()
        dist.barrier()
        kept = Kept.read(Path(keep))
        assert kept is not None
        assert not kept.finished
        assert kept.windows >= 3
        begun = kept.config


def test_a_tuner_stays_in_its_space(tmp_path: Path) -> None:
    on_ranks(_stays, 2, str(tmp_path / "kept.toml"))


def _stays(rank: int, keep: str) -> None:
    space = ab.Space((8192, 32768), (2.0, 3.0))
    optimizer, used = beside_ddp(rank, tuner="random", budget=4, keep=keep, space=space)
    assert used[0] == Config(32768, 98304, knobs={"fusion": 1})  # next to the default, which is not in it
    assert len(used) > 2
    assert all(config in replace(space, default=config) for config in used)
    optimizer.close()
    dist.barrier()
    assert Kept.read(Path(keep)) is not None
    outside = ab.DistributedOptimizer(
        adam(model := make_model()), model, tuner="random", keep=keep, space=ab.Space((4096, 4096), (1.0, 1.0))
    )
    assert outside.training is not None
    assert outside.training.config == Config(4096, 4096, knobs={"fusion": 1})  # and not what was kept
    outside.close()


def test_who_searches_once_has_an_end_and_who_lives_on_has_none() -> None:
    assert on_ranks(_budgets, 2) == [[30, None, 7]] * 2


def _budgets(rank: int) -> list[int | None]:
    found = []
    for given in ({"tuner": "random"}, {"tuner": "twin"}, {"tuner": "twin", "budget": 7}):
        model = make_model()
        optimizer = ab.DistributedOptimizer(adam(model), model, keep=None, **given)
        assert optimizer._mode._search is not None
        found.append(optimizer._mode._search.budget)
        optimizer.close()
    return found


def test_a_tuner_that_hangs_while_it_is_made_is_named() -> None:
    gate = threading.Event()

    def hang() -> Tuner:
        gate.wait(30)
        raise InputError("too late")

    with pytest.raises(InputError, match=r"^tuner 'slow' was not made within 0.05 s$"):
        made_in_time("slow", hang, patience_s=0.05)
    gate.set()


@Tuner.register("exits")
class Exits(Script):
    """Gives up while it is made, or later."""

    def __init__(self, space: Any, *, seed: int = 0, **_: Any) -> None:
        super().__init__(space)
        if not seed:
            raise SystemExit(3)

    def tell(self, measurement: Measurement) -> None:
        raise SystemExit(4)


def test_a_tuner_that_exits_is_named_and_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    job = Job(Model.build("m", [("l", [("w", 8)], 0.1, 0.1)], batch_size=1), Cluster(2))
    space = Space((100, 1600), (1.0, 4.0), Config(100, 100))
    with pytest.raises(InputError, match=r"^tuner 'exits' cannot be made: SystemExit: 3$"):
        made_in_time("exits", lambda: make_tuner("exits", space, job=job))
    tuning = Tuning(made_in_time("exits", lambda: make_tuner("exits", space, job=job, seed=1)), space)
    assert tuning.observe(Measurement(space.default, 0, (1.0, 1.0))) == space.default
    assert caplog.messages == ["the tuner failed after 1 windows (Exits); the best config so far stays"]
