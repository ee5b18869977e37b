"""Forward and backward time of every layer of the known models on this GPU, alone, in fp32 and then in bf16.

python tools/gpu/profiles.py SPEC.json, as run.py starts it
"""

import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autobyte.bench.networks import SPECS, make
from autobyte.bench.records import Records, exact, say
from autobyte.models import load
from autobyte.torch.profiling.profile import profile_model


def main(path: str) -> int:
    """Profile every model; one that fails is told, and the next one is tried. How many failed."""
    spec: dict[str, Any] = json.loads(Path(path).read_text())
    exact()
    records = Records(Path(spec["out"]), {"section": spec["section"], **spec["provenance"], "ranks_on_card": 1})
    failed = 0
    for dtype in spec["dtypes"]:
        for name in spec["models"]:
            say(f"{name} in {dtype}")
            try:
                records.add(model=name, dtype=dtype, tf32=False, **measure(name, dtype, spec))
            except Exception as error:  # of foreign code
                failed += 1
                records.add(model=name, dtype=dtype, error=f"{type(error).__name__}: {error}"[:500])
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    return failed


def measure(name: str, dtype: str, spec: dict[str, Any]) -> dict[str, Any]:
    """One model's profile, with the sums that tables show."""
    device = torch.device(spec["device"])
    network = make(SPECS.get(name, name), device)
    unlike = differences(name, network.model)
    if dtype != "float32":
        network.model.to(getattr(torch, dtype))
    inputs = network.inputs
    if isinstance(inputs, tuple):
        inputs = tuple(t.to(getattr(torch, dtype)) if t.is_floating_point() else t for t in inputs)
    profile = profile_model(
        network.model,
        inputs,
        loss=network.loss,
        device=str(device),
        warmup=spec["warmup"],
        repeats=spec["repeats"],
        name=name,
    )
    model = profile.model()
    return {
        "batch": model.batch_size,
        "forward_s": float(model.forward_s.sum()),
        "backward_s": float(model.backward_s.sum()),
        "spread": profile.provenance["spread"],
        "unlike_the_table": unlike[:6],
        "profile": profile.model_dump(by_alias=True),
    }


def differences(name: str, model: nn.Module) -> list[str]:
    """Parameters that the model and AutoByte's table of layers do not have in common, with their elements."""
    if name not in SPECS:
        return []
    ours = {(tensor.name, tensor.numel) for tensor in load(name).tensors}
    theirs = {(full, parameter.numel()) for full, parameter in model.named_parameters()}
    return [f"{full} with {numel} elements" for full, numel in sorted(ours ^ theirs)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
