"""A process without privileges gets a /dev/shm of its own, and what travels never meets what is not pulled yet."""

import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from autobyte.scheduler.engines.byteps_store import BytePSStore

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


def test_a_key_is_not_pushed_again_before_all_have_pulled_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server keeps one sum for each name: a fast rank's next push would be written over it."""
    named, declared = list[str](), list[str]()

    def push(tensor: Any, *, average: bool, name: str, priority: int) -> int:
        named.append(name)
        return len(named)

    ops = SimpleNamespace(init=lambda: None, declare=declared.append, push_pull_async_inplace=push)
    package, module = ModuleType("byteps"), ModuleType("byteps.torch")
    vars(module)["ops"] = ops
    monkeypatch.setattr(BytePSStore, "_poll", lambda self: None)
    monkeypatch.setitem(sys.modules, "byteps", package)
    monkeypatch.setitem(sys.modules, "byteps.torch", module)
    store = BytePSStore("worker", pushed=lambda key: None, pulled=lambda key: None)
    for _ in range(2):
        store.make(memoryview(bytearray(8)), "float32")
    for key in (0, 0, 1, 0, 1):
        store.move(key, 0)
    first, again, other, third, other_again = named
    assert first != again
    assert other != other_again
    assert third == first
    assert set(named) == set(declared)
    assert len(declared) == 4
