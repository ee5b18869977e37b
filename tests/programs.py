"""What users do with parameters between and after steps, each an action on a story that DDP can tell, too."""

import copy
import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from stories import assert_equal, rows, with_ab, with_ddp
from torch import Tensor, nn
from torch.nn.utils import get_total_norm, parameters_to_vector, vector_to_parameters
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Net(nn.Module):
    """Layers, a parameter of its own, a buffer, and a method besides `forward` that reads a weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(12, 20), nn.BatchNorm1d(20), nn.Linear(20, 4)
        self.scale = nn.Parameter(torch.ones(12))

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.last(self.norm(self.first(inputs * self.scale)).tanh())
        return output

    def features(self, inputs: Tensor) -> Tensor:
        return nn.functional.linear(inputs * self.scale, self.first.weight)


class Story:
    """One program on one rank: what it reads is kept, to be compared."""

    def __init__(self, wrap: Callable[..., Any], rank: int, make: str) -> None:
        self.net = Net()
        kinds = {"sgd": (torch.optim.SGD, {"momentum": 0.9}), "adamw": (torch.optim.AdamW, {"weight_decay": 0.1})}
        kind, how = kinds[make]
        self.inner = kind(self.net.parameters(), lr=0.05, **how)
        self.model, self.optimizer = wrap(self.net, self.inner)
        self.rank, self.steps = rank, 0
        self.seen: list[Tensor] = []
        self.average = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.shadow = [p.detach().clone() for p in self.net.parameters()]
        self.saved = {name: t.clone() for name, t in self.net.state_dict().items()}

    def see(self, *tensors: Tensor) -> None:
        self.seen += [tensor.detach().clone() for tensor in tensors]

    def batch(self) -> Tensor:
        return rows(self.rank, self.steps, 5, 12)


def stepping(story: Story, meanwhile: Callable[[Story], None]) -> None:
    """A step in which something happens when backward is over."""
    story.steps += 1
    story.optimizer.zero_grad()
    story.model(story.batch()).square().mean().backward()
    meanwhile(story)
    story.optimizer.step()


def step(story: Story) -> None:
    stepping(story, lambda _: None)


def looking(story: Story) -> None:
    """Averages, before the step that uses them."""
    stepping(story, lambda story: story.see(*(p.grad for p in story.net.parameters() if p.grad is not None)))


def looking_alone(story: Story) -> None:
    """One rank does, from the last parameter on."""
    alone = reversed(list(story.net.parameters()) if story.rank == 0 else [])
    stepping(story, lambda story: story.see(*(p.grad for p in alone if p.grad is not None)))


def looking_about(story: Story) -> None:
    """At gradients and at anything else."""
    stepping(story, lambda story: [look(story) for look in (copied, pickled, gradients, inferred, normed)])


def flushing(story: Story) -> None:
    """What takes updates that are due is done before a look at gradients."""
    stepping(story, lambda story: [look(story) for look in (state, moments, gradients)])


def averaged(story: Story) -> None:
    story.average.update_parameters(story.net)
    story.see(*story.average.module.parameters())


@torch.no_grad()
def shadowed(story: Story) -> None:
    for shadow, parameter in zip(story.shadow, story.net.parameters(), strict=True):
        shadow.sub_(0.1 * (shadow - parameter))
    story.see(*story.shadow)


@torch.no_grad()
def swapped(story: Story) -> None:
    kept = [p.clone() for p in story.net.parameters()]
    for shadow, parameter in zip(story.shadow, story.net.parameters(), strict=True):
        parameter.data.copy_(shadow.data)
    story.net.eval()
    story.see(story.net(torch.ones(2, 12)))
    story.net.train()
    for old, parameter in zip(kept, story.net.parameters(), strict=True):
        parameter.data.copy_(old.data)


@torch.no_grad()
def decayed(story: Story) -> None:
    torch._foreach_mul_(list(story.net.parameters()), 0.99)


@torch.no_grad()
def clamped(story: Story) -> None:
    for parameter in story.net.last.parameters():
        parameter.clamp_(-0.2, 0.2)


def one_weight(story: Story) -> None:
    story.net.first.weight.data.mul_(0.9)


def normed(story: Story) -> None:
    story.see(get_total_norm(story.net.parameters()), *(p.norm() for p in story.net.parameters()))


def method(story: Story) -> None:
    with torch.no_grad():
        story.see(story.net.features(torch.ones(2, 12)))


@torch.inference_mode()
def inferred(story: Story) -> None:
    story.net.eval()
    story.see(story.net(torch.ones(2, 12)), story.net.features(torch.ones(2, 12)))
    story.net.train()


def part(story: Story) -> None:
    with torch.no_grad():
        story.see(story.net.last(torch.ones(2, 20)))


def copied(story: Story) -> None:
    story.see(*(copy.deepcopy(p) for p in story.net.parameters()))


def vector(story: Story) -> None:
    flat = parameters_to_vector(story.net.parameters()).detach().clone()
    story.see(flat)
    vector_to_parameters(flat * 0.9, story.net.parameters())


def state(story: Story) -> None:
    story.see(*story.net.state_dict().values())


def loaded(story: Story) -> None:
    story.net.load_state_dict(story.saved)


def pickled(story: Story) -> None:
    file = io.BytesIO()
    torch.save(list(story.net.parameters()), file)
    file.seek(0)
    story.see(*torch.load(file))


def functional(story: Story) -> None:
    parameters = {name: p.detach() for name, p in story.net.named_parameters()}
    story.net.eval()
    story.see(torch.func.functional_call(story.net, parameters, torch.ones(2, 12)))
    story.net.train()


def buffers(story: Story) -> None:
    story.see(*story.net.buffers())


def cleared(story: Story) -> None:
    story.net.zero_grad()


def learning_rate(story: Story) -> None:
    for group in story.optimizer.param_groups:
        group["lr"] *= 0.9


def moments(story: Story) -> None:
    states = story.optimizer.state_dict()["state"]  # by number: the order in which they were made is nobody's promise
    story.see(*(value for number in sorted(states) for value in states[number].values() if isinstance(value, Tensor)))


def inner_state(story: Story) -> None:
    """Of the user's own optimizer, the one that is wrapped."""
    for parameter in story.net.parameters():
        story.see(*(value for value in story.inner.state[parameter].values() if isinstance(value, Tensor)))


def inner_saved(story: Story) -> None:
    states = copy.deepcopy(story.inner).state_dict()["state"]
    story.see(*(value for number in sorted(states) for value in states[number].values() if isinstance(value, Tensor)))


def inner_loaded(story: Story) -> None:
    saved = story.inner.state_dict()
    step(story)
    story.inner.load_state_dict(saved)  # what the step has learned is forgotten


def gradients(story: Story) -> None:
    story.see(*(p.grad.norm() for p in story.net.parameters() if p.grad is not None))


def forgotten(story: Story) -> None:
    story.optimizer.state.clear()


def numbers(story: Story) -> None:
    story.see(*(torch.from_numpy(p.detach().numpy().copy()) for p in story.net.parameters()))


ACTIONS: dict[str, Callable[[Story], None]] = {
    action.__name__: action
    for action in (
        *(step, averaged, shadowed, swapped, decayed, clamped, one_weight, normed, method, inferred, part, copied),
        *(vector, state, loaded, pickled, functional, buffers, cleared, learning_rate, moments, gradients, forgotten),
        *(numbers, inner_state, inner_saved, inner_loaded, looking, looking_alone, looking_about, flushing),
    )
}


def run(rank: int, batch: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Tell each program with AutoByte and with DDP; what differs."""
    failures = []
    for make, names in batch:
        told = []
        for wrap in (with_ab, partial(with_ddp, broadcast_buffers=False)):
            story = Story(wrap, rank, make)
            for name in names:
                ACTIONS[name](story)
            story.see(*story.net.parameters())
            told.append(story.seen)
            if wrap is with_ab:
                story.optimizer.close()
        try:
            assert_equal(*told)
        except AssertionError as error:
            failures.append(f"{make}: {' '.join(names)}: {error}")
    return failures
