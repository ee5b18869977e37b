"""Everybody hears who ends, and who is gone; nobody is gone when all have ended."""

import socket
from collections.abc import Iterator
from typing import Any

from autobyte.scheduler.engines.attendance import Attendance
from autobyte.scheduler.engines.lines import Line


class Member:
    """One that comes, and what it hears."""

    def __init__(self, attendance: Attendance, role: str, rank: int) -> None:
        self.line = Line(socket.create_connection(("127.0.0.1", attendance.port), timeout=10))
        self.heard: Iterator[list[Any]] = self.line.messages()
        self.line.tell("here", role, rank)


def test_all_hear_who_has_ended_and_that_all_have() -> None:
    attendance = Attendance("127.0.0.1", workers=2)
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
    attendance = Attendance("127.0.0.1", workers=2)
    members = [Member(attendance, "worker", 0), Member(attendance, "worker", 1), Member(attendance, "server", 1)]
    members[0].line.tell("bye", 3)
    assert [next(member.heard) for member in members] == [["bye", 0, 3]] * 3
    members[2].line.close()
    assert [next(member.heard) for member in members[:2]] == [["gone", "server", 1]] * 2
    attendance.close()
    for member in members:
        member.line.close()
