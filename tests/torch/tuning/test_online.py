"""Tuning while training: what is asked runs on every rank, results stay DDP's, nothing that fails or hangs hurts."""

import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.errors import FileError, InputError
from autobyte.internals import default_store
from autobyte.job import Model
from autobyte.models.profile import Profile
from autobyte.nets.dataset import measured
from autobyte.results import Results
from autobyte.torch.exchange.control import CommunicationError
from autobyte.torch.tuning.kept import Fingerprint, Kept
from autobyte.trace import Measurement
from autobyte.tuners import Tuner
from autobyte.tuning import WINDOW

STEPS = 120  # enough for five windows, some of them left out while rank 0 thinks

CONFIGS = [Config(1 << power, 4 << power, knobs={"fusion": 1}) for power in (12, 14, 13)]


@Tuner.register("script")
class Script(Tuner):
    """Asks for three configs in turn."""

    def __init__(self, space: Any, **_: Any) -> None:
        self._left = list(CONFIGS)

    def ask(self) -> Config | None:
        return self._left.pop(0) if self._left else None

    def tell(self, measurement: Measurement) -> None:
        assert measurement.stats is not None
        assert (measurement.stats.forward_s >= 0).all()


@Tuner.register("broken")
class Broken(Script):
    """Fails when it is told of a second window."""

    def tell(self, measurement: Measurement) -> None:
        if measurement.config != CONFIGS[0]:
            return
        raise ValueError("no idea")


@Tuner.register("hanging")
class Hanging(Script):
    """Never answers."""

    def ask(self) -> Config | None:
        time.sleep(30)
        return None


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 300), nn.ReLU(), nn.Linear(300, 100), nn.Tanh(), nn.Linear(100, 4))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


def train(
    model: nn.Module, optimizer: Any, rank: int, steps: int = STEPS, seen: Callable[[], None] = lambda: None
) -> None:
    for step in range(steps):
        rows = torch.randn(5, 12, generator=torch.Generator().manual_seed(1000 * step + rank))
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
        seen()


def beside_ddp(rank: int, steps: int = STEPS, **keywords: Any) -> tuple[ab.DistributedOptimizer, list[Config]]:
    """Train with DDP and with AutoByte, compare all parameters; say which configs were in force."""
    theirs, ours = make_model(), make_model()
    train(DistributedDataParallel(theirs), adam(theirs), rank, steps)
    optimizer = ab.DistributedOptimizer(adam(ours), ours, **keywords)
    used: list[Config] = []

    def see() -> None:
        time.sleep(0.005)  # rank 0 thinks meanwhile
        assert optimizer.training is not None
        if not used or used[-1] != optimizer.training.config:
            used.append(optimizer.training.config)

    train(ours, optimizer, rank, steps, see)
    optimizer.flush()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    return optimizer, used


@pytest.mark.parametrize("engine", ["allreduce", "ps"])
@pytest.mark.parametrize("order", ["planned", "leader"])
def test_switches_while_training_change_no_parameter(engine: str, order: str, tmp_path: Path) -> None:
    on_ranks(_switches, 2, engine, order, str(tmp_path / "kept.toml"))


def _switches(rank: int, engine: str, order: str, keep: str) -> None:
    optimizer, used = beside_ddp(rank, tuner="script", budget=4, keep=keep, engine=engine, order=order)
    assert used[1:4] == CONFIGS, f"{[c.label for c in used]} {optimizer.report()}"
    report = optimizer.report()
    assert report is not None
    if rank == 0:
        assert sum(trial.windows for trial in report.trials.values()) == 4
        assert report.config in report.trials
        assert report.failure == ""
        assert "script: 4 windows of 4 configs" in str(report)
        kept = Kept.read(Path(keep))
        assert kept is not None
        assert kept.config == report.config
        assert [made.to_json() for made in ab.report()] == [report.to_json()]
    optimizer.close()


@pytest.mark.parametrize("engine", ["allreduce", "ps"])
@pytest.mark.parametrize(("tuner", "why"), [("broken", "no idea"), ("hanging", "")])
def test_a_tuner_that_fails_or_hangs_does_not_hurt(tuner: str, why: str, engine: str) -> None:
    on_ranks(_hurts, 2, tuner, why, engine)


def _hurts(rank: int, tuner: str, why: str, engine: str) -> None:
    began = time.monotonic()
    logging.getLogger("autobyte").setLevel(logging.CRITICAL)
    optimizer, used = beside_ddp(rank, tuner=tuner, keep=None, engine=engine)
    report = optimizer.report()
    assert report is not None
    assert why in report.failure or rank
    assert time.monotonic() - began < 15
    assert used[-1] in (ab.Config(4_000_000, 16_000_000, knobs={"fusion": 1}), CONFIGS[0])


def test_what_was_found_is_used_next_time(tmp_path: Path) -> None:
    keep = tmp_path / "kept.toml"
    on_ranks(_found, 2, str(keep))
    text = keep.read_text()
    assert text.startswith("# AutoByte")
    elsewhere = re.sub(r"(?<=partition_bytes = )\d+", "20000", text)  # neither the default nor what is tried
    keep.write_text(elsewhere.replace("gigabit_per_s = ", "gigabit_per_s = 1000"))  # 1000 times the link
    on_ranks(_other_link, 2, str(keep))
    keep.write_text(text.replace("workers = 2", "workers = 8"))
    on_ranks(_other_job, 2, str(keep))
    assert "workers = 8" in keep.read_text()  # another job's: it stays
    keep.write_text("something of the user's")
    on_ranks(_not_ours, 2, str(keep))
    assert keep.read_text() == "something of the user's"


def _found(rank: int, keep: str) -> None:
    beside_ddp(rank, tuner="script", budget=4, keep=keep)
    dist.barrier()
    kept = Kept.read(Path(keep))
    assert kept is not None
    model = make_model()
    optimizer = ab.DistributedOptimizer(adam(model), model, tuner="script", keep=keep)
    assert optimizer.training is not None
    assert optimizer.training.config == kept.config
    optimizer.close()


def _other_link(rank: int, keep: str) -> None:
    optimizer, used = beside_ddp(rank, tuner="script", budget=4, keep=keep)
    assert CONFIGS[1] in used  # tuned again
    report = optimizer.report()
    assert report is not None
    assert report.failure == ""
    if rank == 0:
        kept = Kept.read(Path(keep))
        assert kept is not None
        assert kept.config == report.config  # and written anew
        assert not kept.same_link(1e12)
        assert used[-1] == kept.config
    optimizer.close()


def _other_job(rank: int, keep: str) -> None:
    optimizer, used = beside_ddp(rank, tuner="script", budget=4, keep=keep)
    assert used[1:4] == CONFIGS
    optimizer.close()


def _not_ours(rank: int, keep: str) -> None:
    model = make_model()
    with pytest.raises(CommunicationError, match="name another file with keep="):
        ab.DistributedOptimizer(adam(model), model, tuner="script", keep=keep)


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


def test_a_job_that_drifts_is_planned_anew_while_it_trains() -> None:
    on_ranks(_drifts, 2)


def _drifts(rank: int) -> None:
    """Layers take 1.6 times as long from a step on, and some steps later the plan knows."""
    rows = [(f"l{i}", [(f"w{i}", 20_000 + 7000 * i)], 3e-3, 6e-3) for i in range(10)]
    model = ab.emulate(Model.build("drifting", rows, batch_size=1))
    optimizer = ab.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model, policy="usbyte", keep=None
    )
    training = optimizer.training
    assert training is not None

    def steps(number: int) -> Iterator[float]:
        for _ in range(number):
            optimizer.zero_grad()
            model(torch.zeros(1)).backward()
            optimizer.step()
            yield training.job.model.compute_s

    while not training.job.model.compute_s:  # until the first plan is made, from three steps
        for _ in steps(5):
            pass
    *_, before = steps(3 * WINDOW)  # and again, from a window
    for layer in model.layers:
        layer.forward_s *= 1.6
        layer.backward_s *= 1.6
    late = 3 * WINDOW  # what is left of one window, one more, and a thought
    seen = [compute_s / before for compute_s in steps(late)]
    assert seen[-1] > 1.3, seen
    optimizer.close()


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
    ("keywords", "why"),
    [
        ({"space": ab.Space()}, "say tuner="),
        ({"space": ab.Space(), "policy": "auto"}, "leave out space="),
        ({"space": (1, 2), "tuner": "random"}, "space must be a Space"),
        ({"space": ab.Space(knobs={"fussion": (0, 1)}), "tuner": "random"}, "did you mean 'fusion'"),
        ({"space": ab.Space((4, 8)), "tuner": "random", "config": Config(16, 16)}, "which is not in space="),
    ],
)
def test_spaces_that_cannot_be_used(keywords: dict[str, Any], why: str) -> None:
    model = make_model()
    with pytest.raises(InputError, match=why):
        ab.DistributedOptimizer(adam(model), model, **keywords)


def test_kept_file_says_what_it_is_for(tmp_path: Path) -> None:
    job = Fingerprint("Net", "3fa2", 4, "allreduce", "as they are", "bytescheduler")
    kept = Kept(job, 1.2e8, Config(1 << 20, 4 << 20, knobs={"fusion": 1}), "random", 20, 0.7, 0.75)
    path = tmp_path / "kept.toml"
    assert Kept.read(path) is None
    kept.write(path)
    again = Kept.read(path)
    assert again is not None
    assert (again.job, again.config) == (kept.job, kept.config)
    assert again.same_link(1.4e8)
    assert not again.same_link(1.2e7)
    other = Kept(
        Fingerprint("Net", "3fa2", 8, "ps", "as they are", "bytescheduler"), 1e8, kept.config, "x", 1, 1.0, 1.0
    )
    with pytest.raises(FileError, match="workers is 8, not 4, engine is ps, not allreduce"):
        other.write(path)


@pytest.mark.parametrize("engine", ["allreduce", "ps"])
def test_reconfigure_switches_on_every_rank(engine: str) -> None:
    on_ranks(_reconfigures, 2, engine)


def _reconfigures(rank: int, engine: str) -> None:
    other = Config(8192 if rank else 4096, 8192, knobs={"fusion": 1})
    with pytest.raises(CommunicationError, match=r"ranks \[1\] have settings unlike rank 0's"):
        ab.DistributedOptimizer(adam(model := make_model()), model, config=other, engine=engine)
    model = make_model()
    optimizer = ab.DistributedOptimizer(adam(model), model, engine=engine)
    assert optimizer.training is not None
    for config in (CONFIGS[0], Config(4096, 4096, "p3"), CONFIGS[1]):
        optimizer.reconfigure(config)
        train(model, optimizer, rank, 6)
        assert optimizer.training.config == config
    with pytest.raises(InputError, match="unknown policy 'p4'"):  # on every rank: nobody waits for another
        optimizer.reconfigure(Config(4096, 4096, "p4"))
    with pytest.raises(CommunicationError, match="a config unlike rank 0's"):
        optimizer.reconfigure(CONFIGS[rank])


def test_auto_chooses_a_config_and_begins_with_it_next_time(tmp_path: Path) -> None:
    on_ranks(_auto, 2, str(tmp_path / "kept.toml"))


def _auto(rank: int, keep: str) -> None:
    optimizer, used = beside_ddp(rank, policy="auto", keep=keep)
    for _ in range(20):  # rank 0 may think long
        train(optimizer._model, optimizer, rank)
        chosen = torch.tensor([float(Path(keep).exists())])
        dist.broadcast(chosen, 0)
        if chosen:
            break
    assert len(used) > 1, f"{optimizer.report()}"
    report = optimizer.report()
    assert report is not None
    assert report.failure == ""
    model = make_model()
    with pytest.raises(InputError, match="chooses its own config"):
        ab.DistributedOptimizer(adam(model), model, policy="auto", tuner="random")
    with pytest.raises(InputError, match="policy='horovod', but config= is of 'bytescheduler'"):
        ab.DistributedOptimizer(adam(model), model, policy="horovod", config=Config(1 << 20, 1 << 20))
    with pytest.raises(CommunicationError, match=r"ranks \[1\] have settings unlike rank 0's"):
        ab.DistributedOptimizer(adam(model), model, policy=["horovod", "ddp"][rank])
    with pytest.raises(CommunicationError, match=r"ranks \[1\] have policy= or tuner= unlike rank 0's.*policy auto"):
        ab.DistributedOptimizer(adam(model), model, policy=["auto", "bytescheduler"][rank])
    with pytest.raises(CommunicationError, match=r"ranks \[1\] have policy= or tuner= unlike rank 0's.*tuner random"):
        ab.DistributedOptimizer(adam(model), model, tuner=["random", None][rank])
    optimizer.close()
    assert optimizer.report() is not None
    assert rank or "windows of ten steps" in str(optimizer.report())
    dist.barrier()
    kept = Kept.read(Path(keep))
    assert kept is not None
    assert (kept.job.policy, kept.tuner) == ("auto", "auto")
    optimizer, used = beside_ddp(rank, steps=3, policy="auto", keep=keep)
    assert used == [kept.config]
    optimizer.close()


def test_ranks_of_their_own_serve() -> None:
    on_ranks(_served, 4)


def _served(rank: int) -> None:
    workers = dist.new_group([0, 1])
    if rank >= 2:
        ab.serve([2, 3])
        return
    theirs, ours = make_model(), make_model()
    train(DistributedDataParallel(theirs, process_group=workers), adam(theirs), rank, 20)
    optimizer = ab.DistributedOptimizer(adam(ours), ours, engine="ps", servers=[2, 3], process_group=workers)
    train(ours, optimizer, rank, 20)
    optimizer.flush()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    optimizer.close()


def test_the_timeout_of_the_users_store_stays() -> None:
    on_ranks(_keeps_timeout, 2)


def _keeps_timeout(rank: int) -> None:
    store = default_store()
    before = store.timeout
    optimizer = ab.DistributedOptimizer(adam(model := make_model()), model, engine="ps", timeout=timedelta(seconds=7))
    assert store.timeout == before
    optimizer.close()


def test_servers_must_not_train() -> None:
    on_ranks(_cannot_serve, 2)


def _cannot_serve(rank: int) -> None:
    with pytest.raises(InputError, match="not among the servers"):
        ab.serve([1 - rank])
    with pytest.raises(InputError, match="do not train"):
        ab.serve([0, 1])
    model = make_model()
    with pytest.raises(InputError, match="servers= is for engine='ps'"):
        ab.DistributedOptimizer(adam(model), model, servers=[1])
    with pytest.raises(InputError, match=r"servers=\[1\]: ranks \[1\] train; leave servers= out"):
        ab.DistributedOptimizer(adam(model), model, engine="ps", servers=[1])


def test_a_hopeless_window_ends_early() -> None:
    on_ranks(_hopeless, 2)


def _hopeless(rank: int) -> None:
    model = make_model()
    optimizer = ab.DistributedOptimizer(adam(model), model, tuner="script", budget=3, keep=None)
    steps: list[int] = []

    def see() -> None:
        assert optimizer.training is not None
        slow = optimizer.training.config == CONFIGS[0]
        steps.append(slow)
        if slow:
            time.sleep(0.3)

    train(model, optimizer, rank, STEPS, see)
    assert 3 <= sum(steps) < 10  # not the ten of a window
    assert not steps[-1]
    report = optimizer.report()
    assert report is not None
    assert report.failure == ""
    assert rank or CONFIGS[0] in report.trials


def _recorded(rank: int, folder: str) -> None:
    for number in range(2):
        optimizer, _ = beside_ddp(rank, steps=60, tuner="script" if number else None, keep=None, record=folder)
        optimizer.close()
        dist.barrier()


def test_windows_of_training_are_recorded_and_can_be_learned_from(tmp_path: Path) -> None:
    """Of two trainings of a job, one of them tuned; the folder takes no other job."""
    on_ranks(_recorded, 2, str(tmp_path / "seen"))
    model = Profile.load(tmp_path / "seen" / "model.json").model()
    with Results.read(tmp_path / "seen" / "results.sqlite") as results:
        trials = list(results.trials())
        windows = [results.find(tuner=each.tuner, seed=0, number=each.number) for each in trials]
    assert {each.tuner for each in trials} == {"none", "script"}
    assert sorted(each.number for each in trials) == list(range(len(trials)))
    assert len(trials) >= 4
    groups = measured(model, [window for window in windows if window is not None], number=0)
    assert np.isfinite(groups.step_s).sum() >= len({each.measurement.config for each in trials})


def _elsewhere(rank: int, folder: str) -> str:
    optimizer, _ = beside_ddp(rank, steps=30, keep=None, record=folder, policy="p3")
    optimizer.close()
    return "" if rank else Path(folder).read_text()


def test_where_windows_cannot_be_recorded_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert on_ranks(_elsewhere, 2, str(tmp_path / "file"))[0] == "mine"


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
