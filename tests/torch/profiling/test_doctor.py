"""The doctor measures a model on real ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

from ranks import free_port

ROOT = Path(__file__).parents[3]


def test_doctor_measures_a_model_on_the_ranks_that_there_are() -> None:
    """Under torchrun, which ends with 1 where ranks end with 3."""
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    words += ["-m", "autobyte", "doctor", "examples/small_vgg.py:make_model", "--input", "2,3,64,64", "--json"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=200, check=False
    )
    told = json.loads(ended.stdout)
    assert told["measured"]["workers"] == 2
    assert 0 < told["measured"]["compute_s"] < 10
    assert told["bound_s"] <= told["ddp"]["step_s"]
    assert ended.returncode == (0 if told["verdict"] == "gain" else 1), ended.stderr
    assert told["verdict"] == "gain" or "exitcode  : 3" in ended.stderr
