"""A process without privileges gets a /dev/shm of its own."""

import os
import subprocess
import sys

import pytest

NOBODY = 65_534
PROGRAM = """
import os, sys
import autobyte.scheduler.engines.carrier  # whose imports must start no thread
from autobyte.scheduler.engines.byteps_store import own_shared_memory
if os.getuid() == 0:
    os.setgid(int(sys.argv[1]))
    os.setuid(int(sys.argv[1]))
before = os.stat("/dev/shm").st_dev
own_shared_memory()
assert os.stat("/dev/shm").st_dev != before
print(os.listdir("/dev/shm"))
"""


def _may_have_namespaces() -> bool:
    user = NOBODY if os.getuid() == 0 else None
    asked = subprocess.run(["unshare", "-rm", "true"], user=user, capture_output=True, check=False, cwd="/")
    return asked.returncode == 0


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not _may_have_namespaces(), reason="no user namespaces here"
)
def test_without_root() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(NOBODY)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "[]\n", done.stderr
