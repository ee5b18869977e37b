"""What stands in every record: the hardware and software that it was measured with, and whether it was measured."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch


class Records:
    """JSON lines that are in the file as soon as they are known.

    Args:
        spec: of a section, as `run.py` writes it.
        ranks: that share the one card.
    """

    def __init__(self, spec: dict[str, Any], *, ranks: int) -> None:
        self._out = Path(spec["out"])
        self._common = {"section": spec["section"], **spec["provenance"], "ranks_on_card": ranks}

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
    card, driver = gpu
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
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
