"""A small GPT-2 with Hugging Face Accelerate: with PyTorch's DDP, or with AutoByte, in one file.

    torchrun --nproc-per-node 2 examples/train_accelerate.py --ddp
    torchrun --nproc-per-node 2 examples/train_accelerate.py --autobyte

About 20 s each on two CPU cores. It needs: pip install 'autobyte[accelerate,trainer]'
"""

import argparse
import time

import torch
from accelerate import Accelerator
from gpt2_bytes import held_out_loss, make_model, make_texts
from torch.utils.data import DataLoader, TensorDataset
from transformers import get_cosine_schedule_with_warmup

from autobyte.integrations.accelerate import prepare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--ddp", action="store_true", help="PyTorch's DistributedDataParallel")
    how.add_argument("--autobyte", action="store_true")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model = make_model()
    texts, held_out = make_texts()
    loader = DataLoader(TensorDataset(texts), batch_size=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = get_cosine_schedule_with_warmup(optimizer, 10, options.steps * accelerator.num_processes)
    if options.ddp:
        model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    else:
        model, optimizer, loader, schedule = prepare(accelerator, model, optimizer, loader, schedule, keep=None)

    began, steps = time.perf_counter(), 0
    while steps < options.steps:
        for (ids,) in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(input_ids=ids, labels=ids).loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    steps += 1
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if steps == options.steps:
                break
    spent = time.perf_counter() - began
    loss = held_out_loss(accelerator.unwrap_model(model), held_out)
    name, ranks = "AutoByte" if options.autobyte else "DDP", accelerator.num_processes
    accelerator.print(f"{name}, {ranks} ranks: loss {loss:.4f} on texts held out, after {spent:.1f} s of training")
    accelerator.end_training()


if __name__ == "__main__":
    main()
