"""A small GPT-2 with Lightning's Trainer, or with Fabric: with PyTorch's DDP, or with AutoByte, in one file.

    torchrun --nproc-per-node 2 examples/train_lightning.py --ddp
    torchrun --nproc-per-node 2 examples/train_lightning.py --autobyte
    torchrun --nproc-per-node 2 examples/train_lightning.py --autobyte --fabric

About 20 s each on two CPU cores. It needs: pip install 'autobyte[lightning,trainer]'
"""

import argparse
import os
import time

import lightning
import torch
from gpt2_bytes import held_out_loss, make_model, make_texts
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

from autobyte.integrations.fabric import AutoByteFabricStrategy
from autobyte.integrations.lightning import AutoByteStrategy

ACCUMULATION = 3


class Texts(lightning.LightningModule):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.model = make_model()
        self.steps = steps

    def training_step(self, ids: Tensor, index: int) -> Tensor:
        return self.model(input_ids=ids, labels=ids).loss

    def configure_optimizers(self) -> tuple[list[torch.optim.Optimizer], list[dict[str, object]]]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return [optimizer], [{"scheduler": CosineAnnealingLR(optimizer, self.steps), "interval": "step"}]


def with_trainer(texts: Tensor, *, autobyte: bool, ranks: int, steps: int) -> torch.nn.Module:
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy=AutoByteStrategy(keep=None) if autobyte else "ddp",
        accumulate_grad_batches=ACCUMULATION,
        gradient_clip_val=1.0,
        max_steps=steps,
        **quiet,
    )
    module = Texts(steps)
    trainer.fit(module, DataLoader(texts, batch_size=8))
    return module.model


def with_fabric(texts: Tensor, *, autobyte: bool, ranks: int, steps: int) -> torch.nn.Module:
    strategy = AutoByteFabricStrategy(keep=None) if autobyte else "ddp"
    fabric = lightning.Fabric(accelerator="cpu", devices=ranks, strategy=strategy)
    fabric.launch()
    own = make_model()
    optimizer = torch.optim.AdamW(own.parameters(), lr=3e-3)
    schedule = CosineAnnealingLR(optimizer, steps)
    model, optimizer = fabric.setup(own, optimizer)
    batches = iter(fabric.setup_dataloaders(DataLoader(texts, batch_size=8)))
    for _ in range(steps):
        for index in range(ACCUMULATION):
            if (ids := next(batches, None)) is None:
                batches = iter(fabric.setup_dataloaders(DataLoader(texts, batch_size=8)))
                ids = next(batches)
            with fabric.no_backward_sync(model, enabled=index + 1 < ACCUMULATION):
                fabric.backward(model(input_ids=ids, labels=ids).loss / ACCUMULATION)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if autobyte:
        optimizer.close()  # the last updates
    return own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--ddp", action="store_true", help="PyTorch's DistributedDataParallel")
    how.add_argument("--autobyte", action="store_true")
    parser.add_argument("--fabric", action="store_true", help="instead of Lightning's Trainer")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)

    texts, held_out = make_texts()
    train = with_fabric if options.fabric else with_trainer
    ranks, began = int(os.environ["WORLD_SIZE"]), time.perf_counter()
    model = train(texts, autobyte=options.autobyte, ranks=ranks, steps=options.steps)
    spent = time.perf_counter() - began
    loss = held_out_loss(model, held_out)
    if os.environ["RANK"] == "0":
        name = "AutoByte" if options.autobyte else "DDP"
        print(f"{name}, {ranks} ranks: loss {loss:.4f} on texts held out, after {spent:.1f} s of training")


if __name__ == "__main__":
    main()
