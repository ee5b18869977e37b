"""Who is still there, asked when something has failed: through the store at which the ranks met."""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence

from torch.distributed.distributed_c10d import PrefixStore, Store

from autobyte.exchange.parting import ending, in_thread
from autobyte.exchange.secret import signed, unsigned
from autobyte.internals import default_store, own_store

log = logging.getLogger("autobyte")

LONG_S = 1.0  # after which a wait asks whether another rank has failed
PATIENCE_S = 3.0  # for those who find out a little later
POLL_S = 0.1
STALL_S = 10.0  # after which the log says who is silent
AGAIN_S = 60.0  # before the next such line
ANSWER_S = 1.5  # for those who listen, too
CONNECT_S = 6.0  # for a store that is there: PyTorch waits 5 s for a name server that does not answer


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
        stall_s: after which a wait is a line in the log (s).
    """

    def __init__(self, name: str, *, rank: int, ranks: Sequence[int], stall_s: float = STALL_S) -> None:
        self._name = f"autobyte/{name}/rollcall"
        self._met: Store | None = default_store()  # the user may destroy the default group, and make another
        self._connected: PrefixStore | None = None
        self._connecting = threading.Lock()  # who waits for it learns what its holder has found
        self._began_s = math.inf  # when somebody last began to connect
        self._rank = rank
        self._others = [other for other in ranks if other != rank]
        self._servers: list[int] = []
        self._stall_s = stall_s
        self._told_s = -AGAIN_S
        self._raised = False
        self._said = ""
        self.heard = ""  # the alarm of another rank
        self._listening: threading.Thread | None = None
        self._over = threading.Event()  # set while nobody listens; every `listen` has one of its own
        self._over.set()

    @property
    def _store(self) -> PrefixStore:
        """Where ranks say that they are there, by a connection that is made when one waits for long.

        Raises:
            RuntimeError: the roll call is over.
            OSError: the store's host is gone.
        """
        with self._connecting:
            met, store = self._met, self._connected
            if met is None:
                raise RuntimeError("the roll call is over")
            if store is None:
                self._began_s = time.monotonic()
                try:
                    store = PrefixStore(self._name, own_store(met))
                finally:
                    self._began_s = math.inf
                self._connected = store if self._met is met else None
            return store

    def include(self, servers: Sequence[int]) -> None:
        """Ask servers that do not train, too; they listen all the time."""
        self._servers = [server for server in servers if server != self._rank and server not in self._others]
        self._others += self._servers

    def alarm(self, message: str, *, patience_s: float = 0.0) -> None:
        """Say that this rank has failed, or has heard that another one has. The first message stays.

        Args:
            message: what has happened.
            patience_s: how long to wait until the store knows it, for a process that may end right after this (s).
        """
        if not self._raised:
            self._raised, self._said = True, message
            _in_thread(lambda: self._raise(message)).join(patience_s)

    def listen(
        self, heard: Callable[[str], None], *, where: Callable[[], str] | None = None, every_s: float = POLL_S
    ) -> None:
        """Call back with the message if another rank raises an alarm, until `ignore` is called.

        Args:
            heard: is told the message.
            where: tells for a line in the log what this rank waits for; None on one that waits for nobody.
            every_s: how often to look (s).
        """
        if not self._over.is_set():
            return
        over = self._over = threading.Event()
        began_s = time.monotonic() - LONG_S

        def poll() -> None:
            answered = 0
            while not (over.is_set() or ending.is_set()):
                if self._store.check(["alarm"]):
                    message = unsigned(bytes(self._store.get("alarm")))
                    if message is not None:  # else a stranger's
                        self.heard = message
                        heard(message)
                        break
                answered = self._answer(answered)
                if where is not None and time.monotonic() >= max(began_s + self._stall_s, self._told_s + AGAIN_S):
                    self._tell(where, over, began_s)
                over.wait(every_s)

        self._listening = _in_thread(poll)

    def ignore(self) -> None:
        """Listen no more."""
        self._over.set()

    def close(self) -> None:
        """Listen no more, and let go of thread and connection: an alarm that comes later is raised nowhere."""
        self.ignore()
        if self._listening is not None:
            self._listening.join(LONG_S)
        self._connected = self._met = None

    def absent(self) -> str:
        """Hear the others, and put into words who is silent."""
        silent: list[list[int]] = []
        connected = threading.Event()

        def hear() -> None:
            store = self._store
            connected.set()
            if store.check(["alarm"]):
                first = unsigned(bytes(store.get("alarm")))
                self.heard = first if first and first != self._said else self.heard
            until = time.monotonic() + PATIENCE_S
            while not silent or (silent[-1] and time.monotonic() < until):
                silent.append([other for other in self._others if not store.check([f"rank{other}"])])
                time.sleep(POLL_S)

        hearing = _in_thread(hear)
        while not connected.wait(POLL_S) and hearing.is_alive() and time.monotonic() < self._began_s + CONNECT_S:
            pass
        if connected.is_set():
            hearing.join(PATIENCE_S + 2 * POLL_S)
        if not silent:
            return "the store at which the ranks met does not answer: its host is gone or stopped"
        if not silent[-1]:
            return "all ranks are alive"
        return self._no_word(silent[-1])

    def _answer(self, answered: int) -> int:
        """Say that this rank is there, if one has asked since; the number of the latest who asked."""
        asked = self._store.add("stalls", 0)
        if asked != answered:
            self._store.set(f"hears{self._rank}", str(asked))
        return asked

    def _tell(self, where: Callable[[], str], over: threading.Event, began_s: float) -> None:
        """Ask who listens, and log who does not, unless the wait is over by then."""
        self._told_s = time.monotonic()
        waited_s = int(self._told_s - began_s)
        number, silent = self._store.add("stalls", 1), self._others

        def hears(rank: int) -> bool:
            return self._store.check([f"hears{rank}"]) and int(self._store.get(f"hears{rank}")) >= number

        while silent and time.monotonic() < self._told_s + ANSWER_S and not (over.is_set() or ending.is_set()):
            self._answer(0)  # others ask at about the same time
            silent = [rank for rank in silent if not hears(rank)]
            time.sleep(POLL_S)
        if not (over.is_set() or ending.is_set()):
            who = self._no_word(silent) if silent else "all others wait, too, or serve"
            log.warning("%s for %d s; %s", where(), waited_s, who)

    def _no_word(self, silent: Sequence[int]) -> str:
        named = [f"{rank} (a server)" if rank in self._servers else str(rank) for rank in silent]
        return f"no word from rank{'s' if len(named) > 1 else ''} {', '.join(named)}"

    def _raise(self, message: str) -> None:
        self._store.set(f"rank{self._rank}", "here")
        first = self._store.compare_set("alarm", "", signed(message).decode())
        if unsigned(bytes(first)) is None:  # a stranger's
            self._store.set("alarm", signed(message).decode())


def _in_thread(action: Callable[[], None]) -> threading.Thread:
    def run() -> None:
        with contextlib.suppress(Exception):  # the store is gone
            action()

    return in_thread(run, name="autobyte-rollcall")
