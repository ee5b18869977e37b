"""Tuning while training: what is asked runs on every rank, results stay DDP's, nothing that fails or hangs hurts."""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import Tensor, nn
from tuned import CONFIGS, STEPS, Script, adam, beside_ddp, make_model, train

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.exchange.control import CommunicationError
from autobyte.exchange.engines import STREAMS
from autobyte.exchange.tuning import online as online_module
from autobyte.exchange.tuning.kept import Kept
from autobyte.exchange.tuning.online import Online
from autobyte.exchange.tuning.window import RankWindow
from autobyte.job import Floats, Model
from autobyte.scheduler.engines.streams import Event, HostStreams, Work
from autobyte.scheduler.runner import Passage
from autobyte.torch.exchange import training as training_module
from autobyte.torch.exchange.exchange import WAIT
from autobyte.trace import Measurement
from autobyte.tuners import Tuner
from autobyte.tuning import WARMUP, WINDOW


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
    optimizer.close()  # until then rank 0 may be thinking about the latest window
    last = optimizer.report()
    assert last is not None
    assert [made.to_json() for made in ab.report()] == [last.to_json()]


def test_blocks_of_the_warmup_of_a_config_do_not_count() -> None:
    on_ranks(_counts, 2)


def _counts(rank: int) -> None:
    seen: list[tuple[Config, int, int, int, int]] = []  # config, blocks of its plan, steps; steps, blocks that count
    measured, totals = Online._measured, online_module.totals

    def note(online: Online) -> RankWindow:
        def counted(passages: Sequence[Passage], steps: int) -> Floats:
            plan = online._training.exchange.plan
            seen.append((online._training.config, len(plan.tiling), len(online._steps), steps, len(passages)))
            return totals(passages, steps)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(online_module, "totals", counted)
            return measured(online)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Online, "_measured", note)
        optimizer, _ = beside_ddp(rank, tuner="script", budget=4, keep=None)
        optimizer.close()
    begun = [window for before, window in pairwise(seen) if window[0] != before[0]]
    assert len(begun) >= len(CONFIGS), seen
    for window in seen[1:]:
        _, blocks, steps, counted, passages = window
        assert counted == steps - (WARMUP if window in begun else 0)
        assert abs(passages - counted * blocks) <= blocks  # those under way when the window ends


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


def test_a_switch_that_a_rank_cannot_make_is_not_told_as_one() -> None:
    on_ranks(_cannot_switch, 2)


def _cannot_switch(rank: int) -> None:
    """Rank 1 has no address for the connections that `dear` needs."""

    def nowhere() -> str:
        raise InputError("no way to the others")

    lines: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("autobyte").addHandler(handler)
    logging.getLogger("autobyte").setLevel(logging.INFO)
    optimizer = ab.DistributedOptimizer(adam(model := make_model()), model, policy="bytescheduler")
    train(model, optimizer, rank, 30, lambda: time.sleep(0.01))
    if rank == 1:
        training_module.own_address = nowhere
    assert optimizer.training is not None
    before = optimizer.training.config
    optimizer.reconfigure(Config(4096, 4096, "dear"))
    train(model, optimizer, rank, 3)
    assert optimizer.training.config == before
    told = [line for line in lines if "dear" in line]
    assert len(told) == 1, told
    assert told[0].startswith("the config in force stays, because ")
    assert told[0].endswith("cannot be used: rank 1: no way to the others")
    optimizer.training.replan = refused  # type: ignore[method-assign]  # halves, which clipping asks for, are no way
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(5, 12)).square().mean().backward()
        optimizer.clip_grad_norm_(0.1)
        optimizer.step()
    optimizer.close()


def refused(*_: object) -> None:
    raise AssertionError("all ranks agree on a plan again that one of them cannot use")


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
        ab.DistributedOptimizer(adam(model), model, policy="bytescheduler", tuner=["random", None][rank])
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


def test_tuning_goes_on_where_the_optimizers_state_is_loaded_now_and_then() -> None:
    on_ranks(_loads, 2)


def _loads(rank: int) -> None:
    """After every step, so after each in which rank 0 has announced something."""
    model = make_model()
    optimizer = ab.DistributedOptimizer(adam(model), model, tuner="script", budget=4, keep=None)
    used: list[Config] = []

    def load() -> None:
        time.sleep(0.005)  # rank 0 thinks meanwhile
        optimizer.load_state_dict(optimizer._optimizer.state_dict())
        assert optimizer.training is not None
        if optimizer.training.config not in used:
            used.append(optimizer.training.config)

    train(model, optimizer, rank, STEPS, load)
    assert used[1:] == CONFIGS
    optimizer.close()


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


FORWARD_S, BACKWARD_S, BLOCK_S = (4e-3, 8e-3, 6e-3), (6e-3, 12e-3, 9e-3), 20e-3
LATE_S = 50e-3  # by which a sleep, or a block on its way, may be late: ranks share CPUs with other tests


class SlowBlocks(HostStreams):
    """Each block takes so long at least."""

    def enqueue(self, work: Work, after: Iterable[Event], used: Iterable[Tensor] = ()) -> Event:
        return super().enqueue(lambda: (work(), time.sleep(BLOCK_S))[0], after, used)


class Kernels(torch.autograd.Function):
    """Two kernels of a layer, on the model's stream; the host goes on at once."""

    @staticmethod
    def forward(context: Any, rows: Tensor, streams: HostStreams, layer: int) -> Tensor:
        context.streams, context.layer = streams, layer
        streams.compute(lambda: time.sleep(FORWARD_S[layer]))
        return rows.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        context.streams.compute(lambda: time.sleep(BACKWARD_S[context.layer]))
        return *gradients, None, None


class OnDevice(nn.Linear):
    """A layer that takes its time on the model's stream."""

    def forward(self, rows: Tensor) -> Tensor:
        return Kernels.apply(super().forward(rows), *self.device)


def test_what_is_planned_with_is_what_the_device_takes() -> None:
    """The host enqueues a step within a few milliseconds, and waits for averages only."""
    on_ranks(_on_device, 2)


def _on_device(rank: int) -> None:
    STREAMS["ordered"] = lambda _parameters, timeout: SlowBlocks(timeout_s=timeout.total_seconds())
    model = nn.Sequential(*(OnDevice(4, 4, bias=False) for _ in FORWARD_S))
    optimizer = ab.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model, engine="ordered", keep=None,
        config=Config(1, 1, "wfbp"),
    )  # fmt: skip
    training = optimizer.training
    assert training is not None
    for layer, module in enumerate(model):
        module.device = training.buffers.streams, layer

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()

    for _ in range(3 * WINDOW):
        step()
    exposed_s = BACKWARD_S[2] + 3 * BLOCK_S - sum(BACKWARD_S)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()
        optimizer.flush()
    (waits,) = (row for row in profiler.key_averages() if row.key == WAIT)
    assert exposed_s / 3 < waits.cpu_time_total * 1e-6  # of the host, which stands for the model's stream
    adviser = optimizer._mode._online.adviser
    if adviser is not None:
        adviser._thread.join(20)
        told = adviser.latest
        for of_rank in range(2):
            times = zip([*told.forward_s[of_rank], *told.backward_s[of_rank]], [*FORWARD_S, *BACKWARD_S], strict=True)
            assert all(right <= seen < right + LATE_S for seen, right in times), told
            blocks, _, busy_s, _ = told.totals[of_rank]
            assert BLOCK_S <= busy_s / blocks < BLOCK_S + LATE_S
        report = optimizer.report()
        assert report.link_bytes_per_s < 1.5 * 64 / BLOCK_S
        assert exposed_s / 3 < report.exposed_s < exposed_s + 3 * LATE_S, report
        assert f"the model waits {report.exposed_s * 1e3:.1f} ms for averages" in str(report)
    optimizer.close()
