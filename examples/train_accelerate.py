"""A small GPT-2 with Hugging Face Accelerate: with PyTorch's DDP, or with AutoByte, in one file.

    torchrun --nproc-per-node 2 examples/train_accelerate.py --ddp
    torchrun --nproc-per-node 2 examples/train_accelerate.py --autobyte

About 20 s each on two CPU cores. It needs: pip install 'autobyte[accelerate,trainer]'
"""

import time

import torch
from accelerate import Accelerator
from gpt2_bytes import make_model, make_parser, make_texts, tell
from torch.utils.data import DataLoader, TensorDataset
from transformers import get_cosine_schedule_with_warmup

from autobyte.integrations.accelerate import prepare


def main() -> None:
    options = make_parser(__doc__).parse_args()
    torch.set_num_threads(1)

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=options.accumulation)
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
    spent_s, own = time.perf_counter() - began, accelerator.unwrap_model(model)
    if accelerator.is_main_process:
        tell(own, held_out, autobyte=options.autobyte, ranks=accelerator.num_processes, spent_s=spent_s)
    # DDP must not be the last to hold the default group: PyTorch may hang when it lets go of it
    model, optimizer, loader, schedule = accelerator.free_memory(model, optimizer, loader, schedule)
    accelerator.end_training()


if __name__ == "__main__":
    main()
