"""The default group ends when it is destroyed, once no function keeps it: else its threads outlive it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = """
import gc
from weakref import ref
import torch
import torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
from torch.distributed.nn import functional
from autobyte.torch.groups import free_default_group

assert functional.all_reduce.__defaults__[-1] is dist.group.WORLD
free_default_group()
ones = torch.ones(3, requires_grad=True)
functional.all_reduce(ones).sum().backward()
assert ones.grad.tolist() == [1, 1, 1]
group = ref(dist.group.WORLD)
dist.destroy_process_group()
gc.collect()
assert group() is None, gc.get_referrers(group())
"""


def test_a_default_group_that_functions_have_kept_ends_when_it_is_destroyed() -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore::FutureWarning", "-c", SCRIPT]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environ, timeout=60)
    assert done.returncode == 0, done.stderr
