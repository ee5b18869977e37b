"""A search stays in its space, keeps to its budget, and goes on next time."""

import logging
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch.distributed as dist
from ranks import Ranks, on_ranks
from tuned import CONFIGS, Script, adam, beside_ddp, make_model

import autobyte.torch as ab
from autobyte.config import Config, Space
from autobyte.errors import InputError
from autobyte.exchange.control import CommunicationError
from autobyte.exchange.tuning.kept import Fingerprint, Kept, Trial
from autobyte.exchange.tuning.search import STAYS, Search, made_in_time
from autobyte.job import Cluster, Job, Model
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


def test_a_kept_config_is_used_frozen(tmp_path: Path) -> None:
    on_ranks(_frozen, 2, str(tmp_path))


def _frozen(rank: int, folder: str) -> None:
    file = Path(folder) / "kept.toml"
    kept = Kept(
        Fingerprint("Sequential", "?", 8, "ps", "as they are", "auto"), 1e9, CONFIGS[1], "auto", 9, 0.1, 0.2,
        finished=False,
    )  # fmt: skip
    if rank == 0:  # the other rank's host may have no such file
        kept.write(file)
    before = file.read_bytes() if rank == 0 else b""
    optimizer, used = beside_ddp(rank, config=str(file), steps=40)
    assert used == [CONFIGS[1]]  # found for other ranks, and of a search that had not ended: it stays all the same
    optimizer.close()
    assert rank or file.read_bytes() == before
    dist.barrier()


def test_a_config_file_that_cannot_be_used_is_an_input_error_on_all_ranks(tmp_path: Path) -> None:
    on_ranks(_unusable, 2, str(tmp_path))


def _unusable(rank: int, folder: str) -> None:
    damaged, missing, good = (Path(folder) / name for name in ("damaged.toml", "missing.toml", "good.toml"))
    if rank == 0:
        damaged.write_text("schema = 3\n[job]\nmodel =")
        Kept(
            Fingerprint("Net", "?", 2, "allreduce", "as they are", "auto"), 1e9, CONFIGS[1], "auto", 9, 0.1, 0.2
        ).write(good)
    for given, why in (
        ({"config": missing}, "missing.toml': there is no such file"),
        ({"config": str(damaged)}, "damaged.toml': cannot use"),
        ({"config": good, "policy": "usbyte"}, "policy='usbyte', but config= is of 'bytescheduler'"),
        ({"config": good, "tuner": "random", "space": ab.Space((4, 8))}, "which is not in space="),
    ):
        model = make_model()
        with pytest.raises(InputError, match=why):
            ab.DistributedOptimizer(adam(model), model, **given)
        assert not [module for module in model.modules() if module._forward_pre_hooks]
    with pytest.raises(CommunicationError, match=r"ranks \[1\] have policy= or tuner= .*config of"):
        ab.DistributedOptimizer(adam(model := make_model()), model, policy="bytescheduler", config=[good, None][rank])
    assert damaged.exists()


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


@pytest.mark.parametrize(
    ("engine", "policy", "ratios"),
    [
        ("allreduce", "bytescheduler", (1.0, 16.0)),
        ("ps", "bytescheduler", (1.0, 16.0)),
        ("kvstore", "bytescheduler", (2.0, 16.0)),
        ("byteps", "bytescheduler", (2.0, 16.0)),
        ("kvstore", "ddp", (1.0, 1.0)),
        ("kvstore", "usbyte", (2**-20, 16.0)),
    ],
)
def test_where_servers_acknowledge_late_windows_hold_two_blocks(
    engine: str, policy: str, ratios: tuple[float, float]
) -> None:
    job = Job(
        Model.build("m", [("l", [("w", 8)], 0.1, 0.1)], batch_size=1), Cluster(2, 0 if engine == "allreduce" else 2)
    )
    running = Config(4096, 16384, policy)
    training: Any = SimpleNamespace(job=job, fingerprint="m", size=2, engine=engine, config=running)
    tuning = Search(training, tuner="random", space=None, budget=3, seed=0, keep=None).begin(job, running)
    assert tuning is not None
    assert tuning._space.credit_ratio == ratios


@Tuner.register("told")
class Told(Script):
    """Keeps what it is told of the time after the search."""

    needs = ("after",)
    heard: ClassVar[list[int | None]] = []

    def __init__(self, space: Any, *, after: int | None, **_: Any) -> None:
        super().__init__(space)
        self.heard.append(after)


def test_what_a_search_with_an_end_finds_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Told, "heard", [])
    job = Job(Model.build("m", [("l", [("w", 8)], 0.1, 0.1)], batch_size=1), Cluster(2))
    running = Config(4096, 16384)
    training: Any = SimpleNamespace(job=job, fingerprint="m", size=2, engine="allreduce", config=running)
    for budget in (None, 7):
        assert Search(training, tuner="told", space=None, budget=budget, seed=0, keep=None).begin(job, running)
    assert Told.heard == [None, STAYS]


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


def test_a_file_that_cannot_be_kept_is_an_input_error_on_every_rank(tmp_path: Path) -> None:
    for keep, why in ((tmp_path, "a folder: name a file in it"), (tmp_path / "none" / "kept.toml", "is no folder")):
        for outcome in Ranks(_cannot_keep, 2, str(keep)).outcomes():
            assert str(outcome).startswith(f"InputError: keep= is '{keep}', "), outcome
            assert why in str(outcome)


def _cannot_keep(rank: int, keep: str) -> None:
    model = make_model()
    ab.DistributedOptimizer(adam(model), model, tuner="random", keep=keep)


def test_a_tuner_that_hangs_while_it_is_made_is_named() -> None:
    gate = threading.Event()

    def hang() -> Tuner:
        gate.wait(30)
        raise InputError("too late")

    with pytest.raises(InputError, match=r"^tuner 'slow' was not made within 0.05 s$"):
        made_in_time("slow", hang, patience_s=0.05)
    gate.set()


def test_what_a_tuner_needs_and_cannot_get_is_said_at_once() -> None:
    def compile_nothing() -> Tuner:
        raise OSError("no room for what is compiled")

    with pytest.raises(OSError, match="no room for what is compiled"):
        made_in_time("twin", compile_nothing)


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


def test_it_says_why_a_faster_config_is_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "autobyte")
    job = Job(Model.build("m", [("l", [("w", 8)], 0.1, 0.1)], batch_size=1), Cluster(2))
    training: Any = SimpleNamespace(job=job, fingerprint="m", size=2, engine="allreduce", config=CONFIGS[0])
    search = Search(training, tuner="twin", space=None, budget=None, seed=0, keep=None)
    search.finish(job, CONFIGS[0], {CONFIGS[0]: Trial(0.5, 0.108), CONFIGS[1]: Trial(2, 0.09)}, finished=False)
    told = f"{CONFIGS[0].full_label} takes 108 ms a step; too few windows tell it from {CONFIGS[1].full_label}, 90 ms"
    assert caplog.messages == [f"training ended before the search did, after 2.5 windows: {told}"]
