"""Asks a tuner in a thread of its own: one that fails or hangs holds nobody up."""

import logging
import queue
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Any

from autobyte.config import Config, Space
from autobyte.errors import AutoByteError, InputError
from autobyte.trace import Measurement
from autobyte.tuners import Tuner

log = logging.getLogger(__name__)

BACKLOG = 64  # windows that wait for a tuner that is late; older ones are forgotten


@dataclass(frozen=True)
class Answer:
    """What a tuner said after a window.

    Args:
        number: of the window it was asked after.
        asked: the config it asks for; None is nothing to try.
        cpu_s: of its own thread, for this answer and for what it thought about since the one before.
        failure: what it failed with.
        brief: half a window will do.
    """

    number: int
    asked: Config | None
    cpu_s: float
    failure: str = ""
    brief: bool = False


class Consultation:
    """Tells a tuner what windows showed, asks it for the next config, and lets it think on while training goes on.

    The tuner lives in one thread, which alone calls it: that thread can hang without training waiting for it, and
    what the tuner does in `work` overlaps with the next window. An answer that comes too late for its decision counts
    for the next.

    Args:
        tuner: who is asked.
        space: where its configs must lie.
        patience_s: how long a decision waits for it (s).
    """

    def __init__(self, tuner: Tuner, space: Space, *, patience_s: float) -> None:
        self._patience_s = patience_s
        self._told: queue.Queue[tuple[int, Measurement] | None] = queue.Queue(BACKLOG)
        self._said: queue.Queue[Answer | BaseException] = queue.Queue()
        self._late = False
        self._name = type(tuner).__name__
        arguments = (tuner, space, self._told, self._said)
        threading.Thread(target=_consult, args=arguments, name="autobyte tuner", daemon=True).start()
        self.close = weakref.finalize(self, _tell, self._told, None)

    def consult(self, number: int, measurement: Measurement) -> Answer | None:
        """Tell and ask; None if the tuner has not answered in time, nor to an earlier question."""
        late = self._latest()
        if late is not None and late.failure:
            return late
        _tell(self._told, (number, measurement))
        deadline_s = time.monotonic() + self._patience_s
        while True:
            try:
                answer = self._said.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except queue.Empty:
                self._warn(number)
                return late
            if isinstance(answer, BaseException):
                raise answer
            if answer.number == number or answer.failure:
                return answer
            late = answer

    def _latest(self) -> Answer | None:
        """What was answered after its decision had been taken, the latest of it."""
        late = None
        while not self._said.empty():
            answer = self._said.get()
            if isinstance(answer, BaseException):
                raise answer
            late = answer
        return late

    def _warn(self, number: int) -> None:
        if not self._late:
            what = "the tuner %s has not answered within %g s after %d windows; training goes on without it"
            log.warning(what, self._name, self._patience_s, number)
        self._late = True


def _tell(questions: "queue.Queue[Any]", item: object) -> None:
    """Put an item in line; where the line is full, the oldest is dropped."""
    while True:
        try:
            return questions.put_nowait(item)
        except queue.Full:
            try:
                questions.get_nowait()
            except queue.Empty:
                continue


def _consult(
    tuner: Tuner,
    space: Space,
    questions: "queue.Queue[tuple[int, Measurement] | None]",
    answers: "queue.Queue[Answer | BaseException]",
) -> None:
    """Live in the tuner's thread, until there is nothing more to tell, or the tuner fails."""
    began_s = time.thread_time()
    while (item := questions.get()) is not None:
        number, measurement = item
        try:
            tuner.tell(measurement)
            asked = _checked(tuner.ask(), space)
            now_s = time.thread_time()
            answers.put(Answer(number, asked, now_s - began_s, brief=tuner.brief))
            began_s = now_s
            tuner.work()
        except (Exception, SystemExit) as error:
            if not threading.main_thread().is_alive():
                return  # the process ends, and what the tuner needs may be gone
            what, name = "the tuner failed after %d windows (%s); the best config so far stays", type(tuner).__name__
            if isinstance(error, AutoByteError):
                log.error(what + ": %s", number, name, error)
            else:
                log.exception(what, number, name)
            answers.put(Answer(number, None, time.thread_time() - began_s, f"{type(error).__name__}: {error}"))
            return
        except BaseException as error:
            answers.put(error)
            return


def _checked(asked: object, space: Space) -> Config | None:
    allowed = asked is None or (isinstance(asked, Config) and (asked in space or asked == space.default))
    if not allowed:
        raise InputError(f"a tuner asks for configs of its space, not for {asked!r:.200}")
    return asked  # type: ignore[return-value]
