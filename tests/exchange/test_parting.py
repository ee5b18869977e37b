"""What is inside PyTorch when a process ends comes back before the interpreter is taken apart."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

STOPPED = """
import sys, threading
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg
from autobyte.internals import default_store
from autobyte.exchange.deadline import Deadline
from autobyte.exchange.parting import in_thread

store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
dist.init_process_group("fake", store=store, rank=0, world_size=2)
print("ready", flush=True)
sys.stdin.readline()

def ask():
    try:
        print("answered:", default_store().check(["never"]), flush=True)
    except Exception as error:
        print("back:", type(error).__name__, flush=True)

in_thread(ask, name="asks")
"""

HOST = """
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
input()
"""

FLYING = """
import threading
from datetime import timedelta
import torch
import torch.distributed as dist
from autobyte.internals import own_gloo
from autobyte.scheduler.block import Block, Collective, Segment
from autobyte.scheduler.engines.allreduce import AllReduce

store, made = dist.HashStore(), {}

def make(rank):
    made[rank] = own_gloo("two", rank=rank, size=2, timeout=timedelta(seconds=60), store=store)

threads = [threading.Thread(target=make, args=(rank,)) for rank in (0, 1)]
[each.start() for each in threads]
[each.join() for each in threads]

class Memory:
    def take(self, block):
        return torch.zeros(8)

engine = AllReduce(Memory(), made[0])
block = Block(0, (Segment(0, 0, 8),), 32)
engine.start(block, print, lambda block, error: print("failed:", type(error).__name__, flush=True))
engine.close()  # rank 1 has not started it, and never will
print("closed", flush=True)
"""


SLOW = FLYING.replace("print, lambda block, error: print(", "print, lambda block, error: take_time(").replace(
    "engine = AllReduce",
    """
import time

def take_time(*words, flush):
    time.sleep(0.5)  # as noting what all threads do takes
    print(*words, flush=True)

engine = AllReduce""",
)

STREAM = (
    FLYING[: FLYING.index("class Memory")]
    + """
from autobyte.scheduler.engines.streams import HostStreams

streams = HostStreams()

def work():
    try:
        made[0].allreduce([torch.zeros(8)], dist.AllreduceOptions()).wait()
    except RuntimeError as error:
        print("back:", type(error).__name__, flush=True)

streams.enqueue(work, [])
streams.close()
print("closed", flush=True)
"""
)


def _start(script: str, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-X", "faulthandler", "-c", script, *words]
    return subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_a_thread_that_waits_for_a_stopped_store_is_back_before_the_process_ends() -> None:
    with _start(HOST) as host:
        assert host.stdout is not None
        asking = _start(STOPPED, host.stdout.readline().strip())
        assert asking.stdout is not None
        assert asking.stdout.readline() == "ready\n"
        os.kill(host.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, host.pid, os.WSTOPPED)  # all of its threads: the store's own may answer until then
        began = time.monotonic()
        said, _ = asking.communicate("go on\n", timeout=60)
        host.kill()
    assert asking.returncode == 0
    assert re.fullmatch(r"back: \w+\n", said)
    assert time.monotonic() - began < 20


def test_blocks_under_way_fail_before_the_process_ends() -> None:
    process = _start(FLYING)
    began = time.monotonic()
    said, _ = process.communicate(timeout=100)
    assert said.splitlines() == ["closed", "failed: RuntimeError"]
    assert process.returncode == 0
    assert time.monotonic() - began < 50  # of gloo's timeout of 60 s


@pytest.mark.parametrize(("script", "last"), [(SLOW, "failed: RuntimeError"), (STREAM, "back: RuntimeError")])
def test_what_calls_back_or_comes_back_is_done_before_the_process_ends(script: str, last: str) -> None:
    """A callback that takes long, and a thread of a stream that waits in gloo for a rank that never comes."""
    process = _start(script)
    said, _ = process.communicate(timeout=100)
    assert said.splitlines() == ["closed", last]
    assert process.returncode == 0
