"""One rank of `run.py`: times steps of hybrid sharding, with one way to average over replicas after the other.

    python tools/hsdp/rank.py SPEC.json

Rank 0 appends a line of JSON to the spec's `out` as soon as an arm is measured.
"""

import json
import os
import re
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from replicas import TIMEOUT, Replicas, Unit, job_of, shard, units
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import autobyte.torch as ab
from autobyte.bench.cell import timed
from autobyte.bound import bound_s
from autobyte.config import Config
from autobyte.exchange.planning import agreed_plan, planned_order, priced
from autobyte.exchange.tuning.costs import BESIDES_S
from autobyte.job import Cluster, Job, Model
from autobyte.models import find
from autobyte.scheduler.plan import Overlap, Plan
from autobyte.simulator.simulate import simulate
from autobyte.torch.profiling.emulate import EmulatedModel

UNREDUCED, OWN = "no all-reduce", "FSDP2 on gloo"
WHOLE, BLOCKS = "units in turn", "blocks"
ACROSS = ", across the step"
ARMS = (UNREDUCED, OWN, WHOLE, BLOCKS, WHOLE + ACROSS, BLOCKS + ACROSS)

Spec = dict[str, Any]


def main(spec: Spec) -> None:
    """Measure all arms at all ratios of communication to compute."""
    mesh = init_device_mesh("cpu", (spec["replicas"], spec["shards"]), mesh_dim_names=("replicate", "shard"))
    whole = sized(spec)
    wire_s = 4 * whole.parameters / spec["payload"]
    for ratio in spec["ratios"]:
        model = whole.scaled(time=wire_s / ratio / whole.compute_s)
        expected: list[Tensor] = []
        step_s = model.compute_s
        for arm in ARMS:
            row, parameters = measure(model, mesh, arm, spec, step_s=step_s)
            if arm == UNREDUCED:
                step_s = statistics.median(row["steps_s"])  # the same on all ranks
            elif arm == OWN:
                expected = parameters
            else:
                row["equal"] = on_all(all(map(torch.equal, parameters, expected)))
            facts = {"ratio": ratio, "arm": arm, "wire_s": wire_s, "compute_s": model.compute_s}
            if dist.get_rank() == 0:
                with Path(spec["out"]).open("a", encoding="utf-8") as out:
                    out.write(json.dumps(facts | row) + "\n")


def on_all(holds: bool) -> bool:
    """Whether something holds on all ranks. Collective."""
    flag = torch.tensor(int(holds))
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return bool(flag)


def sized(spec: Spec) -> Model:
    """The model with a layer for each unit: the embeddings, every so many layers, what follows with the last."""
    model = find(spec["model"])
    model = model.scaled(size=spec["nbytes"] / (4 * model.parameters))
    numbers = [re.search(r"\.(?:h|layer)\.(\d+)\.", layer.name) for layer in model.layers]
    last = max(int(found[1]) for found in numbers if found)
    first = True
    places = []
    for found in numbers:
        first = first and found is None
        places.append(-1 if first else int(found[1] if found else last) // spec["layers_per_unit"])
    rows = []
    for place, group in groupby(zip(places, model.layers, strict=True), lambda pair: pair[0]):
        held = [layer for _, layer in group]
        tensors = [(tensor.name, tensor.numel) for layer in held for tensor in layer.tensors]
        times = sum(one.forward_s for one in held), sum(one.backward_s for one in held)
        rows.append((f"unit {place}", tensors, *times))
    return Model.build(model.name, rows, batch_size=model.batch_size)


def simulated(spec: Spec) -> list[dict[str, Any]]:
    """Steps in virtual time, without what collectives within a replica take: a row for each arm and ratio."""
    whole, rows = sized(spec), []
    wire_s = 4 * whole.parameters / spec["payload"]
    for ratio in spec["ratios"]:
        model = whole.scaled(time=wire_s / ratio / whole.compute_s)
        shares = [
            (layer.name, [(layer.name, sum(tensor.numel for tensor in layer.tensors) // spec["shards"])],
             layer.forward_s, layer.backward_s) for layer in model.layers
        ]  # fmt: skip
        job = on_link(Job(Model.build(model.name, shares, batch_size=1), Cluster(spec["replicas"])), spec)
        known = {"ratio": ratio, "wire_s": wire_s, "compute_s": model.compute_s, "bound_s": bound_s(job)}
        for arm in ARMS[2:]:
            plan = plan_of(job, arm, spec)
            rows.append(known | {"arm": arm, "steps_s": simulate(plan).step_s[-1:].tolist()})
    return rows


def measure(
    model: Model, mesh: DeviceMesh, arm: str, spec: Spec, *, step_s: float
) -> tuple[dict[str, Any], list[Tensor]]:
    """Step times of an arm, and this rank's shards of the parameters after all of its steps.

    Plans are made for the times of layers that would make up `step_s`, which has the traffic within a replica in it.
    """
    emulated = ab.emulate(model)
    for layer in emulated.layers:
        for gradient in layer.gradients:
            gradient.copy_(torch.arange(gradient.numel()) % 7 + dist.get_rank())
    sharded = mesh if arm == OWN else mesh["shard"]
    shard(emulated, emulated.layers, sharded, reshard_after_forward=False, ignored_params={emulated.signal})
    held = units(emulated)
    took = model.scaled(time=step_s / model.compute_s)
    job = job_of(held, mesh, times=list(zip(took.forward_s.tolist(), took.backward_s.tolist(), strict=True)))
    job = on_link(job, spec)
    row: dict[str, Any] = {"bound_s": bound_s(job)}
    if arm in (UNREDUCED, OWN):
        optimizer = sgd(list(emulated.parameters()))
        row |= timed(lambda: train(emulated, optimizer), warmup=spec["warmup"], steps=spec["steps"])
    else:
        plan = plan_of(job, arm, spec)
        row["simulated_s"] = float(simulate(plan).step_s[-1])
        with averaging(held, mesh, plan, crosses=arm.endswith(ACROSS)) as replicas:
            row |= timed(lambda: train(emulated, replicas), warmup=spec["warmup"], steps=spec["steps"])
            row["waited_s"] = replicas.waited_s / (spec["warmup"] + spec["steps"])
    return row, [parameter.to_local().detach().clone() for unit in held for parameter in unit.parameters]


def on_link(job: Job, spec: Spec) -> Job:
    """The job on the link between two hosts, which the ranks of a host share."""
    return priced(job, bytes_per_s=spec["payload"] / spec["shards"], per_block_s=BESIDES_S)


def plan_of(job: Job, arm: str, spec: Spec) -> Plan:
    """Whole units one at a time, as a stream has collectives; or blocks, the most urgent first, in a window."""
    if arm.startswith(WHOLE):
        plan = replace(agreed_plan(job, Config(1, 1, "wfbp")), credit_bytes=1)
    else:
        config = Config(spec["partition_bytes"], spec["credit_bytes"])
        plan = agreed_plan(job, config, planned_order(job, config))
    return replace(plan, overlap=Overlap.STEP if arm.endswith(ACROSS) else Overlap.BACKWARD)


@contextmanager
def averaging(held: list[Unit], mesh: DeviceMesh, plan: Plan, *, crosses: bool) -> Iterator[Replicas]:
    """Replicas, until the last update is done."""
    replicas = Replicas(held, mesh, plan, sgd, crosses=crosses)
    try:
        yield replicas
    finally:
        replicas.close()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """The optimizer of all arms."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def train(model: EmulatedModel, optimizer: torch.optim.Optimizer | Replicas) -> None:
    """Take a step."""
    model(torch.zeros(1)).backward()
    optimizer.step()
    if isinstance(optimizer, torch.optim.Optimizer):
        optimizer.zero_grad()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # what gloo's threads hold is not waited for
