"""What stands in every record: the hardware and software that it was measured with, and whether it was measured."""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autobyte.errors import InputError


class Records:
    """JSON lines that are in the file as soon as they are known.

    Args:
        out: the file.
        common: what stands in every record, such as `provenance`.
    """

    def __init__(self, out: Path, common: Mapping[str, Any]) -> None:
        self._out = out
        self._common = dict(common)

    def add(self, **row: Any) -> None:
        """Append a record."""
        with self._out.open("a", encoding="utf-8") as out:
            out.write(json.dumps(self._common | row) + "\n")
            out.flush()
            os.fsync(out.fileno())


def provenance(gpu: tuple[str, str] | None) -> dict[str, str]:
    """Card, driver and versions of a run on a GPU of this name and driver; of a rehearsal without one."""
    if gpu is None:
        return {"what": "rehearsal", "card": "none: CPUs and gloo", "torch": torch.__version__}
    if torch.version.cuda is None or not dist.is_nccl_available():
        raise InputError(f"PyTorch {torch.__version__} cannot use the GPU with NCCL here: install one with CUDA")
    card, driver = gpu
    nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    versions = {"cuda": str(torch.version.cuda), "nccl": nccl, "torch": torch.__version__}
    return {"what": "measured", "card": card, "driver": driver} | versions


def say(text: str) -> None:
    """Tell how far it is: whoever started this takes silence for a hang."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def exact() -> None:
    """Let fp32 be fp32: no TF32 in matrix products and convolutions."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
