"""A process in which a parameter-server library carries blocks for one rank, serves, or schedules.

Such a library is one per process, ends a process where something goes wrong, and waits for ever for members that are
gone. In a process of its own it harms nobody: the rank that started it ends it.
"""

import ctypes
import json
import mmap
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from autobyte.scheduler.engines.attendance import Attendance
from autobyte.scheduler.engines.byteps_store import BytePSStore, own_shared_memory
from autobyte.scheduler.engines.lines import Line
from autobyte.scheduler.engines.mxnet_store import MXNetStore

TOKEN = "AUTOBYTE_ATTENDANCE"  # a variable of the environment: arguments are for all users to see
WATCH_S = 1.0


class Store(Protocol):
    """What a library of parameter servers must offer."""

    def serve(self) -> None:
        """Serve, or schedule."""

    def make(self, memory: memoryview, dtype: str) -> None:
        """Make the next key; all workers do."""

    def move(self, key: int, priority: int) -> None:
        """Send a key's values to the servers, and get its sum from them."""


def main() -> None:
    """Do what the rank that has started this process says in the first argument; standard input is its line."""
    told = json.loads(sys.argv[1])
    if told["library"]:
        ctypes.CDLL(told["library"])  # or say at once why not
    elif told["role"] == "worker":
        own_shared_memory()  # before there are threads
    rank = Line(socket.socket(fileno=0))
    _in_thread(lambda: _watch(told["parent"]))
    token = os.environ[TOKEN]
    if told["role"] == "scheduler":
        _in_thread(lambda: _listen(rank, lambda message: None))
        rank.tell("meet", Attendance(told["host"], workers=told["workers"], token=token).port)
        _store(told, rank).serve()
        return
    meeting = Line(socket.create_connection(tuple(told["meeting"])))
    meeting.tell("here", told["role"], told["rank"], token)
    if told["role"] == "server":
        _in_thread(lambda: _listen(rank, lambda message: None))
        _in_thread(lambda: _listen(meeting, lambda message: None))
        _store(told, rank).serve()
        return
    _in_thread(lambda: _relay(meeting, rank))
    _carry(told, rank, meeting)


def _carry(told: dict[str, Any], rank: Line, meeting: Line) -> None:
    """Move blocks as the rank says."""
    said: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()

    def heard(message: list[Any]) -> None:  # goodbye at once: making a key may wait for a rank that is gone
        meeting.tell(*message) if message[0] == "bye" else said.put(message)

    _in_thread(lambda: _listen(rank, heard))
    store = _store(told, rank)
    rank.tell("ready")
    while True:
        what, *values = said.get()
        if what == "make":
            offset, nbytes, dtype = values
            store.make(memoryview(mmap.mmap(told["memory"], nbytes, offset=offset)), dtype)
        else:
            store.move(*values)


def _store(told: dict[str, Any], rank: Line) -> Store:
    """Join the cluster. Collective."""

    def pushed(key: int) -> None:
        rank.tell("pushed", key)

    def pulled(key: int) -> None:
        rank.tell("pulled", key)

    if told["library"]:
        return MXNetStore(told["library"], pushed=pushed, pulled=pulled)
    return BytePSStore(told["role"], pushed=pushed, pulled=pulled)


def _listen(line: Line, heard: Callable[[list[Any]], None]) -> None:
    """Hear what is said, and end this process when the other end is gone."""
    for message in line.messages():
        heard(message)
    os._exit(0)


def _watch(parent: int) -> None:
    """End this process with the rank, whose children may keep the other end of the line."""
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os._exit(0)


def _relay(meeting: Line, rank: Line) -> None:
    for message in meeting.messages():
        rank.tell(*message)
    rank.tell("gone", "scheduler", 0)


def _in_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, daemon=True).start()


if __name__ == "__main__":
    try:
        main()
    except BaseException:  # whatever it is, the library's threads must not keep this process
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)
