"""A small GPT-2 with the Trainer of transformers: with PyTorch's DDP, or with AutoByte, in one file.

    torchrun --nproc-per-node 2 examples/train_trainer.py --ddp
    torchrun --nproc-per-node 2 examples/train_trainer.py --autobyte

About 20 s each on two CPU cores. It needs: pip install 'autobyte[trainer]'
"""

import argparse
import tempfile
import time

import torch
from gpt2_bytes import held_out_loss, make_model, make_texts
from transformers import Trainer, TrainingArguments

from autobyte.integrations.trainer import attach


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--ddp", action="store_true", help="PyTorch's DistributedDataParallel")
    how.add_argument("--autobyte", action="store_true")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)

    model = make_model()
    texts, held_out = make_texts()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=3,
            max_grad_norm=1.0,
            learning_rate=3e-3,
            lr_scheduler_type="cosine",
            warmup_steps=5,
            max_steps=options.steps,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in texts])
        if options.autobyte:
            attach(trainer, keep=None)  # the only line, beside the import
        began = time.perf_counter()
        trainer.train()
        spent = time.perf_counter() - began
    loss = held_out_loss(model, held_out)
    if trainer.is_world_process_zero():
        name, ranks = "AutoByte" if options.autobyte else "DDP", trainer.args.world_size
        print(f"{name}, {ranks} ranks: loss {loss:.4f} on texts held out, after {spent:.1f} s of training")


if __name__ == "__main__":
    main()
