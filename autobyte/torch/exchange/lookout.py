"""Looks after blocks that no thread waits for: a device that waits for a lost rank would wait for ever."""

import threading
import time

from autobyte.exchange.rollcall import LONG_S, POLL_S
from autobyte.exchange.session import Session
from autobyte.scheduler.block import Block
from autobyte.scheduler.engines.ordered import Ordered
from autobyte.scheduler.engines.streams import Event

ABORT_S = 10.0  # that an abort may take: one that hangs must not keep this thread


class Lookout:
    """A thread that fails the session, and aborts the ranks' communicator, when a block is late.

    Args:
        session: is told; its roll call names the rank to blame.
        engine: whose blocks are watched.
    """

    def __init__(self, session: Session, engine: Ordered) -> None:
        self._session = session
        self._engine = engine
        self._closing = threading.Event()
        self._alarm: str | None = None
        self._thread = threading.Thread(target=self._run, name="autobyte-lookout", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let the thread end."""
        self._closing.set()
        self._thread.join(LONG_S)

    def _run(self) -> None:
        late: tuple[Block, Event] | None = None
        since_s, listens = time.monotonic(), False
        while not self._closing.wait(POLL_S):
            try:
                oldest = self._engine.late()
            except Exception as error:  # whatever the network did
                self._fail(self._engine.unfinished()[0], error)
                return
            if oldest is None or oldest is not late:
                late, since_s = oldest, time.monotonic()
                if listens:  # else somebody else may
                    self._session.ignore()
                listens = False
                continue
            waited_s = time.monotonic() - since_s
            if waited_s > LONG_S:
                self._session.listen(self._heard)
                listens = True
            if self._alarm is not None or waited_s > self._session.timeout_s:
                self._fail(oldest[0], TimeoutError(self._alarm or f"not over within {self._session.timeout_s:g} s"))
                return

    def _heard(self, message: str) -> None:
        self._alarm = message

    def _fail(self, block: Block, why: Exception) -> None:
        self._session.ignore()  # somebody else may listen
        self._session.fail_block(block, why)
        abort = threading.Thread(target=lambda: self._engine.abort(why), name="autobyte-abort", daemon=True)
        abort.start()
        abort.join(ABORT_S)
