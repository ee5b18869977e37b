"""What ranks of all front ends' measurements have in common: they meet, and tell the times of the slowest one."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from autobyte.exchange.tuning.report import Report

Spec = dict[str, Any]  # model, scales, way, engine, tuner, windows, warmup, steps, workers


def begin() -> None:
    """Meet the other ranks. Collective."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")


def chosen(spec: Spec) -> dict[str, Any]:
    """What AutoByte is told of how gradients travel."""
    return {"engine": spec["engine"], "tuner": spec["tuner"], "budget": spec["windows"], "keep": None}


def told(steps_s: Sequence[float], report: Report | None = None) -> None:
    """Print the steps of the slowest rank by its median (s), and what AutoByte reports. Collective.

    Rank 0 prints a line of JSON: AutoByte's config, what its search does, and how long a step stands still (s).
    """
    ranks = [torch.empty(len(steps_s), dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(ranks, torch.tensor(steps_s, dtype=torch.float64))
    slowest = max(ranks, key=lambda rank: float(rank.quantile(0.5)))
    if dist.get_rank() == 0:
        run: dict[str, Any] = {"steps_s": slowest.tolist(), "config": None}
        if report is not None:
            run |= {"config": report.config.to_json(), "state": report.state, "exposed_s": report.exposed_s}
        sys.stdout.write(json.dumps(run) + "\n")
        sys.stdout.flush()
    dist.barrier()  # nobody leaves before the others have heard


def told_by(output: str) -> dict[str, Any]:
    """What `told` has printed among what else a rank wrote: `steps_s` (s), and what is known of AutoByte."""
    (found,) = [json.loads(line) for line in output.splitlines() if line.startswith('{"steps_s"')]
    return dict(found)
