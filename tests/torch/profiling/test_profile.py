"""What measuring leaves behind: the model as it was, and where the numbers come from."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from autobyte.errors import InputError
from autobyte.models.profile import Profile
from autobyte.torch.profiling.profile import profile_model


def test_the_model_stays_as_it_was() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(), nn.Conv2d(4, 2, 3)
    )
    model[1].eval()
    parameters = [p.detach().clone() for p in model.parameters()]
    images = torch.randn(2, 3, 8, 8)
    copy, torch_state, python_state = images.clone(), torch.get_rng_state(), random.getstate()
    with torch.no_grad():
        profile_model(model, images, warmup=1, repeats=2)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), parameters, strict=True))
    assert torch.equal(images, copy)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state
    assert [module.training for module in model] == [True, False, True, True, True]
    assert all(p.grad is None for p in model.parameters())
    assert_no_hooks(model)


def test_hooks_are_gone_after_a_failure_in_a_later_pass() -> None:
    model = nn.Sequential(nn.Linear(1, 1), Fragile())
    with pytest.raises(InputError, match="forward failed in layer '1': ValueError: worn out"):
        profile_model(model, torch.ones(1))
    assert_no_hooks(model)


class Fragile(nn.Linear):
    """Breaks in its third pass."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        if self.passes == 3:
            raise ValueError("worn out\nafter three passes")
        return super().forward(x)


def assert_no_hooks(model: nn.Module) -> None:
    for module in model.modules():
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
    for parameter in model.parameters():
        assert not parameter._post_accumulate_grad_hooks


def test_provenance_says_how_and_on_what() -> None:
    calls: list[tuple[int, int]] = []
    images = torch.randn(5, 4)
    profile = profile_model(
        nn.Linear(4, 2), images, warmup=2, repeats=3, name="mine", progress=lambda *c: calls.append(c)
    )
    assert calls == [(n, 5) for n in range(1, 6)]
    assert profile.name == "mine"
    told = profile.provenance
    assert (told["how"], told["device"], told["warmup"], told["repeats"]) == ("measured", "cpu", 2, 3)
    assert (told["torch"], told["threads"], told["inputs"]) == (
        torch.__version__,
        torch.get_num_threads(),
        "float32:5,4",
    )
    assert told["spread"] >= 0
    assert told["device_name"]


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    profile = profile_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), torch.randn(3, 4), warmup=1, repeats=1)
    profile.save(tmp_path / "p.json")
    assert Profile.load(tmp_path / "p.json") == profile
    assert profile.model().parameters == 30


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda:99", "device 'cuda:99' is not there: torch sees [0-9]+ CUDA devices; say --device cpu"),
        ("gpu", "unknown device 'gpu'; write cpu, cuda or cuda:1"),
        ("meta", "unknown device 'meta'"),
    ],
)
def test_a_device_that_is_not_there_is_said(device: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        profile_model(nn.Linear(4, 2), torch.ones(3, 4), device=device)


@pytest.mark.parametrize("counts", [{"warmup": 0}, {"repeats": 0}])
def test_there_is_at_least_one_pass(counts: dict[str, int]) -> None:
    with pytest.raises(InputError, match="must be at least 1, got 0"):
        profile_model(nn.Linear(4, 2), torch.ones(3, 4), **counts)
