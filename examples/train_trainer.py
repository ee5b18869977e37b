"""A small GPT-2 with the Trainer of transformers: with PyTorch's DDP, or with AutoByte, in one file.

    torchrun --nproc-per-node 2 examples/train_trainer.py --ddp
    torchrun --nproc-per-node 2 examples/train_trainer.py --autobyte

About 20 s each on two CPU cores. It needs: pip install 'autobyte[trainer]'
"""

import gc
import tempfile
import time

import torch
from gpt2_bytes import make_model, make_parser, make_texts, tell
from transformers import Trainer, TrainingArguments

from autobyte.integrations.trainer import attach


def main() -> None:
    options = make_parser(__doc__).parse_args()
    torch.set_num_threads(1)

    model = make_model()
    texts, held_out = make_texts()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=options.accumulation,
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
        spent_s = time.perf_counter() - began
    if trainer.is_world_process_zero():
        tell(model, held_out, autobyte=options.autobyte, ranks=arguments.world_size, spent_s=spent_s)
    del trainer
    gc.collect()  # DDP must not be the last to hold the default group: PyTorch may hang when it lets go of it


if __name__ == "__main__":
    main()
