"""One rank of `run.py`: times steps of hybrid sharding under one arm after the other.

    python tools/hsdp/rank.py SPEC.json

Rank 0 appends one line of JSON for each arm to the spec's `out`, as soon as it is measured.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from replicas import TIMEOUT, Replicas, Unit, job_of, shard, units
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import autobyte.torch as ab
from autobyte.bench.cell import timed
from autobyte.config import Config
from autobyte.job import Layer, Model
from autobyte.models import find
from autobyte.scheduler.plan import Overlap, Plan
from autobyte.scheduler.policies import make_plan
from autobyte.torch.model.planning import agreed_plan, planned_order, priced
from autobyte.torch.tuning.costs import BESIDES_S

Step = Callable[[], None]

WHOLE = Config(1, 1, "wfbp")  # a block per unit, in the order of the backward pass
#: How gradients are averaged over replicas: what runs, and whether a unit's update waits for its next forward pass.
ARMS = {
    "no all-reduce": "none",
    "FSDP2 on gloo": "own",
    "units in turn": "whole",
    "blocks": "blocks",
    "units in turn, across the step": "whole crossing",
    "blocks, across the step": "blocks crossing",
}


def by_unit(model: Model) -> Model:
    """The model with a layer for every unit that FSDP2 is usually given: embeddings, each block, the head."""

    def unit(layer: Layer) -> str:
        *_, name = layer.name.split(".h.")
        return name.split(".")[0] if ".h." in layer.name else ("head" if "embedded" in seen else "embeddings")

    seen: set[str] = set()
    merged = []
    for name, group in groupby(model.layers, lambda layer: unit(layer)):
        layers = list(group)
        if name.isdigit():
            seen.add("embedded")
        merged.append((name, layers))
    rows = [
        (
            name,
            [(tensor.name, tensor.numel) for layer in layers for tensor in layer.tensors],
            sum(layer.forward_s for layer in layers),
            sum(layer.backward_s for layer in layers),
        )
        for name, layers in merged
    ]
    return Model.build(model.name, rows, batch_size=model.batch_size)


def main(spec_path: str) -> None:
    """Measure every arm at every ratio of communication to compute."""
    spec = json.loads(Path(spec_path).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    mesh = init_device_mesh("cpu", (spec["replicas"], spec["shards"]), mesh_dim_names=("replicate", "shard"))
    whole = by_unit(find(spec["model"]))
    sized = whole.scaled(size=spec["nbytes"] / (4 * whole.parameters))
    for number in range(spec["rounds"]):
        for ratio in spec["ratios"]:
            model = sized.scaled(time=spec["nbytes"] / spec["payload"] / ratio / sized.compute_s)
            expected: list[torch.Tensor] = []
            for arm in spec["arms"]:
                with training(model, mesh, arm, spec) as (step, emulated, facts):
                    measured = timed(step, warmup=spec["warmup"], steps=spec["steps"])
                    facts(spec["warmup"] + spec["steps"])
                    row = {"round": number, "ratio": ratio, "arm": arm, **measured, **facts.found}
                parameters = [parameter.to_local().detach().clone() for parameter in emulated.parameters()]
                if arm == "FSDP2 on gloo":
                    expected = parameters
                elif arm != "no all-reduce" and expected:
                    row["equal"] = all(map(torch.equal, parameters, expected))
                if dist.get_rank() == 0:
                    with Path(spec["out"]).open("a", encoding="utf-8") as out:
                        out.write(json.dumps(row) + "\n")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads of the arms before are left behind


if __name__ == "__main__":
    main(sys.argv[1])
