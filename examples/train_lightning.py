"""A small GPT-2 with Lightning's Trainer, or with Fabric: with PyTorch's DDP, or with AutoByte, in one file.

    torchrun --nproc-per-node 2 examples/train_lightning.py --ddp
    torchrun --nproc-per-node 2 examples/train_lightning.py --autobyte
    torchrun --nproc-per-node 2 examples/train_lightning.py --autobyte --fabric

About 20 s each on two CPU cores. It needs: pip install 'autobyte[lightning,trainer]'
"""

import gc
import os
import time
from argparse import Namespace

import lightning
import torch
from gpt2_bytes import make_model, make_parser, make_texts, tell
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

from autobyte.integrations.fabric import AutoByteFabricStrategy
from autobyte.integrations.lightning import AutoByteStrategy


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


def with_trainer(texts: Tensor, options: Namespace, ranks: int) -> torch.nn.Module:
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy=AutoByteStrategy(keep=None) if options.autobyte else "ddp",
        accumulate_grad_batches=options.accumulation,
        gradient_clip_val=1.0,
        max_steps=options.steps,
        **quiet,
    )
    module = Texts(options.steps)
    trainer.fit(module, DataLoader(texts, batch_size=8))
    return module.model


def with_fabric(texts: Tensor, options: Namespace, ranks: int) -> torch.nn.Module:
    strategy = AutoByteFabricStrategy(keep=None) if options.autobyte else "ddp"
    fabric = lightning.Fabric(accelerator="cpu", devices=ranks, strategy=strategy)
    fabric.launch()
    own = make_model()
    optimizer = torch.optim.AdamW(own.parameters(), lr=3e-3)
    schedule = CosineAnnealingLR(optimizer, options.steps)
    model, optimizer = fabric.setup(own, optimizer)
    batches = iter(fabric.setup_dataloaders(DataLoader(texts, batch_size=8)))
    for _ in range(options.steps):
        for index in range(options.accumulation):
            if (ids := next(batches, None)) is None:
                batches = iter(fabric.setup_dataloaders(DataLoader(texts, batch_size=8)))
                ids = next(batches)
            with fabric.no_backward_sync(model, enabled=index + 1 < options.accumulation):
                fabric.backward(model(input_ids=ids, labels=ids).loss / options.accumulation)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if options.autobyte:
        optimizer.close()  # the last updates
    return own


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--fabric", action="store_true", help="instead of Lightning's Trainer")
    options = parser.parse_args()
    torch.set_num_threads(1)

    texts, held_out = make_texts()
    train = with_fabric if options.fabric else with_trainer
    ranks, began = int(os.environ["WORLD_SIZE"]), time.perf_counter()
    model = train(texts, options, ranks)
    spent_s = time.perf_counter() - began
    gc.collect()  # DDP must not be the last to hold the default group: PyTorch may hang when it lets go of it
    if os.environ["RANK"] == "0":
        tell(model, held_out, autobyte=options.autobyte, ranks=ranks, spent_s=spent_s)


if __name__ == "__main__":
    main()
