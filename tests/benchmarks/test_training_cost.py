"""What it costs to be there: nothing where AutoByte is off, little CPU per block, few bytes of control, cheap clocks.

CPU times of the process or its training thread, for they do not count what else the machine does. Both sides step in
turn in one process, now the one first and now the other; medians over pairs.
"""

import gc
import itertools
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from ranks import on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.exchange import control, engines
from autobyte.models import load
from autobyte.scheduler.block import Block
from autobyte.scheduler.engines.base import Done, Engine, Sent
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.ordered import Ordered
from autobyte.scheduler.engines.streams import Event, Streams
from autobyte.torch.model.clipping import Clipping
from autobyte.torch.model.layers import CalledLayer
from autobyte.torch.model.marks import HostMarks
from autobyte.torch.model.timeline import TrainingTimeline
from autobyte.torch.model.updates import Updates


def deep(layers: int = 50, width: int = 256) -> nn.Sequential:
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*parts)


def stepping(model: nn.Module, optimizer: Any, rows: int = 96) -> Callable[[], None]:
    inputs = torch.randn(rows, 256)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


def in_turn(
    ours: Callable[[], None], theirs: Callable[[], None], *, clock: Callable[[], float], pairs: int
) -> list[tuple[float, float]]:
    """Times of both (s), pair by pair, after five pairs that do not count."""
    times = []
    for pair in range(pairs + 5):
        spent = {}
        for step in (ours, theirs) if pair % 2 else (theirs, ours):
            began = clock()
            step()
            spent[step] = clock() - began
        times.append((spent[ours], spent[theirs]))
    return times[5:]


def ratio(times: list[tuple[float, float]]) -> float:
    """Ours over theirs."""
    return statistics.median(with_it / without for with_it, without in times)


class Instant(Engine):
    """Packs and unpacks a block as `allreduce` does, and moves nothing: what is left out is the engine's launch."""

    blocks = 0

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        Instant.blocks += 1
        self._buffers.take(block)
        self._buffers.give(block)
        sent(block)
        done(block, None)

    def close(self) -> None:
        """Nothing to let go of."""


class Over(Event):
    """An event that is over."""

    def is_over(self) -> bool:
        return True

    def elapsed_s(self, later: Event) -> float:
        return 0.0


class Nowhere(Streams):
    """Streams that do at once what they are given: of the engine `ordered` all is left but the collective."""

    ahead = False
    over = Over()

    def mark(self, written: Any = ()) -> Event:
        return self.over

    def enqueue(self, work: Any, after: Any, used: Any = ()) -> Event:
        Instant.blocks += 1
        work()
        return self.over

    def wait(self, event: Event) -> None:
        """It is over."""

    def give_up(self, error: Exception) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """Nothing to let go of."""


class Nobody:
    """A backend of two ranks that moves nothing."""

    def size(self) -> int:
        return 2

    def allreduce(self, tensors: Any, options: Any) -> None:
        """None is a collective that need not be waited for."""


def instant() -> None:
    engines.ENGINES["instant"] = lambda made_for, timeout: Instant(made_for.buffers)
    engines.ENGINES["instant-ordered"] = lambda made_for, timeout: Ordered(made_for.buffers, Nobody())
    engines.STREAMS["instant-ordered"] = lambda parameters, timeout: Nowhere()


@pytest.mark.parametrize("why", ["one rank", "enabled=False"])
def test_where_it_is_off_it_costs_nothing(why: str) -> None:
    ratios = on_ranks(_off, 1, why, timeout_s=100)
    print(f"\n{why}: {ratios[0]:.4f} of plain training's step (at most 1.01)")
    assert ratios[0] <= 1.01


def _off(rank: int, why: str) -> float:
    ours, theirs = deep(12), deep(12)
    wrapped = ab.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.01), ours, enabled=why == "one rank")
    plain = torch.optim.SGD(theirs.parameters(), lr=0.01)
    return ratio(in_turn(stepping(ours, wrapped), stepping(theirs, plain), clock=time.thread_time, pairs=150))


def test_control_is_little_beside_the_gradients() -> None:
    """ResNet50's gradients, thirty steps with their windows and plans: all that the control backend carries."""
    for share in on_ranks(_control, 2, timeout_s=100):
        print(f"\ncontrol: {share:.4%} of the gradients' bytes (less than 0.1 %)")
        assert 0 < share < 1e-3


def _control(rank: int) -> float:
    instant()
    carried = 0

    class Counting:
        """A backend that counts what goes through it."""

        def __init__(self, backend: Any) -> None:
            self._backend = backend

        def __getattr__(self, name: str) -> Any:
            method = getattr(self._backend, name)

            def counted(*arguments: Any) -> Any:
                nonlocal carried
                tensors = arguments[-2] if name == "allgather" and len(arguments) > 2 else arguments[0]
                flat = [t for each in tensors for t in (each if isinstance(each, list) else [each])]
                carried += sum(t.numel() * t.itemsize for t in flat)
                return method(*arguments)

            return counted

    make = control.own_gloo
    control.own_gloo = lambda *arguments, **keywords: Counting(make(*arguments, **keywords))
    model = ab.emulate(load("resnet50"), time_scale=0.02)
    optimizer = ab.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model,
        policy="bytescheduler",
        engine="instant",
        keep=None,
        timeout=timedelta(seconds=60),
    )
    carried -= sum(t.numel() * t.itemsize for t in model.state_dict().values())  # sent once at the start, as DDP does
    steps = 30
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.zeros(1)).backward()
        optimizer.step()
    optimizer.close()
    return carried / (steps * sum(p.numel() * p.itemsize for p in model.parameters()))


def test_timing_layers_costs_little() -> None:
    """The marks of a step, made again by themselves: beside a whole step they would be lost in its noise."""
    for share in on_ranks(_timing, 2, timeout_s=100):
        print(f"\nlayer times: {share:.2%} of a step of 50 layers (at most 1 %)")
        assert 0 < share <= 0.01


def _timing(rank: int) -> float:
    instant()
    model = deep()
    optimizer = ab.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model, policy="bytescheduler", engine="instant", keep=None
    )

    def marks() -> None:
        measured = optimizer._mode._online._times
        measured.begin()
        for layer in range(50):
            measured.enter(layer)
            measured.leave(layer)
        measured.forward_over()
        for place in reversed(range(len(optimizer.training.exchange.parameters))):
            optimizer._mode._listeners.complete(place)
        assert measured.sample() is not None

    train = stepping(model, optimizer)
    for _ in range(5):
        train()
    times = in_turn(marks, train, clock=time.thread_time, pairs=40)
    optimizer.close()
    return ratio(times)


TURNS, TRACED = 30, 8  # traces, and steps of each; its first and last do not count


def test_a_traced_step_costs_at_most_1_percent_more(tmp_path: Path) -> None:
    """Traced steps beside those before and behind them, and what hooks take by themselves, which noise hides less."""
    for hooks, ratio in on_ranks(_traced, 2, tmp_path / "trace.json", timeout_s=200):
        print(f"\ntraced: {ratio:.4f} of the step without; by themselves its hooks take {hooks:.2%} (at most 1 %)")
        assert hooks <= 0.01
        assert ratio <= 1.05


def _traced(rank: int, path: Path) -> tuple[float, float]:
    torch.set_num_threads(1)
    instant()
    model = deep()
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = ab.DistributedOptimizer(sgd, model, policy="bytescheduler", engine="instant", keep=None)
    train = stepping(model, optimizer)

    def timed(steps: int) -> float:
        times = []
        for _ in range(steps):
            began = time.thread_time()
            train()
            times.append(time.thread_time() - began)
        return statistics.median(times[1:-1])

    timed(10)
    turns = []
    for _ in range(TURNS):
        before = timed(TRACED)
        optimizer.trace(TRACED, path)
        traced = timed(TRACED)
        turns.append((before, traced, timed(TRACED)))
    optimizer.close()
    ratio = statistics.median(2 * traced / (before + after) for before, traced, after in turns)
    step_s = statistics.median(before for before, *_ in turns)
    return _notes_s() / step_s, ratio


def _notes_s() -> float:
    """CPU of all hooks of a trace in a step of that model (s): passes of tiny layers, with and without."""
    model = chain(100, 50)

    def passes() -> float:
        times = []
        for _ in range(40):
            began = time.thread_time()
            model(torch.ones(4)).square().mean().backward()
            times.append(time.thread_time() - began)
        return statistics.median(times)

    turns = []
    for _ in range(20):
        without_s = passes()
        timeline = TrainingTimeline(model, HostMarks())
        timeline.begin()
        turns.append(passes() - without_s)
        timeline.end()
    return max(0.0, statistics.median(turns))


class Scale(nn.Module):
    """A layer of one or two tiny tensors."""

    def __init__(self, tensors: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.bias = nn.Parameter(torch.ones(4)) if tensors == 2 else None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scaled = inputs * self.weight
        return scaled if self.bias is None else scaled * self.bias


def chain(tensors: int, layers: int) -> nn.Sequential:
    """So many tensors in so many layers, and nothing to compute."""
    ends = [layer * (tensors - layers) // layers for layer in range(layers + 1)]
    return nn.Sequential(*(Scale(1 + later - before) for before, later in itertools.pairwise(ends)))


FUSED = Config(4_000_000, 16_000_000, knobs={"fusion": 1})  # what training begins with
WHOLE = Config(4_000_000, 16_000_000)  # ByteScheduler as published: every tensor is a block
CUT = Config(4, 16_000_000)  # a block for every element
DDP = Config(25_000_000, 25_000_000, policy="ddp")  # what `auto` keeps where nothing is faster

RESNET50, DENSENET121 = (161, 107), (364, 242)  # tensors, layers
MANY = {1_000: 500, 5_000: 2_500, 20_000: 10_000}


class Spent(NamedTuple):
    """CPU of a step (s) of AutoByte, DistributedDataParallel and plain training, and blocks of AutoByte's."""

    tensors: int
    blocks: int
    thread: list[float]
    process: list[float]

    @property
    def per_tensor(self) -> float:
        """On the thread that trains, over plain training (s)."""
        return (self.thread[0] - self.thread[2]) / self.tensors

    @property
    def per_tensor_of_ddp(self) -> float:
        """The same of DistributedDataParallel (s)."""
        return (self.thread[1] - self.thread[2]) / self.tensors

    def row(self, engine: str, policy: str) -> str:
        ours, ddp, plain = (1e3 * seconds for seconds in self.thread)
        all_threads, all_ddp, _ = (1e3 * seconds for seconds in self.process)
        others = 1e6 * self.per_tensor_of_ddp
        return (
            f"{self.tensors:6} {engine:>15} {policy:>5} {self.blocks:6} {ours:9.2f} {ddp:8.2f} {plain:8.2f} "
            f"{all_threads:9.2f} {all_ddp:8.2f} {1e6 * self.per_tensor:8.1f} {others:6.1f}"
        )


HEAD = (
    "ms of CPU a step, and µs per tensor on the thread that trains, over plain training\n"
    "tensors         engine  plan blocks      ours      DDP    plain   process     DDP's  a tensor  DDP's"
)


def spent(size: tuple[int, int], engine: str, config: Config, *, steps: int = 30) -> Spent:
    """Train on two ranks; the first one's times.

    No side follows on itself, each follows on both others: a step right behind its like finds code and data in the
    caches, as no training does, whose model computes in between. It takes a quarter less, and where half of the steps
    are of that kind, the median is now of the one kind, now of the other.
    """
    return Spent(size[0], *on_ranks(_spent, 2, size, engine, config, steps, timeout_s=280)[0])


def _spent(rank: int, size: tuple[int, int], engine: str, config: Config, steps: int) -> tuple[Any, ...]:
    torch.set_num_threads(1)
    instant()
    models = [chain(*size) for _ in range(3)]
    assert sum(1 for _ in models[0].parameters()) == size[0]
    sgd = [torch.optim.SGD(model.parameters(), lr=0.01, foreach=True) for model in models]
    wrapped = ab.DistributedOptimizer(sgd[0], models[0], engine=engine, config=config, keep=None, drift=math.inf)
    sides: list[tuple[nn.Module, Any]]
    sides = [(models[0], wrapped), (DistributedDataParallel(models[1]), sgd[1]), (models[2], sgd[2])]
    blocks, times = 0, []
    for step in range(steps + 5):
        row = []
        for turn in range(3):
            place = (step + turn) % 3
            model, optimizer = sides[place]
            before, began = Instant.blocks, (time.thread_time(), time.process_time())
            optimizer.zero_grad()
            model(torch.ones(4)).square().mean().backward()
            optimizer.step()
            row.append((place, time.thread_time() - began[0], time.process_time() - began[1]))
            blocks = blocks if place else Instant.blocks - before
        times.append([seconds for _, *seconds in sorted(row)])
    wrapped.close()
    thread, process = torch.tensor(times[5:]).median(dim=0).values.T.tolist()
    return blocks, thread, process


def test_cpu_of_a_step_beside_ddp() -> None:
    """Models of tiny tensors, where nothing but hooks, packing, scheduling and updates takes time.

    What a step costs once is in the time per tensor, too; the last lines take the two apart, by a straight line
    through the three sizes.
    """
    print("\n" + HEAD)
    missed, fused = [], defaultdict[str, list[Spent]](list)
    for size in (RESNET50, DENSENET121, (1_000, MANY[1_000])):
        for engine in ("instant", "instant-ordered", "allreduce", "ordered"):
            for policy, config in (("fused", FUSED), ("whole", WHOLE), ("ddp", DDP)):
                of = spent(size, engine, config)
                print(of.row(engine, policy), flush=True)
                fused[engine] += [of] if policy == "fused" else []
                if engine == "instant" and policy == "fused" and of.per_tensor > 15e-6:
                    missed.append(f"{size[0]} tensors: {of.per_tensor * 1e6:.1f} µs per tensor, at most 15")
                if size is RESNET50 and policy == "fused" and of.thread[0] - of.thread[1] > 3e-3:
                    missed.append(f"{engine}: {(of.thread[0] - of.thread[1]) * 1e3:.1f} ms more than DDP, at most 3")
    for engine, sizes in fused.items():
        more_s = [of.thread[0] - of.thread[2] for of in sizes]
        line = statistics.linear_regression([of.tensors for of in sizes], more_s)
        print(f"{engine}: {line.slope * 1e6:.1f} µs for each tensor, and {line.intercept * 1e3:.2f} ms a step")
    assert not missed, missed


def test_a_block_takes_little_cpu() -> None:
    """Blocks of one element beside blocks of a tensor: what a block more takes on the thread that trains."""
    for engine in ("instant", "instant-ordered"):
        few, many = (spent(DENSENET121, engine, config) for config in (WHOLE, CUT))
        block_s = (many.thread[0] - few.thread[0]) / (many.blocks - few.blocks)
        print(f"\n{engine}: {block_s * 1e6:.1f} µs of CPU per block (at most 60)")
        assert block_s <= 60e-6


def test_cost_grows_as_the_number_of_tensors_does() -> None:
    print("\n" + HEAD)
    each = {}
    for size in MANY.items():
        for policy, config in (("fused", FUSED), ("whole", WHOLE)):
            of = each[size[0], policy] = spent(size, "instant", config, steps=5)
            print(of.row("instant", policy), flush=True)
    for policy in ("fused", "whole"):
        few, many = (each[tensors, policy] for tensors in (1_000, 20_000))
        plainly = many.thread[2] / few.thread[2] / 20  # caches are too small for plain training, too
        assert many.per_tensor <= 1.5 * max(1.0, plainly) * few.per_tensor


def test_wrapping_grows_as_the_number_of_tensors_does() -> None:
    """Without Python's garbage collector: one full collection takes as long as to wrap 10,000 tensors."""
    each = on_ranks(_wrapping, 2, timeout_s=200)[0]
    for tensors, seconds in each.items():
        print(f"\n{tensors:6} tensors: {1e6 * seconds:.1f} µs of CPU per tensor to wrap")
    assert each[20_000] <= 1.5 * each[1_000]


def _wrapping(rank: int) -> dict[int, float]:
    """Seconds per tensor on the thread that trains, of the fastest of three; by number of tensors."""
    torch.set_num_threads(1)
    gc.disable()
    spent_s: dict[int, float] = {}
    for size in MANY.items():
        times = []
        for _ in range(3):
            model = chain(*size)
            began_s = time.thread_time()
            optimizer = ab.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.01), model, policy="bytescheduler", keep=None
            )
            times.append(time.thread_time() - began_s)
            optimizer.close()
        spent_s[size[0]] = min(times) / size[0]
    return spent_s


class Dense(nn.Module):
    """A layer of DenseNet, which adds 32 channels to what it is given."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 128, 1, bias=False))
        self.second = nn.Sequential(nn.BatchNorm2d(128), nn.ReLU(), nn.Conv2d(128, 32, 3, padding=1, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.second(self.first(x))], 1)


def densenet121() -> nn.Sequential:
    channels = 64
    parts: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)]
    for layers in (6, 12, 24, 16):
        if channels > 64:
            pooled = nn.Conv2d(channels, channels // 2, 1, bias=False)
            parts += [nn.BatchNorm2d(channels), nn.ReLU(), pooled, nn.AvgPool2d(2)]
            channels //= 2
        for _ in range(layers):
            parts.append(Dense(channels))
            channels += 32
    parts += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*parts)


BATCH = 8  # images of a rank: a small one, because copies and guards cost the same for any


class OneByOne:
    """Averages each of which arrives right when its layer is called: every layer but the last is at risk.

    Args:
        names: of the layers' parameters, layer by layer.
        ahead: a device waits, and nothing is copied.
        waits: the first layer's arrive later, else nobody waits.
    """

    failed = False

    def __init__(self, names: list[list[str]], *, ahead: bool, waits: bool) -> None:
        self._layer_of = {name: index for index, layer in enumerate(names) for name in layer}
        self._layers = len(names)
        self.ahead = ahead
        self._late = 1 if waits else 0
        self.begin()

    def begin(self) -> None:
        """A step is closed."""
        self._called = 0

    @property
    def whole(self) -> bool:
        return self._called == self._layers

    def arrived(self, names: Iterable[str]) -> bool:
        return all(self._layer_of[name] <= self._called - (self._called < self._late) for name in names)

    def wait(self, names: Iterable[str]) -> None:
        self._called += 1

    def missing(self, name: str) -> torch.Tensor | None:
        return None


class Guarded:
    """DenseNet121 and the updates of its layers, one by one, with or without guards and copies.

    Args:
        optimizer: makes one.
        guards: classes of parameters are replaced while their update is due.
        copies: the step is at risk until its last average has arrived.
        waits: the first layer waits for as long as copies are made.
    """

    def __init__(
        self, optimizer: Callable[[Any], Any], *, guards: bool, copies: bool = False, waits: bool = False
    ) -> None:
        self.model = densenet121()
        assert sum(parameter.numel() for parameter in self.model.parameters()) == 7_978_856  # as published
        layers = [
            CalledLayer(name, module, [(f"{name}.{own}", p) for own, p in module.named_parameters(recurse=False)])
            for name, module in self.model.named_modules()
            if list(module.parameters(recurse=False))
        ]
        names = [[name for name, _ in layer.parameters] for layer in layers]
        self._averages = OneByOne(names, ahead=not copies, waits=waits)
        self._optimizer = optimizer(self.model.parameters())
        self._updates = Updates(self._optimizer, self._averages)
        self._updates.install(layers, [name for layer in names for name in layer], self.model)
        self._modules = [layer.module for layer in layers]
        if not guards:
            for layer in self._updates._layers:
                layer.classes.set = layer.classes.restore = lambda: None
        for parameter in self.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        self.waited_s = 0.0
        if waits:
            keep = self._updates._former.keep

            def waiting(parameters: Iterable[nn.Parameter]) -> None:
                began_s = time.thread_time()
                keep(parameters)
                self.waited_s += time.thread_time() - began_s

            self._updates._former.keep = waiting

    def step(self) -> None:
        """What `step()` and the forward pass after it do about updates."""
        self._averages.begin()
        self._updates.plan(Clipping())
        for module in self._modules:
            for hook in module._forward_pre_hooks.values():
                hook(module, ())


SGD, MOMENTUM, ADAM = "SGD", "SGD with momentum", "Adam"
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    SGD: lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
    MOMENTUM: lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9),
    ADAM: lambda parameters: torch.optim.Adam(parameters, lr=1e-4),
}


GUARDS = "guards of reads"
WAITING = "guards, and undo copies where a layer waits"
WORST = "guards, and undo copies in the worst case"


@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, ADAM])
def test_reads_and_guards_cost_little(optimizer: str) -> None:
    """Updates of DenseNet121, layer by layer, beside the same without guards of reads and without undo copies.

    Every layer but the last is at risk when it is updated, so all of them are copied. Usually the first layer waits
    for its average, and copies are made meanwhile. In the worst case each average arrives just before its layer is
    called: nobody waits, and the thread that trains makes all copies. A copy brings into the cache what the update
    then reads; so both are measured together.
    """
    torch.set_num_threads(1)
    inputs, make = torch.randn(BATCH, 3, 224, 224), OPTIMIZERS[optimizer]
    neither = Guarded(make, guards=False)
    sides = {
        GUARDS: Guarded(make, guards=True),
        WAITING: Guarded(make, guards=True, copies=True, waits=True),
        WORST: Guarded(make, guards=True, copies=True),
    }

    def forward_and_backward() -> None:
        neither.model(inputs).square().mean().backward()

    passes = in_turn(forward_and_backward, int, clock=time.thread_time, pairs=3)
    step_s = statistics.median(took for took, _ in passes)
    print(f"\n{optimizer}, DenseNet121 on {BATCH} images, {step_s:.2f} s of CPU a pass:")
    shares = {}
    for name, side in sides.items():

        def clock(side: Guarded = side) -> float:
            return time.thread_time() - side.waited_s

        times = in_turn(side.step, neither.step, clock=clock, pairs=40)
        more_s = statistics.median(with_it - without for with_it, without in times)
        shares[name] = more_s / step_s
        limit = "at most 1 %: parameters and state are copied once" if name == WORST else "at most 0.3 %"
        print(f"  {name}: {more_s * 1e3:.2f} ms, {shares[name]:.3%} ({limit})", flush=True)
    assert shares[GUARDS] <= 0.003
    assert shares[WAITING] <= 0.003
    assert shares[WORST] <= 0.01
