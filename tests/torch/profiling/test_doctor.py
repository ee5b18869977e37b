"""The doctor measures a model on real ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import free_port

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("more", [(), ("--exit-code",)], ids=["", "--exit-code"])
def test_doctor_measures_a_model_on_the_ranks_that_there_are(more: tuple[str, ...]) -> None:
    """Under torchrun, which takes a status of 3 for a failure: only --exit-code asks for it."""
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    words += ["-m", "autobyte", "doctor", "examples/small_vgg.py:make_model", "--input", "2,3,64,64", "--json", *more]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=200, check=False
    )
    told = json.loads(ended.stdout)
    assert told["measured"]["workers"] == 2
    assert 0 < told["measured"]["compute_s"] < 10
    assert told["bound_s"] <= told["ddp"]["step_s"]
    failed = bool(more) and told["verdict"] != "gain"
    assert ended.returncode == int(failed), ended.stderr
    assert ("exitcode  : 3" in ended.stderr) == failed
    assert ("FAILED" in ended.stderr) == failed
