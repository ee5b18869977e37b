"""What stands in every record: the hardware and software that it was measured with, and whether it was measured."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch


class Records:
    """JSON lines that are in the file as soon as they are known.

    Args:
        spec: of a section, as `run.py` writes it.
        ranks: that share the card.
    """

    def __init__(self, spec: dict[str, Any], *, ranks: int) -> None:
        self._out = Path(spec["out"])
        self._common = {"section": spec["section"], **provenance(spec, ranks)}

    def add(self, **row: Any) -> None:
        """Append a record."""
        with self._out.open("a", encoding="utf-8") as out:
            out.write(json.dumps(self._common | row) + "\n")
            out.flush()
            os.fsync(out.fileno())


def provenance(spec: dict[str, Any], ranks: int) -> dict[str, Any]:
    """Card, driver, versions, and how many ranks share the card."""
    common = {"torch": torch.__version__, "ranks_on_card": ranks}
    if spec["rehearse"]:
        return {"what": "rehearsal", "card": "none: CPUs and gloo"} | common
    versions = {"cuda": torch.version.cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    return {"what": "measured", "card": torch.cuda.get_device_name(), "driver": spec["driver"]} | versions | common


def say(text: str) -> None:
    """Tell how far it is: whoever started this takes silence for a hang."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def exact() -> None:
    """Let fp32 be fp32: no TF32 in matrix products and convolutions."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
