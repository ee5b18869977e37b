"""Who is still there, asked when something has failed: through the store at which the ranks met."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

from torch.distributed.distributed_c10d import PrefixStore

from autobyte.internals import default_store
from autobyte.torch.exchange.deadline import Deadline
from autobyte.torch.exchange.secret import signed, unsigned

LONG_S = 1.0  # after which a wait asks whether another rank has failed
PATIENCE_S = 3.0  # for those who find out a little later
POLL_S = 0.1


class RollCall:
    """A wait that fails says which rank it waited for: the one that does not say the same.

    A rank that fails raises an alarm in the store. Others hear it when a wait of theirs takes long, and answer.
    Who neither raises it nor answers within a moment is busy, stopped or gone. Nothing is sent as long as nobody
    waits for long.

    The store is asked by threads of its own: one whose host is stopped never answers.

    Args:
        name: of the training it belongs to, the same on all ranks.
        rank: of this process, as torchrun numbers it.
        ranks: all that take part.
    """

    def __init__(self, name: str, *, rank: int, ranks: Sequence[int]) -> None:
        self._store = PrefixStore(f"autobyte/{name}/rollcall", default_store())
        self._rank = rank
        self._others = [other for other in ranks if other != rank]
        self._raised = False
        self._calls = 0  # that needed all ranks at once
        self.issued = 0  # collectives, in the order that all ranks keep
        self._listening = threading.Event()

    def alarm(self, message: str) -> None:
        """Say that this rank has failed, or has heard that another one has. The first message stays."""
        if not self._raised:
            self._raised = True
            _in_thread(lambda: self._raise(message))

    def listen(self, heard: Callable[[str], None]) -> None:
        """Call back with the message if another rank raises an alarm, until `ignore` is called."""
        if self._listening.is_set():
            return
        self._listening.set()

        def poll() -> None:
            self._store.set(f"at{self._rank}", str(self.issued))
            while self._listening.is_set():
                if self._store.check(["alarm"]):
                    message = unsigned(bytes(self._store.get("alarm")))
                    if message is not None:  # else a stranger's
                        heard(message)
                    break
                time.sleep(POLL_S)

        _in_thread(poll)

    def ignore(self) -> None:
        """Listen no more."""
        self._listening.clear()

    def meet(self, deadline: Deadline) -> list[int]:
        """Wait until all ranks are at this call, which scripts may make on one rank alone.

        Returns:
            the ranks that do not come in time, or wait already for a collective that comes after it.
        """
        self._calls += 1
        call, missing = f"call{self._calls}/rank", self._others

        def passed(rank: int) -> bool:
            return self._store.check([f"at{rank}"]) and int(self._store.get(f"at{rank}")) > self.issued

        def gather() -> None:
            nonlocal missing
            self._store.set(f"{call}{self._rank}", "here")
            while missing := [other for other in missing if not self._store.check([f"{call}{other}"])]:
                if any(passed(other) for other in missing):
                    break
                time.sleep(POLL_S)

        with contextlib.suppress(TimeoutError):
            deadline.run(gather)
        return missing

    def absent(self) -> str:
        """Hear the others, and put into words who is silent."""
        silent: list[list[int]] = []

        def hear() -> None:
            until = time.monotonic() + PATIENCE_S
            while not silent or (silent[-1] and time.monotonic() < until):
                silent.append([other for other in self._others if not self._store.check([f"rank{other}"])])
                time.sleep(POLL_S)

        _in_thread(hear).join(PATIENCE_S + 2 * POLL_S)
        if not silent:
            return "the store at which the ranks met does not answer: its host is gone or stopped"
        if not silent[-1]:
            return "all ranks are alive"
        return f"no word from rank{'s' if len(silent[-1]) > 1 else ''} {', '.join(map(str, silent[-1]))}"

    def _raise(self, message: str) -> None:
        self._store.set(f"rank{self._rank}", "here")
        self._store.compare_set("alarm", "", signed(message).decode())


def _in_thread(action: Callable[[], None]) -> threading.Thread:
    def run() -> None:
        with contextlib.suppress(Exception):  # the store is gone
            action()

    thread = threading.Thread(target=run, name="autobyte-rollcall", daemon=True)
    thread.start()
    return thread
