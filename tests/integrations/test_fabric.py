"""Fabric's loop, beside the same with DDP."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import (
    ACCUMULATION,
    ADAMW,
    BATCH,
    IMPORTS,
    LIMIT,
    assert_alike,
    assert_broken,
    assert_crosses,
    copied,
    gpt2,
    texts,
)
from ranks import on_ranks
from torch import nn
from torch.utils.data import DataLoader

import autobyte.torch as ab
from autobyte.errors import InputError

pytest.importorskip("lightning")


class Told:
    """A training with Fabric.

    Args:
        strategy: its name, or one.
        ranks: how many.
    """

    def __init__(self, strategy: Any, ranks: int, **settings: Any) -> None:
        from lightning.fabric import Fabric  # noqa: PLC0415, in ranks only

        import autobyte.integrations.fabric  # noqa: F401, PLC0415, makes the strategy known

        self.fabric = Fabric(accelerator="cpu", devices=ranks, strategy=strategy, **settings)
        self.fabric.launch()
        self.own = gpt2()
        optimizer = torch.optim.AdamW(self.own.parameters(), **ADAMW)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 16)
        self.model, self.optimizer = self.fabric.setup(self.own, optimizer)
        self.loader = self.fabric.setup_dataloaders(DataLoader(texts(), batch_size=BATCH))
        self.norms: list[float] = []

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}

    def epoch(self, scale: float = 4.0, *, clips: bool = True, raises: bool = True, all_travel: bool = False) -> None:
        """The loop of Fabric's documentation; every backward pass may travel, and add to averages."""
        for index, ids in enumerate(self.loader, start=1):
            whole = index % ACCUMULATION == 0 or index == len(self.loader)
            with self.fabric.no_backward_sync(self.model, enabled=not whole and not all_travel):
                self.fabric.backward(scale * self.model(input_ids=ids, labels=ids).loss / ACCUMULATION)
            if not whole:
                continue
            if clips:
                norm = self.fabric.clip_gradients(
                    self.model, self.optimizer, max_norm=LIMIT, error_if_nonfinite=raises
                )
                self.norms.append(float(norm))
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()

    def outcome(self) -> Any:
        return copied(self.own), self.norms


def trains_saves_and_goes_on(rank: int, size: int, folder: str) -> None:
    from autobyte.integrations.fabric import AutoByteFabricStrategy  # noqa: PLC0415

    theirs = Told("ddp", size)
    theirs.epoch(all_travel=True)
    theirs.epoch()
    ours = Told(AutoByteFabricStrategy(policy="bytescheduler"), size)
    ours.epoch(all_travel=True)
    ours.fabric.save(f"{folder}/half.ckpt", ours.state)
    ours.epoch()
    assert_crosses(ours.optimizer.optimizer)
    assert_alike(ours.outcome(), theirs.outcome())
    ours.optimizer.close()
    assert ours.optimizer.optimizer.training is None
    resumed = Told("autobyte", size)
    rest = resumed.fabric.load(f"{folder}/half.ckpt", resumed.state)
    assert not rest
    resumed.norms = ours.norms[: len(ours.norms) // 2]
    resumed.epoch()
    assert_alike(resumed.outcome(), theirs.outcome())
    saved = torch.load(f"{folder}/half.ckpt", weights_only=True)["model"]
    assert saved.keys() == theirs.own.state_dict().keys()
    resumed.optimizer.close()


@pytest.mark.parametrize("size", [2, 3])
def test_it_trains_as_ddp_does(size: int, tmp_path: Path) -> None:
    on_ranks(trains_saves_and_goes_on, size, size, str(tmp_path), timeout_s=200, imports=IMPORTS)


def goes_wrong(rank: int) -> str:
    from datetime import timedelta  # noqa: PLC0415

    from autobyte.integrations.fabric import AutoByteFabricStrategy  # noqa: PLC0415

    told = [Told(strategy, 2, precision="bf16-mixed") for strategy in ("autobyte", "ddp")]
    for each in told:
        each.epoch(scale=float("inf") if rank else 4.0, raises=False)  # on one rank
        with pytest.raises(RuntimeError, match="non-finite"):
            each.epoch()
    ours, theirs = told
    assert_broken(ours.norms)
    assert [math.isfinite(norm) for norm in ours.norms] == [math.isfinite(norm) for norm in theirs.norms]
    ours.optimizer.close()
    with pytest.raises(InputError, match="together"):
        ours.fabric.setup_optimizers(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    some = Told(AutoByteFabricStrategy(timeout=timedelta(seconds=8), diagnostics=None), 2)
    some.epoch()
    with pytest.raises(ab.CommunicationError) as failed:
        for _ in range(2):
            some.epoch(clips=rank == 0)
    some.optimizer.recover()
    return str(failed.value)


def test_what_goes_wrong_is_said() -> None:
    said = on_ranks(goes_wrong, 2, timeout_s=200, imports=IMPORTS)
    assert any("clip" in words for words in said), said
