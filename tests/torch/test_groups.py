"""The default group ends when it is destroyed, whenever AutoByte was imported: else its threads outlive it."""

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
import autobyte.torch
from torch.distributed.nn import functional

ones = torch.ones(3, requires_grad=True)
functional.all_reduce(ones).sum().backward()
assert ones.grad.tolist() == [1, 1, 1]
group = ref(dist.group.WORLD)
dist.destroy_process_group()
gc.collect()
assert group() is None, gc.get_referrers(group())
"""


def test_the_default_group_ends_where_autobyte_is_imported_after_it_was_made() -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore::FutureWarning", "-c", SCRIPT]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environ, timeout=60)
    assert done.returncode == 0, done.stderr
