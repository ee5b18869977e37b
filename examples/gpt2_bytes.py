"""What the train_….py beside it share: a small GPT-2 that reads bytes, texts, options, and the line at the end.

The texts are the source of two modules of Python's own.
"""

import argparse
import inspect
import shutil

import torch
from torch import Tensor, nn

LENGTH, HELD_OUT = 64, 64  # bytes of a text, texts that are not trained on


def make_model() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415, takes seconds

    torch.manual_seed(0)
    still = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    ends = dict.fromkeys(("bos_token_id", "eos_token_id"))
    size = {"n_embd": 64, "n_layer": 4, "n_head": 4}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=256, n_positions=LENGTH, loss_type="ForCausalLM", **size, **still, **ends)
    )


def make_texts() -> tuple[Tensor, Tensor]:
    """Texts to train on and texts held out, shape [texts, LENGTH], in a fixed order."""
    source = inspect.getsource(argparse) + inspect.getsource(shutil)
    tokens = torch.tensor(list(source.encode()))
    rows = tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    return rows[HELD_OUT:], rows[:HELD_OUT]


def make_parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--ddp", action="store_true", help="PyTorch's DistributedDataParallel")
    how.add_argument("--autobyte", action="store_true")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--accumulation", type=int, default=3, help="backward passes per step")
    return parser


@torch.no_grad()
def tell(model: nn.Module, held_out: Tensor, *, autobyte: bool, ranks: int, spent_s: float) -> None:
    """Print the cross entropy per byte of texts that the model was not trained on."""
    model.eval()
    loss = float(model(input_ids=held_out, labels=held_out).loss)
    name = "AutoByte" if autobyte else "DDP"
    print(f"{name}, {ranks} ranks: loss {loss:.4f} on texts held out, after {spent_s:.1f} s of training")
