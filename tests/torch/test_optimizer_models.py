"""Models of every kind, each beside DDP, or plain training by hand."""

import logging
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import RankError, on_ranks
from stories import (
    SMALL,
    STEPS,
    assert_equal,
    from_rank_0,
    make_mlp,
    parameters_of,
    rows,
    sgd,
    train,
    with_ab,
    with_ddp,
)
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import autobyte.torch as ab


class Branches(nn.Module):
    """A frozen layer, one that only some ranks use, one that nobody uses, and parameters of an owner not called."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.first, self.never = nn.Linear(12, 12), nn.Linear(12, 16), nn.Linear(3, 3)
        self.some, self.last = nn.Linear(16, 16), nn.Linear(16, 4)
        self.scale = nn.ParameterList([torch.ones(4), torch.zeros(4)])
        self.frozen.requires_grad_(False)

    def forward(self, inputs: Tensor, detour: bool) -> Tensor:
        hidden = self.first(self.frozen(inputs)).tanh()
        if detour:
            hidden = self.some(hidden)
        return self.last(hidden) * self.scale[0] + self.scale[1]


@pytest.mark.parametrize("engine", ["allreduce", "ps", "ordered"])
def test_frozen_unused_and_uncalled_parameters(engine: str) -> None:
    on_ranks(_branches, 2, engine)


def _branches(rank: int, engine: str) -> None:
    """DDP with `find_unused_parameters`, on ranks that take different ways, or none takes the detour."""

    def story(wrap: Any, **keywords: Any) -> list[Tensor]:
        torch.manual_seed(0)
        module = Branches()
        optimizer = torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=0.1)
        model, optimizer = wrap(module, optimizer, **keywords)
        for step in range(12):
            optimizer.zero_grad()
            detour = (step % 4 == rank) or step % 4 == 3
            model(rows(rank, step, 5, 12), detour).square().mean().backward()
            optimizer.step()
            if wrap is with_ab and step == 6:
                optimizer.flush()
                assert module.never.weight.grad is None
        return parameters_of(module, optimizer)

    ours, theirs = story(with_ab, engine=engine), story(with_ddp, find_unused_parameters=True)
    assert_equal(ours, theirs)


class Images(nn.Module):
    """Convolutions in channels-last memory, one of which only some ranks use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.some = nn.Conv2d(3, 5, 3), nn.Conv2d(5, 4, 2)
        self.to(memory_format=torch.channels_last)

    def forward(self, inputs: Tensor, detour: bool) -> Tensor:
        hidden = self.first(inputs)
        return self.some(hidden) if detour else hidden


@pytest.mark.parametrize("engine", ["allreduce", "ps", "ordered"])
def test_gradients_in_channels_last_that_some_ranks_lack(engine: str) -> None:
    on_ranks(_images, 2, engine)


def _images(rank: int, engine: str) -> None:
    def story(wrap: Any, **keywords: Any) -> list[Tensor]:
        torch.manual_seed(0)
        module = Images()
        model, optimizer = wrap(module, sgd(module), **keywords)
        for step in range(8):
            optimizer.zero_grad()
            inputs = rows(rank, step, 2, 3 * 6 * 6).view(2, 3, 6, 6)
            model(inputs, step % 2 == rank).square().mean().backward()
            optimizer.step()
        return parameters_of(module, optimizer)

    assert_equal(story(with_ab, engine=engine), story(with_ddp, find_unused_parameters=True))


def test_thawing_a_frozen_parameter_is_refused() -> None:
    with pytest.raises(RankError, match=r"'frozen\.\w+' was frozen when the optimizer was wrapped"):
        on_ranks(_thawing, 2)


def _thawing(rank: int) -> None:
    torch.manual_seed(0)
    module = Branches()
    model, optimizer = with_ab(module, sgd(module))
    for step in range(3):
        module.frozen.requires_grad_(step > 1)
        optimizer.zero_grad()
        model(rows(rank, step, 5, 12), True).square().mean().backward()
        optimizer.step()


def test_thawed_layers_are_trained_once_they_are_wrapped_again() -> None:
    on_ranks(_wrapped_again, 2)


def _wrapped_again(rank: int) -> None:
    def story(wrap: Any) -> list[Tensor]:
        module = make_mlp()
        module[0].requires_grad_(False)
        model, optimizer = wrap(module, sgd(module))
        train(model, optimizer, rank)
        if wrap is with_ab:
            optimizer.close()
        module[0].requires_grad_(True)
        model, optimizer = wrap(module, sgd(module))
        train(model, optimizer, rank, range(STEPS, 2 * STEPS))
        return parameters_of(module, optimizer)

    assert_equal(story(with_ab), story(with_ddp))


class Language(nn.Module):
    """A small transformer: embedding and head tied, attention whose `out_proj` is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        mixed, _ = self.attention(hidden, hidden, hidden, need_weights=False)
        return self.head(self.norm(hidden + mixed))


@pytest.mark.parametrize("engine", ["allreduce", "ps", "ordered"])
def test_tied_weights_and_attention(engine: str) -> None:
    on_ranks(_language, 2, engine)


def _language(rank: int, engine: str) -> None:
    def story(wrap: Any, **keywords: Any) -> list[Tensor]:
        torch.manual_seed(0)
        module = Language()
        model, optimizer = wrap(module, torch.optim.AdamW(module.parameters(), lr=0.01), **keywords)
        for step in range(STEPS):
            optimizer.zero_grad()
            tokens = (rows(rank, step, 3, 7) * 100).long() % 20
            nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten()).backward()
            optimizer.step()
        return parameters_of(module, optimizer)

    assert_equal(story(with_ab, engine=engine), story(with_ddp))


def test_batch_norm_follows_rank_0_when_asked() -> None:
    on_ranks(_batch_norm, 2)


def _batch_norm(rank: int) -> None:
    torch.manual_seed(rank)
    module = nn.Sequential(nn.Linear(12, 6), nn.BatchNorm1d(6))
    model, optimizer = with_ab(module, sgd(module))
    train(model, optimizer, rank)
    mean = module[1].running_mean
    assert not torch.equal(mean, from_rank_0(mean)) or rank == 0
    optimizer.broadcast_buffers()
    assert torch.equal(mean, from_rank_0(mean))
    model.eval()
    out = model(torch.ones(2, 12))
    assert torch.equal(out, from_rank_0(out))


def test_several_models_in_one_process() -> None:
    on_ranks(_adversaries, 2)


def _adversaries(rank: int) -> None:
    """A GAN's steps: the generator's backward pass goes through the discriminator, whose gradients are given up."""

    def story(wrap: Any) -> list[Tensor]:
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 12))
        judging = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 1))
        (g, g_step), (d, d_step) = (
            wrap(m, torch.optim.Adam(m.parameters(), lr=0.01, betas=(0.5, 0.999))) for m in (made, judging)
        )
        for step in range(STEPS):
            d_step.zero_grad()
            fake = g(rows(rank, step, 6, 4))
            both = torch.cat([d(rows(rank, step + 500, 6, 12)), -d(fake.detach())])
            nn.functional.softplus(-both).mean().backward()
            d_step.step()
            g_step.zero_grad()
            nn.functional.softplus(-d(fake)).mean().backward()
            g_step.step()
        return parameters_of(made, g_step) + parameters_of(judging, d_step)

    def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        """Plain training, gradients averaged in `step`: DDP refuses two passes through one model."""
        step = optimizer.step

        def averaged() -> None:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad.mul_(0.5))
            step()

        optimizer.step = averaged  # type: ignore[method-assign, assignment]
        return model, optimizer

    assert_equal(story(with_ab), story(by_hand))


def test_two_optimizers_share_a_model() -> None:
    on_ranks(_two_optimizers, 2)


def _two_optimizers(rank: int) -> None:
    def story(wrap: Any) -> list[Tensor]:
        module = make_mlp()
        halves = [
            torch.optim.SGD(module[:2].parameters(), lr=0.1, momentum=0.9),
            torch.optim.Adam(module[2:].parameters(), lr=0.01),
        ]
        model = module
        if wrap is with_ab:
            halves = [ab.DistributedOptimizer(half, module, config=SMALL) for half in halves]
        else:
            model = DistributedDataParallel(module)
        for step in range(STEPS):
            for half in halves:
                half.zero_grad()
            model(rows(rank, step, 5, 12)).square().mean().backward()
            for half in halves:
                half.step()
        for half in halves:
            if wrap is with_ab:
                half.flush()
        return [parameter.detach().clone() for parameter in module.parameters()]

    assert_equal(story(with_ab), story(with_ddp))


@pytest.mark.parametrize("engine", ["allreduce", "ps", "ordered"])
def test_parameters_of_every_dtype(engine: str) -> None:
    on_ranks(_dtypes, 2, engine)


def _dtypes(rank: int, engine: str) -> None:
    """Each alone, and mixed in one model: only gradients of one dtype fuse."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.narrow = make_mlp().double(), nn.Linear(4, 4).bfloat16()

        def forward(self, inputs: Tensor) -> Tensor:
            return self.narrow(self.wide(inputs.double()).bfloat16()).float()

    def story(wrap: Any, make: Any, dtype: torch.dtype, **keywords: Any) -> list[Tensor]:
        torch.manual_seed(0)
        model, optimizer = wrap(module := make(), sgd(module), **keywords)
        for step in range(STEPS):
            optimizer.zero_grad()
            model(rows(rank, step, 5, 12).to(dtype)).square().mean().backward()
            optimizer.step()
        return parameters_of(module, optimizer)

    for make, dtype in (
        (lambda: make_mlp().double(), torch.float64),
        (lambda: make_mlp().bfloat16(), torch.bfloat16),
        (lambda: make_mlp().half(), torch.float16),
        (Mixed, torch.float32),
    ):
        assert_equal(story(with_ab, make, dtype, engine=engine), story(with_ddp, make, dtype))


def test_activations_may_be_computed_again() -> None:
    on_ranks(_checkpointed, 2)


def _checkpointed(rank: int) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = make_mlp()

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = checkpoint(self.body[:3], inputs, use_reentrant=False)
            return checkpoint(self.body[3:], hidden, use_reentrant=False)

    def story(wrap: Any) -> list[Tensor]:
        model, optimizer = wrap(module := Model(), sgd(module))
        train(model, optimizer, rank)
        return parameters_of(module, optimizer)

    assert_equal(story(with_ab), story(with_ddp))


@pytest.mark.parametrize("what", ["model", "layers"])
def test_compiled_models_train_correctly(what: str) -> None:
    on_ranks(_compiled, 2, what, timeout_s=120)


def _compiled(rank: int, what: str) -> None:
    """The backend that traces without a compiler: what AutoByte sees of `torch.compile` is the same."""

    def story(wrap: Any) -> list[Tensor]:
        module = make_mlp()
        model, optimizer = wrap(module, sgd(module))
        if wrap is with_ab:
            if what == "model":
                model = torch.compile(module, backend="aot_eager")
            else:
                for layer in module:
                    layer.compile(backend="aot_eager")
        train(model, optimizer, rank)
        return parameters_of(module, optimizer)

    assert_equal(story(with_ab), story(with_ddp))


@pytest.mark.parametrize("first", ["itself", "another"])
def test_what_was_compiled_before_wrapping_sees_all_updates(first: str) -> None:
    on_ranks(_compiled_before, 2, first, timeout_s=120)


def _compiled_before(rank: int, first: str) -> None:
    """The bare model is handed in; a graph without hooks was made of it, or of another with the same code."""
    model, inputs = make_mlp(), rows(9, 9, 5, 12)
    if first == "itself":
        compiled = torch.compile(model, backend="aot_eager")
        compiled(inputs).sum().backward()
        model.zero_grad()
    optimizer = ab.DistributedOptimizer(sgd(model), model, config=SMALL)
    if first == "another":
        torch.compile(make_mlp(), backend="aot_eager")(inputs)
        compiled = torch.compile(model, backend="aot_eager")
    for step in range(6):
        train(model if step % 2 else compiled, optimizer, rank, range(step, step + 1))
        with torch.no_grad():
            seen = compiled(inputs)
            optimizer.flush()
            assert torch.equal(seen, model(inputs))


def test_a_group_of_some_ranks() -> None:
    on_ranks(_groups_of_ranks, 4)


def _groups_of_ranks(rank: int) -> None:
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = groups[rank % 2]

    def story(wrap: Any, **keywords: Any) -> list[Tensor]:
        model, optimizer = wrap(module := make_mlp(seed=rank), sgd(module), **keywords)
        train(model, optimizer, rank)
        return parameters_of(module, optimizer)

    assert_equal(story(with_ab, process_group=mine), story(with_ddp, process_group=mine))


@pytest.mark.parametrize("what", ["layer", "forward", "replaced", "whole"])
def test_parts_that_are_compiled_after_wrapping(what: str) -> None:
    """With `fullgraph=True`, which refuses hooks that are not traced."""
    on_ranks(_compiled_after, 2, what, timeout_s=120)


class _Part(nn.Module):
    """Not one of PyTorch's own modules, which `fullgraph=True` refuses to compile by themselves."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


def _compiled_after(rank: int, what: str) -> None:
    outcomes = []
    for how in (with_ddp, with_ab):
        for begin in (0, 4):
            torch._dynamo.reset()
            mlp = list(make_mlp())
            module = _Part(*mlp[:2], _Part(*mlp[2:]))
            model, optimizer = how(module, sgd(module))
            train(model, optimizer, rank, range(begin))
            if how is with_ab:
                _compile(module, what)
            train(model, optimizer, rank, range(begin, 8))
            outcomes.append(parameters_of(module, optimizer))
    for ours, theirs in zip(outcomes[2:], outcomes[:2], strict=True):
        assert_equal(ours, theirs)


@pytest.mark.parametrize("begin", [0, 4])
def test_no_layer_is_timed_once_parts_are_compiled(begin: int) -> None:
    """And the log says so where nothing was measured before."""
    on_ranks(_timed_no_more, 2, begin, timeout_s=120)


def _timed_no_more(rank: int, begin: int) -> None:
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("autobyte").addHandler(handler)
    mlp = list(make_mlp())
    module = _Part(*mlp[:2], _Part(*mlp[2:]))
    model, optimizer = with_ab(module, sgd(module), on_window=print)
    train(model, optimizer, rank, range(begin))
    _compile(module, "layer")
    train(model, optimizer, rank, range(begin, 8))
    times = optimizer._mode._times
    if begin:
        assert times.sample() is None  # else backward would last from the last pass that was seen until now
    else:
        assert times is None
    assert lines == (
        []
        if begin or rank
        else ["the model is compiled: nothing is planned or tuned, and on_window= and log_to= hear nothing"]
    )
    report = optimizer.report()
    assert report is not None and report.unmeasured.startswith(
        "" if begin else "the model is compiled, so its layers"
    )
    assert bool(report.unmeasured) == (not begin)
    optimizer.close()


def _compile(module: _Part, what: str) -> None:
    part = module.parts[2]
    if what == "layer":
        part.compile(backend="aot_eager", fullgraph=True)
    elif what == "forward":
        part.forward = torch.compile(part.forward, backend="aot_eager", fullgraph=True)
    elif what == "replaced":
        module.parts[2] = torch.compile(part, backend="aot_eager")
    else:
        module.compile(backend="aot_eager", fullgraph=True)
