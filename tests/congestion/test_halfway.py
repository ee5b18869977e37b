"""A state of a training puts the model and Adam back as they were."""

from pathlib import Path

import torch

from autobyte.congestion.halfway import HalfTraining, discard_half, load_half, save_half
from autobyte.congestion.model import ActorCritic


def stepped(model: ActorCritic, optimizer: torch.optim.Optimizer) -> None:
    """One step of descent."""
    optimizer.zero_grad()
    model.actor(torch.ones(3, 33)).square().sum().backward()
    model.critic(torch.ones(3, 33)).square().sum().backward()
    optimizer.step()


def test_a_model_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    path, models = tmp_path / "half.npz", [ActorCritic(seed=1), ActorCritic(seed=2)]
    first, second = (torch.optim.Adam(model.parameters(), lr=1e-2) for model in models)
    for _ in range(3):
        stepped(models[0], first)
    save_half(path, HalfTraining.of(models[0], first, 3, reward=0.5, cpu_s=2.0, seconds=1.0), recipe="a")
    half = load_half(path, recipe="a")
    assert (half.iteration, half.reward, half.cpu_s, half.seconds) == (3, 0.5, 2.0, 1.0)
    half.put(models[1], second)
    for model, optimizer in zip(models, (first, second), strict=True):
        stepped(model, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(*(m.state_dict().values() for m in models), strict=True))
    discard_half(path)
    discard_half(path)
    assert not path.exists()
