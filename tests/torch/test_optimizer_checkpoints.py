"""Checkpoints of `torch.distributed.checkpoint` and safetensors: what is saved between steps is what DDP saves."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import on_ranks
from stories import assert_equal, make_mlp, parameters_of, rows, sgd, train, with_ab, with_ddp
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, get_state_dict, set_state_dict

from autobyte.errors import InputError

ENGINES = ("allreduce", "ordered", "ps")


def adamw(model: nn.Module, lr: float = 0.01) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr)


def tensors_in(states: dict[str, Any]) -> list[Tensor]:
    """Copies of all tensors in a model's and an optimizer's state."""
    state = [value for each in states["optimizer"]["state"].values() for value in each.values()]
    tensors = [*states["model"].values(), *(value for value in state if isinstance(value, Tensor))]
    return [tensor.detach().clone() for tensor in tensors]


def states_of(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


def load(model: nn.Module, optimizer: Any, folder: str) -> None:
    states = states_of(model, optimizer)
    dcp.load(states, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])


@pytest.mark.parametrize("how", ["saved", "saved beside training", "loaded into a job that trains"])
def test_what_is_saved_and_loaded_is_what_ddp_saves_and_loads(how: str, tmp_path: Path) -> None:
    on_ranks(_saved, 2, how, str(tmp_path))


def _saved(rank: int, how: str, folder: str) -> None:
    beside = dist.new_group([0, 1])  # DDP's own collectives must not come between those of a save

    def story(wrap: Any, name: str, **keywords: Any) -> list[Tensor]:
        model, optimizer = wrap(module := make_mlp(), adamw(module), **keywords)
        train(model, optimizer, rank, range(5))
        states = states_of(model, optimizer)  # updates are in transit
        assert set(states["model"]) == {name for name, _ in module.named_parameters()}
        seen = tensors_in(states)
        if how == "saved beside training":
            saving: Any = dcp.async_save(states, checkpoint_id=f"{folder}/{name}", process_group=beside)
            train(model, optimizer, rank, range(5, 8))
            saving.result()
        else:
            dcp.save(states, checkpoint_id=f"{folder}/{name}")
            train(model, optimizer, rank, range(5, 8))
        trained = parameters_of(module, optimizer)
        resumed, again = wrap(module := make_mlp(seed=3), adamw(module, lr=0.5), **keywords)
        if how == "loaded into a job that trains":
            train(resumed, again, rank, range(50, 53))
        load(resumed, again, f"{folder}/{name}")
        seen += [parameter.detach().clone() for parameter in module.parameters()]
        train(resumed, again, rank, range(5, 8))
        assert_equal(parameters_of(module, again), trained)
        return [*seen, *trained]

    expected = story(with_ddp, "ddp")
    for engine in ENGINES:
        assert_equal(story(with_ab, engine, engine=engine), expected)


def test_one_rank_alone_may_ask_for_the_optimizers_state() -> None:
    """PyTorch then makes state by a step without gradients, which is no step of the training."""
    on_ranks(_asked, 2)


def _asked(rank: int) -> None:
    def story(wrap: Any, momentum: float) -> list[Tensor]:
        module = make_mlp()
        model, optimizer = wrap(module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=momentum))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for step in range(6):
            if rank == step % 2:
                get_optimizer_state_dict(model, optimizer)
            train(model, optimizer, rank, range(step, step + 1))
            schedule.step()
            if step % 3 == 0:
                model.zero_grad()
            assert wrap is with_ddp or optimizer.steps == step + 1
        return parameters_of(module, optimizer)

    for momentum in (0.0, 0.9):
        assert_equal(story(with_ab, momentum), story(with_ddp, momentum))


@pytest.mark.parametrize(("saved", "resumed"), [(2, 3), (3, 2)])
def test_a_distributed_checkpoint_resumes_on_another_number_of_ranks(
    saved: int, resumed: int, tmp_path: Path
) -> None:
    """As DDP does. Three ranks add up in another order, so bits are compared on two only."""
    on_ranks(_save, saved, str(tmp_path))
    on_ranks(_resume, resumed, str(tmp_path))


def _save(rank: int, folder: str) -> None:
    for wrap in (with_ab, with_ddp):
        model, optimizer = wrap(module := make_mlp(), adamw(module))
        train(model, optimizer, rank)
        dcp.save(states_of(model, optimizer), checkpoint_id=f"{folder}/{wrap.__name__}")


def _resume(rank: int, folder: str) -> None:
    ends: dict[tuple[str, str], list[Tensor]] = {}
    for wrap in (with_ab, with_ddp):
        for saver in ("with_ab", "with_ddp"):
            model, optimizer = wrap(module := make_mlp(seed=7), adamw(module, lr=0.5))
            load(model, optimizer, f"{folder}/{saver}")
            train(model, optimizer, rank)
            ends[wrap.__name__, saver] = parameters_of(module, optimizer)
    if dist.get_world_size() == 2:
        for saver in ("with_ab", "with_ddp"):
            assert_equal(ends["with_ab", saver], ends["with_ddp", saver])
    for ours, theirs in zip(ends["with_ab", "with_ab"], ends["with_ddp", "with_ddp"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


class Shared(nn.Module):
    """Layers of which two have one weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 4)
        self.second.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.last(self.second(self.first(inputs)))
        return output


def test_safetensors_hold_what_step_made_of_the_parameters(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    on_ranks(_safetensors, 2, str(tmp_path))


def _safetensors(rank: int, folder: str) -> None:
    from safetensors.torch import load_file, load_model, save_file, save_model  # noqa: PLC0415

    file = f"{folder}/{rank}.safetensors"

    def story(wrap: Any, **keywords: Any) -> list[Tensor]:
        model, optimizer = wrap(module := Shared(), sgd(module), **keywords)
        seen = []
        for step in range(8):
            optimizer.zero_grad()
            model(rows(rank, step, 5, 12)).square().mean().backward()
            optimizer.step()
            if step % 2:
                save_model(module, file)
                load_model(copy := Shared(), file)
                seen += [parameter.detach().clone() for parameter in copy.parameters()]
            else:
                save_file(dict(module.named_parameters()), file)  # no module's own method: it reads bare memory
                seen += list(load_file(file).values())
        train(model, optimizer, rank, range(20, 22))
        load_model(module, file)  # over updates in transit
        seen += [parameter.detach().clone() for parameter in module.parameters()]
        train(model, optimizer, rank, range(8, 10))
        return [*seen, *parameters_of(module, optimizer)]

    expected = story(with_ddp)
    for engine in ENGINES:
        assert_equal(story(with_ab, engine=engine), expected)


def test_state_that_ranks_share_out_among_them_is_saved_and_loaded(tmp_path: Path) -> None:
    """Ranks' states differ on purpose then: nobody has loaded another checkpoint."""
    on_ranks(_shared_out, 2, str(tmp_path))


def _shared_out(rank: int, folder: str) -> None:
    with warnings.catch_warnings(action="ignore"):  # PyTorch's own, of the import
        from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: PLC0415

    def story(wrap: Any, name: str) -> list[Tensor]:
        module = make_mlp()
        zero = ZeroRedundancyOptimizer(module.parameters(), torch.optim.Adam, lr=0.01)
        model, optimizer = wrap(module, zero)
        train(model, optimizer, rank, range(5))
        optimizer.consolidate_state_dict(to=0)
        if rank == 0:
            torch.save(optimizer.state_dict(), f"{folder}/{name}")
        dist.barrier()
        train(model, optimizer, rank, range(5, 7))
        optimizer.load_state_dict(torch.load(f"{folder}/{name}", weights_only=False))
        train(model, optimizer, rank, range(7, 14))
        if wrap is with_ab:
            with pytest.raises(InputError, match="Join cannot follow ZeroRedundancyOptimizer"), Join([optimizer]):
                pass
            optimizer.close()
        return parameters_of(module, optimizer)

    assert_equal(story(with_ab, "ours"), story(with_ddp, "theirs"))
