"""What ps-lite reads is what this training says, whatever the environment says."""

import os
import socket
import subprocess
import sys
from typing import Any

import pytest
from clusters import WITH_MXNET

from autobyte.exchange.clusters import mxnet
from autobyte.scheduler.engines import carriers
from autobyte.scheduler.engines.carriers import Carriers, Library, environment, free_port, listens


def test_processes_belong_to_this_cluster_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DMLC_PS_VAN_TYPE", "p3")
    monkeypatch.setenv("DMLC_ROLE", "worker")
    monkeypatch.setenv("PS_VERBOSE", "2")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    told = {"workers": 3, "root": "10.0.0.1", "port": 9000, "host": "10.0.0.2", "rank": 1}
    ours = environment("server", told)
    assert {name: value for name, value in ours.items() if name.startswith(("DMLC_", "PS_"))} == {
        "DMLC_ROLE": "server",
        "DMLC_NUM_WORKER": "3",
        "DMLC_NUM_SERVER": "3",
        "DMLC_PS_ROOT_URI": "10.0.0.1",
        "DMLC_PS_ROOT_PORT": "9000",
        "DMLC_NODE_HOST": "10.0.0.2",
        "DMLC_WORKER_ID": "1",
    }
    assert ours["PYTHONPATH"].endswith(os.pathsep + "/elsewhere")
    assert ours["PATH"] == os.environ["PATH"]


def test_says_why_a_library_does_not_load() -> None:
    """To all ranks, since the first one shares it."""
    library, shared = Library("MXNet", "/nowhere/libmxnet.so", {}, {}), list[Any]()

    def share(value: Any) -> Any:
        shared.append(value)
        return value

    with pytest.raises(ConnectionError, match=r"scheduler of MXNet on rank 0 has ended with status 1: .*/nowhere/"):
        Carriers(library, rank=0, size=2, host="127.0.0.1", share=share)
    with pytest.raises(ConnectionError, match="/nowhere/"):
        Carriers(library, rank=1, size=2, host="127.0.0.1", share=lambda _: shared[0])


def test_a_scheduler_is_seen_to_listen_or_to_end() -> None:
    port = free_port("127.0.0.1")
    program = "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); sys.stdin.read()"
    words = [sys.executable, "-c", program, str(port)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as first:
        assert listens(first, port)
        with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as late:
            assert not listens(late, port), "the other process listens there"
        assert first.stdin is not None
        first.stdin.close()


@WITH_MXNET
def test_the_scheduler_takes_another_port_if_one_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = [taken.getsockname()[1], free_port("127.0.0.1")]
        left = list(ports)
        monkeypatch.setattr(carriers, "free_port", lambda host: left.pop(0))
        own = Carriers(mxnet(), rank=0, size=1, host="127.0.0.1", share=lambda value: value)
        assert own._told["port"] == ports[1]
        own.close()
