"""`autobyte congestion serve` and `send` move a file; what cannot work is one line."""

import json
import random
import socket
import threading
from pathlib import Path

import pytest

from autobyte.cli import run


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_a_file_arrives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, there = random.Random(2).randbytes(50_001), tmp_path / "there"
    (tmp_path / "here").write_bytes(data)
    address, statuses = f"127.0.0.1:{free_port()}", []
    words = ["congestion", "serve", "--bind", address, "--out", str(there), "--wait", "10s"]
    server = threading.Thread(target=lambda: statuses.append(run(words)))
    server.start()
    assert run(["congestion", "send", address, "--file", str(tmp_path / "here"), "--json"]) == 0
    server.join(10.0)
    assert statuses == [0]
    assert there.read_bytes() == data
    said = capsys.readouterr().out
    sent, _ = json.JSONDecoder().raw_decode(said[said.index("{") :])
    assert sent["nbytes"] == 50_001
    assert sent["p99_s"] > 0
    assert "50 KB in" in said


def test_an_empty_file_has_no_round_trip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").touch()
    address, statuses = f"127.0.0.1:{free_port()}", []
    server = threading.Thread(target=lambda: statuses.append(run(["congestion", "serve", "--bind", address])))
    server.start()
    assert run(["congestion", "send", address, "--file", str(tmp_path / "empty"), "--json"]) == 0
    server.join(10.0)
    assert statuses == [0]
    said = capsys.readouterr().out
    sent, _ = json.JSONDecoder().raw_decode(said[said.index("{") :])
    assert (sent["nbytes"], sent["round_trip_s"], sent["p99_s"]) == (0, None, None)


def test_a_file_that_may_not_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, mode: str = "r") -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may read anything
    assert (
        run(["congestion", "send", "127.0.0.1:7999", "--algorithm", "bbr", "--file", str(tmp_path / "secret")]) == 2
    )
    assert "secret: Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("serve --bind here", "cannot read address 'here'; write it like 10.0.0.2:7070"),
        ("serve --bind 203.0.113.9:7070", "cannot listen at 203.0.113.9:7070: Cannot assign requested address"),
        ("serve --wait soon", "cannot read wait 'soon'"),
        (f"serve --out {__file__}", "test_datapath.py exists: take another --out, or remove it"),
        ("send 127.0.0.1:0", "cannot read address '127.0.0.1:0'"),
        ("send 127.0.0.1:7999 --file nowhere", "no file nowhere"),
        ("send 127.0.0.1:7999 --file .", ". is a folder; send a file"),
        ("send nowhere.invalid:7999", "nowhere.invalid:7999 is not reached: "),
        ("send 127.0.0.1:7999 --algorithm renoo", "unknown congestion control 'renoo'"),
    ],
)
def test_bad_input_is_one_line(words: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["congestion", *words.split()]) == 2
    said = capsys.readouterr().err.strip()
    assert complaint in said
    assert said.count("\n") == 0
