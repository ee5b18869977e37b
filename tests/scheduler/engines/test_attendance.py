"""Everybody hears who ends, and who is gone; nobody is gone when all have ended."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from autobyte.scheduler.engines.attendance import Attendance
from autobyte.scheduler.engines.lines import Line

TOKEN = "6b1f"


class Member:
    """One that comes, and what it hears."""

    def __init__(self, attendance: Attendance, role: str, rank: int, token: str = TOKEN) -> None:
        self.line = Line(socket.create_connection(("127.0.0.1", attendance.port), timeout=10))
        self.heard: Iterator[list[Any]] = self.line.messages()
        self.line.tell("here", role, rank, token)


def test_all_hear_who_has_ended_and_that_all_have() -> None:
    attendance = Attendance("127.0.0.1", workers=2, token=TOKEN)
    first, server = Member(attendance, "worker", 0), Member(attendance, "server", 0)
    first.line.tell("bye", 12)
    assert next(first.heard) == next(server.heard) == ["bye", 0, 12]
    second = Member(attendance, "worker", 1)
    assert next(second.heard) == ["bye", 0, 12]  # who comes later hears it, too
    second.line.tell("bye", 12)
    for member in (first, second, server):
        assert next(member.heard) == ["bye", 1, 12]
        assert next(member.heard) == ["over"]
    second.line.close()
    attendance.close()
    assert list(server.heard) == []  # whoever goes now is not missed
    for member in (first, server):
        member.line.close()


def test_all_hear_who_is_gone() -> None:
    attendance = Attendance("127.0.0.1", workers=2, token=TOKEN)
    members = [Member(attendance, "worker", 0), Member(attendance, "worker", 1), Member(attendance, "server", 1)]
    members[0].line.tell("bye", 3)
    assert [next(member.heard) for member in members] == [["bye", 0, 3]] * 3
    members[2].line.close()
    assert [next(member.heard) for member in members[:2]] == [["gone", "server", 1]] * 2
    attendance.close()
    for member in members:
        member.line.close()


@pytest.mark.parametrize(
    "said", [b'["here", "worker", 0, "else"]\n', b'["bye"]\n', b"GET / HTTP/1.1\n", b"[" * 70_000]
)
def test_a_stranger_is_sent_away(said: bytes) -> None:
    """And no member hears of them."""
    attendance = Attendance("127.0.0.1", workers=1, token=TOKEN)
    member = Member(attendance, "worker", 0)
    with socket.create_connection(("127.0.0.1", attendance.port), timeout=10) as stranger, suppress(ConnectionError):
        stranger.sendall(said)
        assert stranger.recv(1) == b""
    member.line.tell("bye", 3)
    assert [next(member.heard) for _ in range(2)] == [["bye", 0, 3], ["over"]]
    attendance.close()
    member.line.close()
