"""Lightning's Trainer, beside the same with DDP."""

import logging
import warnings
from copy import deepcopy
from datetime import timedelta
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
    assert_crosses,
    copied,
    gpt2,
    listen,
    texts,
)
from ranks import Ranks, on_ranks
from torch import Tensor, nn
from torch.utils.data import DataLoader

from autobyte.errors import InputError

pytest.importorskip("lightning")

SCALE = 4.0  # of the loss, so that gradients are clipped


def module(
    *,
    manual: bool = False,
    passes: int = 1,
    fails_on: int | None = None,
    kind: Any = torch.optim.AdamW,
    **options: Any,
) -> Any:
    """A LightningModule of GPT-2 with a cosine schedule; with manual optimisation, two optimizers share it.

    Their steps have several passes then, all of which travel.
    """
    import lightning  # noqa: PLC0415, in ranks only

    class Texts(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.gpt = gpt2()
            self.head = nn.Linear(64, 64)
            self.automatic_optimization = not manual
            self.norms: list[float] = []

        def loss(self, ids: Tensor) -> Tensor:
            return SCALE * self.gpt(input_ids=ids, labels=ids).loss

        def training_step(self, ids: Tensor, index: int) -> Tensor | None:
            if index == 4 and self.trainer.global_rank == fails_on:
                raise ZeroDivisionError("in the closure")
            if not manual:
                return self.loss(ids) + self.head(torch.ones(64)).square().mean()
            first, second = self.optimizers()
            for optimizer, loss in (
                (first, self.loss(ids)),
                (second, self.head(torch.ones(64)).sub(index).square().mean()),
            ):
                self.manual_backward(loss)
                if index % passes:
                    continue
                self.clip_gradients(optimizer, gradient_clip_val=LIMIT, gradient_clip_algorithm="norm")
                optimizer.step()
                optimizer.zero_grad()
            return None

        def validation_step(self, ids: Tensor, index: int) -> None:
            self.loss(ids)

        def configure_optimizers(self) -> Any:
            chosen = {**ADAMW, **options} if kind is torch.optim.AdamW else options
            if manual:
                return [kind(self.gpt.parameters(), **chosen), kind(self.head.parameters(), **chosen)]
            optimizer = kind(self.parameters(), **chosen)
            return [optimizer], [
                {"scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 16), "interval": "step"}
            ]

    return Texts()


def fit(model: Any, strategy: Any, *, ranks: int, checkpoint: str | None = None, **settings: Any) -> Any:
    """Train on the texts, each rank on its own."""
    import lightning  # noqa: PLC0415

    import autobyte.integrations.lightning  # noqa: F401, PLC0415, makes the strategy known

    warnings.simplefilter("ignore")  # that few workers load data, say
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    chosen = {
        "accumulate_grad_batches": ACCUMULATION,
        "gradient_clip_val": LIMIT,
        "max_epochs": 2,
        **quiet,
    } | settings
    trainer = lightning.Trainer(accelerator="cpu", devices=ranks, strategy=strategy, **chosen)
    loader, held_out = (DataLoader(texts(), batch_size=size) for size in (BATCH, TEXTS_HELD_OUT))
    trainer.fit(model, loader, held_out, ckpt_path=checkpoint)
    return trainer


TEXTS_HELD_OUT = 32


def with_norms(*, crosses: bool | None = None) -> Any:
    """A callback that notes the norms of what was clipped, and at the end whether updates cross steps."""
    import lightning  # noqa: PLC0415

    from autobyte.integrations.closures import bare  # noqa: PLC0415

    class AtEnd(lightning.Callback):
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            for optimizer in trainer.strategy.optimizers if crosses else ():
                assert_crosses(bare(optimizer))

    return AtEnd()


def trains_saves_and_goes_on(rank: int, size: int, folder: str) -> None:
    from autobyte.integrations.lightning import AutoByteStrategy  # noqa: PLC0415

    theirs = module()
    fit(theirs, "ddp", ranks=size)
    ours = module()
    fit(ours, AutoByteStrategy(policy="bytescheduler"), ranks=size, callbacks=[with_norms(crosses=True)])
    norms = [2 * LIMIT] * 4  # are Lightning's own affair
    assert_alike((copied(ours), norms), (copied(theirs), norms))
    half = module()
    trainer = fit(half, "autobyte", ranks=size, max_epochs=1)
    trainer.save_checkpoint(f"{folder}/half.ckpt")
    resumed = module()
    fit(resumed, "autobyte", ranks=size, checkpoint=f"{folder}/half.ckpt")
    assert_alike((copied(resumed), norms), (copied(theirs), norms))


@pytest.mark.parametrize("size", [2, 3])
def test_it_trains_as_ddp_does(size: int, tmp_path: Path) -> None:
    on_ranks(trains_saves_and_goes_on, size, size, str(tmp_path), timeout_s=200, imports=IMPORTS)


def other_ways(rank: int) -> list[str]:
    """Manual optimisation with two optimizers, clipping by value, bf16, fp16, hooks that look at gradients, LBFGS."""
    import lightning  # noqa: PLC0415
    from lightning.pytorch.plugins import MixedPrecision  # noqa: PLC0415

    from autobyte.integrations.lightning import AutoByteStrategy  # noqa: PLC0415

    class Look(lightning.Callback):
        def __init__(self) -> None:
            self.norms: list[float] = []

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            self.norms.append(sum(float(p.grad.square().sum()) for p in pl_module.parameters()) ** 0.5)

    said = listen()
    manual = {"accumulate_grad_batches": 1, "gradient_clip_val": None, "max_epochs": 1}
    looks: list[Look] = []
    for made, settings, tolerance in (
        ({"manual": True}, manual, 2e-5),
        ({"manual": True, "passes": 3}, manual, 2e-5),
        ({}, {"gradient_clip_algorithm": "value", "gradient_clip_val": 0.05, "max_epochs": 1}, 2e-5),
        ({}, {"precision": "bf16-mixed", "max_epochs": 1, "callbacks": looks}, 5e-3),
        ({}, {"max_epochs": 1, "plugins": MixedPrecision}, 5e-3),  # with GradScaler
        ({"kind": torch.optim.LBFGS, "lr": 0.1, "max_iter": 3}, {**manual, "limit_train_batches": 3}, 1e-3),
    ):
        models = []
        for strategy in ("autobyte", "ddp_find_unused_parameters_true" if "manual" in made else "ddp"):
            if settings.get("callbacks") is not None:
                looks.append(Look())
                settings = settings | {"callbacks": looks[-1]}  # noqa: PLW2901
            if "plugins" in settings:
                settings = settings | {"plugins": MixedPrecision("16-mixed", "cpu")}  # noqa: PLW2901
            models.append(module(**made))
            fit(models[-1], AutoByteStrategy() if strategy == "autobyte" else strategy, ranks=2, **settings)
        for one, other in zip(*map(copied, models), strict=True):
            assert (one - other).abs().max() <= tolerance, (made, settings)
    assert looks[0].norms == pytest.approx(looks[1].norms, rel=0.02)
    for keywords in ({"find_unused_parameters": True}, {"accumulation": 3}):
        with pytest.raises(InputError):
            AutoByteStrategy(**keywords)
    with pytest.raises(InputError, match="LBFGS"):
        fit(module(kind=torch.optim.LBFGS), "autobyte", ranks=2)
    return said


def test_other_ways_of_training_are_as_with_ddp() -> None:
    said = on_ranks(other_ways, 2, timeout_s=200, imports=IMPORTS)[0]
    assert len([words for words in said if "Look.on_before_optimizer_step may read them" in words]) == 1


def from_the_command_line(rank: int) -> Any:
    """Train with a strategy that arguments name, and its keywords; returns those that it took."""
    from lightning.pytorch.cli import LightningCLI  # noqa: PLC0415

    from autobyte.integrations.lightning import AutoByteStrategy  # noqa: PLC0415

    theirs = module()
    begin = deepcopy(theirs.state_dict())
    fit(theirs, "ddp", ranks=2, max_epochs=1)
    name = f"{AutoByteStrategy.__module__}.{AutoByteStrategy.__qualname__}"
    keywords = ("policy=bytescheduler", "keep=found.toml", "timeout=0:01:00")
    settings = (
        "accelerator=cpu",
        "devices=2",
        f"accumulate_grad_batches={ACCUMULATION}",
        f"gradient_clip_val={LIMIT}",
    )
    quiet = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    cli = LightningCLI(
        type(theirs),
        run=False,
        save_config_callback=None,
        trainer_defaults={"max_epochs": 1, **dict.fromkeys(quiet, False)},
        args=[
            f"--trainer.strategy={name}",
            *(f"--trainer.strategy.{each}" for each in keywords),
            *(f"--trainer.{each}" for each in settings),
        ],
    )
    cli.model.load_state_dict(begin)
    cli.trainer.fit(cli.model, DataLoader(texts(), batch_size=BATCH))
    norms = [2 * LIMIT] * 4  # are Lightning's own affair
    assert_alike((copied(cli.model), norms), (copied(theirs), norms))
    return cli.trainer.strategy._keywords


def test_the_command_line_takes_the_strategy_with_keywords() -> None:
    for kept in on_ranks(from_the_command_line, 2, timeout_s=100, imports=IMPORTS):
        assert kept == {"policy": "bytescheduler", "keep": "found.toml", "timeout": timedelta(seconds=60)}


def raises_in_a_closure(rank: int) -> None:
    from autobyte.integrations.lightning import AutoByteStrategy  # noqa: PLC0415
    from autobyte.scheduler.engines import halves  # noqa: PLC0415

    halves.PARTING_S = 2.0  # for the other rank, which waits for this one in a broadcast of Lightning's own
    fit(module(fails_on=1), AutoByteStrategy(timeout=timedelta(seconds=10), diagnostics=None), ranks=2)


def test_a_closure_that_raises_on_one_rank_ends_all() -> None:
    waiting, raising = Ranks(raises_in_a_closure, 2, timeout_s=90, imports=IMPORTS).outcomes()
    assert "ZeroDivisionError: in the closure" in str(raising)
    assert "CommunicationError" in str(waiting)
