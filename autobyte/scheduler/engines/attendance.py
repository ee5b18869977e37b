"""Who of a cluster of parameter servers is there: told at once to all others, since the libraries do not tell it."""

import hmac
import socket
import threading
from contextlib import suppress
from typing import Any

from autobyte.scheduler.engines.lines import Line

INTRODUCTION_S = 5.0  # in which one who connects must say who they are


class Attendance:
    """Hears who comes and who goes, and tells the others. It runs where the cluster's scheduler does.

    Members are workers and servers; each keeps one connection. They are told `bye` of a worker that has ended, and
    how many blocks it had started; `over` when all workers have; and `gone` of a member that went without a word.

    Args:
        host: the address to listen on.
        workers: how many there are.
        token: that members know; whoever does not give it is sent away.
    """

    def __init__(self, host: str, *, workers: int, token: str) -> None:
        self._workers, self._token = workers, token
        self._lock = threading.Lock()
        self._members: list[Line] = []
        self._said: list[list[Any]] = []  # for those that come later
        self._left: set[int] = set()  # workers that have said goodbye
        self._listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="autobyte-attendance", daemon=True).start()

    def close(self) -> None:
        """Hang up."""
        self._listener.close()
        with self._lock:
            members = list(self._members)
        for member in members:
            member.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                sock, _ = self._listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._hear, args=(Line(sock),), daemon=True).start()

    def _hear(self, line: Line) -> None:
        messages = line.messages()
        line.sock.settimeout(INTRODUCTION_S)
        try:
            _, role, rank, token = next(messages)
            known = hmac.compare_digest(token.encode(), self._token.encode())
        except (StopIteration, ValueError, TypeError, AttributeError):
            known = False
        if not known:
            line.close()
            return
        line.sock.settimeout(None)
        with self._lock:
            self._members.append(line)
            for said in self._said:
                line.tell(*said)
        for _, started in messages:
            self._say("bye", rank, started)
            with self._lock:
                self._left.add(rank)
            if self._is_over:
                self._say("over")
        with self._lock:
            self._members.remove(line)
        if not self._is_over:
            self._say("gone", role, rank)

    @property
    def _is_over(self) -> bool:
        return len(self._left) == self._workers

    def _say(self, *message: Any) -> None:
        with self._lock:
            self._said.append(list(message))
            members = list(self._members)
        for member in members:
            member.tell(*message)
