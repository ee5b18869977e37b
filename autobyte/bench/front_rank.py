"""What ranks of all front ends' measurements have in common: they meet, and tell the times of the slowest one."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

Spec = dict[str, Any]  # model, scales, way, engine, warmup, steps, workers


def begin() -> None:
    """Meet the other ranks. Collective."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")


def told(steps_s: Sequence[float]) -> None:
    """Print the steps of the rank whose median is largest (s), on rank 0, as a line of JSON. Collective."""
    ranks = [torch.empty(len(steps_s), dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(ranks, torch.tensor(steps_s, dtype=torch.float64))
    slowest = max(ranks, key=lambda rank: float(rank.quantile(0.5)))
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps({"steps_s": slowest.tolist()}) + "\n")
        sys.stdout.flush()
    dist.barrier()  # nobody leaves before the others have heard


def steps_of(output: str) -> list[float]:
    """The times that `told` has printed among what else a rank wrote (s)."""
    (found,) = [json.loads(line)["steps_s"] for line in output.splitlines() if line.startswith('{"steps_s"')]
    return list(found)
