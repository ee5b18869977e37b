"""Messages between the processes of one training on this machine and others: a line of JSON each."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

LONGEST_BYTES = 65_536  # of a message


class Line:
    """One end of a connection; any thread may tell, one reads.

    >>> near, far = map(Line, socket.socketpair())
    >>> near.tell("done", 7)
    >>> next(far.messages())
    ['done', 7]

    Args:
        sock: connected; the line owns it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._telling = threading.Lock()

    def tell(self, *message: Any) -> None:
        """Send a message; the other end may be gone, which its reader hears of."""
        with self._telling, suppress(OSError):
            self.sock.sendall(json.dumps(message).encode() + b"\n")

    def messages(self) -> Iterator[list[Any]]:
        """What the other end tells, until it is gone."""
        with self.sock.makefile("rb") as file, suppress(OSError, ValueError, RecursionError):
            while line := file.readline(LONGEST_BYTES):
                if not line.endswith(b"\n"):
                    return  # torn off, or a stranger's
                yield json.loads(line)

    def close(self) -> None:
        """End the connection, and whoever reads from it."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
