"""Training gives what DDP gives: to the bit on two ranks."""

import itertools
import time
from functools import partial
from random import Random

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.exchange import engines
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.streams import HostStreams
from autobyte.scheduler.policies import POLICIES
from autobyte.torch.exchange import ways
from autobyte.torch.exchange.mirrors import Mirrors

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.1),
}
ENGINES = ("allreduce", "ps", "ordered")
STEPS, LONG = 12, 20  # a plan on measured times is made after 5 to 9 steps, and one more after 17 to 19
#: Every policy on every engine; servers push and pull, and have no halves of all-reduces as dear sends them.
ENTRANTS = [*POLICIES.names(), "bytescheduler:fusion", "usbyte:published", "usbyte:fusion=0"]
TRAINED = [each for each in itertools.product(ENGINES, ENTRANTS) if each != ("ps", "dear")]
HOOKS = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}


def make_model(seed: int = 0) -> nn.Module:
    """Convolution, batch norm and linear layers: 13 tensors of 8 to 6144 elements."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 6, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 64, 16),
        nn.Tanh(),
        nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)),
        nn.Linear(16, 10),
    )


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(6, 1, 8, 8, generator=generator), torch.randint(10, (6,), generator=generator)


def loss_of(model: nn.Module, rank: int, step: int) -> Tensor:
    inputs, labels = batch(rank, step)
    return nn.functional.cross_entropy(model(inputs), labels)


def small(entrant: str) -> Config:
    """Blocks small enough that tensors are cut, some in more than one, and little may travel at once."""
    policy, _, knob = entrant.partition(":")
    name, _, value = knob.partition("=")
    partition, credit = {0: (1, 1), 1: (4096, 4096), 2: (4096, 8192)}[len(POLICIES[policy].sizes)]
    return Config(partition, credit, policy, {name: float(value or 1)} if knob else {})


def by_ddp(
    rank: int,
    optimizer: str,
    *,
    accumulation: int = 1,
    hook: str | None = None,
    bucket_mb: float = 25,
    steps: int = STEPS,
) -> list[Tensor]:
    """Parameters and buffers after so many steps."""
    model = make_model(seed=rank)
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
    if hook is not None:
        # by another name: DDP lets the bf16 hook have NCCL only, and gloo can do it
        ddp.register_comm_hook(None, lambda state, bucket: HOOKS[hook](state, bucket))  # noqa: PLW0108
    stepping = OPTIMIZERS[optimizer](model.parameters())
    for step in range(steps):
        stepping.zero_grad()
        for part in range(accumulation - 1):
            with ddp.no_sync():
                loss_of(ddp, rank, step * 10 + part).backward()
        loss_of(ddp, rank, step * 10 + 9).backward()
        stepping.step()
    return state_of(model)


def by_autobyte(
    rank: int, optimizer: str, *, accumulation: int = 1, steps: int = STEPS, **keywords: object
) -> list[Tensor]:
    """The same with AutoByte."""
    model = make_model(seed=rank)
    stepping = ab.DistributedOptimizer(
        OPTIMIZERS[optimizer](model.parameters()),
        model,
        accumulation=accumulation,
        **{"policy": "bytescheduler"} | keywords,
    )
    for step in range(steps):
        stepping.zero_grad()
        for part in [*range(accumulation - 1), 9]:
            loss_of(model, rank, step * 10 + part).backward()
        stepping.step()
    state = state_of(model, stepping)
    stepping.close()
    return state


def state_of(model: nn.Module, optimizer: ab.DistributedOptimizer | None = None) -> list[Tensor]:
    if optimizer is not None:
        optimizer.flush()
    tensors = dict(model.named_parameters())
    if dist.get_rank() == 0:
        tensors |= dict(model.named_buffers())
    return [tensor.detach().clone() for tensor in tensors.values()]


def equal(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return len(ours) == len(theirs) and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def compare_wire(rank: int, wire_dtype: str, optimizer: str, accumulation: int) -> list[str]:
    compressed = by_ddp(rank, optimizer, accumulation=accumulation, hook=wire_dtype)
    assert not equal(compressed, by_ddp(rank, optimizer, accumulation=accumulation))
    return compare_all(rank, optimizer, accumulation, wire_dtype, accumulation // 2)


def compare_all(
    rank: int, optimizer: str, accumulation: int, wire_dtype: str | None, part: int, steps: int = STEPS
) -> list[str]:
    """Policies on engines: one of two parts of all pairs, which have none in common."""
    expected = by_ddp(rank, optimizer, accumulation=accumulation, hook=wire_dtype, steps=steps)
    wrong = []
    for engine, policy in TRAINED[part::2]:
        told = {"engine": engine, "config": small(policy), "wire_dtype": wire_dtype}
        ours = by_autobyte(rank, optimizer, accumulation=accumulation, steps=steps, **told)
        if not equal(ours, expected):
            wrong.append(f"{engine} {policy}")
    return wrong


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_ranks_have_ddps_parameters_to_the_bit(optimizer: str, accumulation: int) -> None:
    """Every pair of an engine and a policy with every optimizer, and with every accumulation."""
    part, steps = (1 - accumulation // 2, LONG) if optimizer == "adamw" else (accumulation // 2, STEPS)
    assert on_ranks(compare_all, 2, optimizer, accumulation, None, part, steps) == [[], []]


def compare_mirrored(rank: int, accumulation: int) -> list[str]:
    assert ways.Mirrors is Mirrors
    ways.Mirrors = partial(Mirrors, everywhere=True)  # type: ignore[assignment, misc]
    return compare_all(rank, "sgd", accumulation, None, accumulation // 2)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_gradients_that_travel_from_copies_give_the_same(accumulation: int) -> None:
    """As those of a GPU do."""
    assert on_ranks(compare_mirrored, 2, accumulation) == [[], []]


def compare_late(rank: int, accumulation: int, waits: bool, steps: int = STEPS) -> list[str]:
    """Kernels and communication are late, each rank's in a way of its own, and what is not there yet is NaN."""
    random = Random(rank)
    late_s = 2e-3 if waits else 2e-2  # so late that a busy machine does not wait for them by chance
    late = partial(HostStreams, hide=True, late=lambda: time.sleep(random.random() * late_s))
    engines.STREAMS["ordered"] = lambda _parameters, timeout: late(timeout_s=timeout.total_seconds())
    if not waits:
        Buffers.complete = lambda *_: []  # type: ignore[method-assign]
    told = {"accumulation": accumulation, "steps": steps}
    expected = by_ddp(rank, "sgd", **told)
    return [
        policy
        for engine, policy in TRAINED
        if engine == "ordered"
        and not equal(by_autobyte(rank, "sgd", engine=engine, config=small(policy), **told), expected)
    ]


@pytest.mark.parametrize("accumulation", [1, 3])
def test_late_kernels_and_late_ranks_change_nothing(accumulation: int) -> None:
    assert on_ranks(compare_late, 2, accumulation, True) == [[], []]


def test_without_waiting_for_gradients_all_would_be_wrong() -> None:
    """So the test above can fail."""
    assert on_ranks(compare_late, 2, 1, False, 3) == [ENTRANTS] * 2


@pytest.mark.parametrize(
    ("wire_dtype", "optimizer", "accumulation"),
    [("bf16", "sgd", 3), ("bf16", "adamw", 1), ("fp16", "sgd", 1)],
)
def test_compressed_gradients_are_those_of_ddps_hook(wire_dtype: str, optimizer: str, accumulation: int) -> None:
    assert on_ranks(compare_wire, 2, wire_dtype, optimizer, accumulation) == [[], []]


def distances(rank: int) -> tuple[float, dict[str, float]]:
    """Between DDP runs whose buckets differ, and from DDP to each engine and policy."""
    by_bucket = [by_ddp(rank, "sgd", bucket_mb=mib) for mib in (0.001, 0.01, 0.03, 25)]
    ours = {
        f"{engine} {policy}": by_autobyte(rank, "sgd", engine=engine, config=small(policy))
        for engine, policy in TRAINED
        if policy in ("bytescheduler:fusion", "p3", "ddp", "usbyte", "dear")
    }
    among = max(distance(a, b) for a, b in itertools.combinations(by_bucket, 2))
    return among, {name: min(distance(run, other) for other in by_bucket) for name, run in ours.items()}


def distance(ours: list[Tensor], theirs: list[Tensor]) -> float:
    return max(float((a.double() - b.double()).abs().max()) for a, b in zip(ours, theirs, strict=True))


def test_four_ranks_are_as_near_to_ddp_as_ddp_to_itself() -> None:
    for among, to_ddp in on_ranks(distances, 4):
        assert among > 0
        assert max(to_ddp.values()) <= 2 * among, (among, to_ddp)


def worst_errors(rank: int, engine: str) -> list[float]:
    """Every step's largest error of an averaged gradient, in units of what rounding explains."""
    model = make_model()
    optimizer = ab.DistributedOptimizer(
        OPTIMIZERS["adam"](model.parameters()), model, engine=engine, config=small("bytescheduler:fusion")
    )
    alone = make_model()
    errors = []
    for step in range(STEPS):
        alone.load_state_dict(model.state_dict())
        alone.zero_grad()
        loss_of(alone, rank, step).backward()
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.synchronize()
        errors.append(
            max(_error(a.grad, b.grad) for a, b in zip(model.parameters(), alone.parameters(), strict=True))
        )
        optimizer.step()
    optimizer.close()
    return errors


def _error(averaged: Tensor | None, own: Tensor | None) -> float:
    assert averaged is not None and own is not None
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, own.contiguous())
    exact = torch.stack(rows).double()
    rounding = len(rows) * torch.finfo(torch.float32).eps * exact.abs().mean(dim=0) + 1e-30
    return float(((averaged.double() - exact.mean(dim=0)).abs() / rounding).max())


@pytest.mark.parametrize("engine", ENGINES)
def test_four_ranks_average_within_rounding(engine: str) -> None:
    for errors in on_ranks(worst_errors, 4, engine):
        assert len(errors) == STEPS
        assert max(errors) <= 1


def compare_options(rank: int) -> list[str]:
    """What changes when and in which order things happen, and nothing else."""
    everyone = dist.new_group([0, 1])
    options: list[dict[str, object]] = [
        {"engine": engine, **option}
        for engine in ENGINES
        for option in ({"cross_step": False}, {"order": "leader"}, {"process_group": everyone})
    ]
    wrong = []
    for optimizer in ("sgd", "adam"):
        expected = by_ddp(rank, optimizer)
        for option in options:
            if not equal(by_autobyte(rank, optimizer, config=small("bytescheduler:fusion"), **option), expected):
                wrong.append(f"{optimizer} {option}")
    return wrong


def test_no_option_changes_what_is_trained() -> None:
    assert on_ranks(compare_options, 2) == [[], []]
