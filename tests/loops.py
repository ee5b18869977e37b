"""GPT-2 from a tiny config and texts of noise, for the loops of other libraries, with DDP and with AutoByte.

The two add up sums and norms in different orders. The key bias of attention has a gradient of rounding errors alone,
which Adam would blow up to whole steps: hence the epsilon.
"""

import logging
import math
import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here is downloaded
IMPORTS = (
    "accelerate",
    "transformers.trainer",
    "transformers.models.gpt2.modeling_gpt2",
    "lightning",
    "sklearn.datasets",
)
TEXTS, LENGTH, BATCH, ACCUMULATION, LIMIT = 96, 16, 4, 3, 1.0
ADAMW: dict[str, float] = {"lr": 3e-3, "eps": 1e-5, "weight_decay": 0.01}


def gpt2() -> nn.Module:
    """The same on all ranks, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415, in ranks that need it

    torch.manual_seed(0)
    still = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    ends = dict.fromkeys(("bos_token_id", "eos_token_id"))
    config = GPT2Config(vocab_size=64, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, **still, **ends)
    return GPT2LMHeadModel(config)


def texts() -> Tensor:
    """Tokens, shape [TEXTS, LENGTH]."""
    return torch.randint(0, 64, (TEXTS, LENGTH), generator=torch.Generator().manual_seed(1))


def copied(model: nn.Module) -> list[Tensor]:
    """Parameters as they are now."""
    return [parameter.detach().clone() for parameter in model.parameters()]


def assert_alike(
    ours: tuple[list[Tensor], list[float]], theirs: tuple[list[Tensor], list[float]], *, clipped: bool = True
) -> None:
    """The same parameters and norms, but for rounding."""
    assert len(theirs[1]) > 3 or not clipped
    assert any(norm > LIMIT for norm in theirs[1]) == clipped, "nothing was clipped"
    assert ours[1] == pytest.approx(theirs[1], rel=1e-4, nan_ok=True)
    for one, other in zip(ours[0], theirs[0], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-5, equal_nan=True)


def assert_crosses(optimizer: Any) -> None:
    """Clipped gradients travelled as halves, and the last updates wait for the next forward pass."""
    assert optimizer.training.exchange.halved
    assert optimizer._mode._may_wait


def assert_broken(norms: list[float]) -> None:
    """What was not finite came to all ranks."""
    assert not all(math.isfinite(norm) for norm in norms)


def listen() -> list[str]:
    """What the log says from now on."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("autobyte")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    return said
