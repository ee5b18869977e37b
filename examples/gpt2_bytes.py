"""A small GPT-2 that reads bytes, and texts for it: the source of two modules of Python's own."""

import argparse as first_text
import inspect
import shutil as second_text

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
    source = inspect.getsource(first_text) + inspect.getsource(second_text)
    tokens = torch.tensor(list(source.encode()))
    rows = tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    return rows[HELD_OUT:], rows[:HELD_OUT]


@torch.no_grad()
def held_out_loss(model: nn.Module, held_out: Tensor) -> float:
    """Cross entropy per byte of texts that the model was not trained on."""
    model.eval()
    return float(model(input_ids=held_out, labels=held_out).loss)
