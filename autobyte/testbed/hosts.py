"""Hosts as network namespaces on a bridge, their links shaped in both directions.

    host 0   host 1   host 2 …      a namespace each, 10.77.0.1, .2, .3 …; its egress is shaped: up
       \\       |       /
        switch                       a namespace with a bridge; its ports' egress is shaped: down

Nothing outside these namespaces is touched.
"""

import contextlib
import errno
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Self

from autobyte.errors import InputError
from autobyte.testbed.gpu import SharedGpu
from autobyte.testbed.launch import PORT, Finished, Launch, Seat, Show
from autobyte.testbed.namespaces import (
    TestbedError,
    check_right,
    clean_up,
    create,
    inside,
    netlink,
    new_owner,
    pyroute2,
    remove,
)
from autobyte.units import KIB, format_rate

NETWORK = "10.77.0"
METER = f"{NETWORK}.254"  # the switch itself, on no shaped link: what measures links talks to it
INTERFACE = "eth0"
BURST = 128 * KIB  # smaller ones cost a core at 1 Gbit/s
PACKET, CARRIED = 1514, 1448  # bytes of a packet on the wire, and of what it carries
PAYLOAD = CARRIED / PACKET  # of a nominal rate: what TCP carries
QUEUE_S = 0.05  # how long a packet may wait before it is dropped
FASTEST = 4.2e9  # bytes/s: tbf's rate is a number of 32 bits


class Testbed:
    """Hosts and their links, for as long as the block lasts.

    >>> with Testbed(4, rate=1.25e8) as testbed:
    ...     testbed.shape(2, up=3e7)
    ...     testbed.run(["python", "train.py"], timeout_s=600)

    In the main thread, SIGTERM and SIGHUP end the block like an exception.

    Args:
        hosts: how many.
        rate: of every link in both directions, nominal (bytes/s); TCP carries 95.64 % of it.
        delay_s: of every packet from one host to another, beside the time it takes on the links.
        loss: share of packets that get lost on their way out of a host.
        congestion: TCP congestion control, set on every route.

    Raises:
        TestbedError: no right to make network namespaces, not on Linux, or the kernel lacks a feature that is needed.
        MissingExtra: pyroute2 is not installed.
    """

    __test__ = False

    def __init__(
        self, hosts: int, *, rate: float, delay_s: float = 0.0, loss: float = 0.0, congestion: str = "cubic"
    ) -> None:
        if not 2 <= hosts <= 200:
            raise InputError(f"a testbed has 2 to 200 hosts, got {hosts}")
        if not 0 <= delay_s <= 10:
            raise InputError(f"delay must be between 0 and 10 s, got {delay_s:g} s")
        if not 0 <= loss < 1:
            raise InputError(f"loss must be a share from 0 to 1, got {loss:g}")
        self._rates = [[checked_rate(rate), checked_rate(rate)] for _ in range(hosts)]  # up, down
        check_right()
        pyroute2()
        self.hosts = hosts
        self._delay_s = delay_s
        self._loss = loss
        self._congestion = congestion
        self._owner = new_owner()
        self.switch = f"{self._owner}-switch"  # its namespace
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._handlers[number] = signal.signal(number, _leave)
        try:
            clean_up()
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def name(self, host: int) -> str:
        """The namespace of a host."""
        return f"{self._owner}-h{self._known(host)}"

    def address(self, host: int) -> str:
        """The IP address of a host."""
        return f"{NETWORK}.{self._known(host) + 1}"

    def rates(self, host: int) -> tuple[float, float]:
        """Up and down, nominal (bytes/s)."""
        up, down = self._rates[self._known(host)]
        return up, down

    def shape(self, host: int, *, up: float | None = None, down: float | None = None) -> None:
        """Change the rates of a host's link while it is in use (bytes/s); right within 100 ms."""
        own = self._rates[self._known(host)]
        for side, rate in enumerate((up, down)):
            if rate is not None:
                own[side] = checked_rate(rate)
                self._limit(host, side, "change")

    def cut(self, host: int) -> None:
        """Take a host off the network: its packets are lost."""
        self._link(host, "down")

    def join(self, host: int) -> None:
        """Bring it back."""
        self._link(host, "up")

    def inside(self, host: int) -> AbstractContextManager[None]:
        """Let the calling thread be in a host: sockets and processes that it makes are there, and stay there."""
        return inside(self.name(host))

    def start(
        self,
        command: Sequence[str],
        *,
        hosts: Sequence[int] | None = None,
        per_host: int = 1,
        env: Mapping[str, str] | None = None,
        port: int = PORT,
        show: Show | None = None,
        gpu: SharedGpu | None = None,
    ) -> Launch:
        """Start a command on hosts, with torchrun's environment; use what comes back as a context.

        Args:
            command: the program and its arguments; `python` is the one that runs this process.
            hosts: which, in the order of ranks; None is all.
            per_host: ranks on each.
            env: more variables.
            port: that the ranks meet at; a second job on the same hosts needs another.
            show: called with rank and line, from several threads, as lines are written.
            gpu: that all ranks share; it must outlast the launch.

        Raises:
            InputError: no such host or command.
        """
        chosen = list(range(self.hosts)) if hosts is None else list(hosts)
        if not chosen or per_host < 1:
            raise InputError(f"at least one host and one rank on it, got {len(chosen)} and {per_host}")
        master = self.address(chosen[0])
        ranks = [host for host in chosen for _ in range(per_host)]
        seats = [
            Seat(host, partial(self.inside, host), gpu.environment(rank) if gpu is not None else {})
            for rank, host in enumerate(ranks)
        ]
        return Launch(command, seats, master=master, port=port, interface=INTERFACE, env=env, show=show)

    def run(
        self,
        command: Sequence[str],
        *,
        hosts: Sequence[int] | None = None,
        per_host: int = 1,
        timeout_s: float | None = None,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        port: int = PORT,
        show: Show | None = None,
    ) -> list[Finished]:
        """Run a command on hosts to its end: `start`, then `Launch.wait`, whose arguments and errors these are."""
        with self.start(command, hosts=hosts, per_host=per_host, env=env, port=port, show=show) as launch:
            return launch.wait(timeout_s=timeout_s, check=check)

    def _known(self, host: int) -> int:
        if not 0 <= host < self.hosts:
            raise InputError(f"no host {host}: a testbed of {self.hosts} has 0 to {self.hosts - 1}")
        return host

    def _build(self) -> None:
        with _explained("make network namespaces"):
            create(self.switch)
            with netlink(self.switch) as route:
                route.link("add", ifname="bridge", kind="bridge")
                _give_address(route, "bridge", METER, self._congestion)
            for host in range(self.hosts):
                self._add(host)
        for host in range(self.hosts):
            for side in (0, 1):
                self._limit(host, side, "add")

    def _add(self, host: int) -> None:
        create(self.name(host))
        with netlink(self.switch) as route:
            port = _port(host)
            route.link("add", ifname=port, kind="veth", peer={"ifname": INTERFACE, "net_ns_fd": self.name(host)})
            route.link("set", index=_index(route, port), master=_index(route, "bridge"), state="up")
        with netlink(self.name(host)) as route:
            route.link("set", index=_index(route, "lo"), state="up")
            _give_address(route, INTERFACE, self.address(host), self._congestion)

    def _link(self, host: int, state: str) -> None:
        port = _port(self._known(host))
        with netlink(self.switch) as route:
            route.link("set", index=_index(route, port), state=state)

    def _limit(self, host: int, side: int, verb: str) -> None:
        rate = int(self._rates[host][side])
        where, interface = (self.name(host), INTERFACE) if side == 0 else (self.switch, _port(host))
        with netlink(where) as route:
            index = _index(route, interface)
            with _explained("shape links", needs="the queueing discipline tbf (module sch_tbf)"):
                burst, latency = max(BURST, rate // 1000), f"{round(1e3 * QUEUE_S)}ms"
                route.tc(verb, "tbf", index, handle="1:", rate=rate, burst=burst, latency=latency)
            if side == 0 and (self._delay_s or self._loss):  # delayed first, then held back to the rate
                packets = max(1000, round(rate * (self._delay_s + QUEUE_S) / PACKET))
                late = {"delay": round(1e6 * self._delay_s), "loss": 100 * self._loss, "limit": packets}
                with _explained("delay or lose packets", needs="netem (module sch_netem)"):
                    route.tc(verb, "netem", index, handle="10:", parent="1:1", **late)

    def _remove(self) -> None:
        existing = set(pyroute2().netns.listnetns())
        for name in (*(self.name(host) for host in range(self.hosts)), self.switch):
            if name in existing:
                remove(name)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}


@contextlib.contextmanager
def _explained(what: str, *, needs: str = "network namespaces, bridges and veth") -> Iterator[None]:
    """Turn what the kernel refuses into one line."""
    try:
        yield
    except (OSError, pyroute2().NetlinkError) as error:
        code = getattr(error, "code", None) or getattr(error, "errno", None) or 0
        if code in (errno.ENOENT, errno.EOPNOTSUPP):
            raise TestbedError(f"the testbed cannot {what}: this kernel has no {needs}") from error
        raise TestbedError(f"the testbed cannot {what} here: {os.strerror(code)}") from error


def _give_address(route: Any, interface: str, address: str, congestion: str) -> None:
    index = _index(route, interface)
    route.addr("add", index=index, address=address, prefixlen=24)
    route.link("set", index=index, state="up")
    # the sysctl is refused in a namespace of its own on some kernels; a route's metric is not
    way = {"dst": f"{NETWORK}.0/24", "oif": index, "scope": "link", "proto": "kernel", "prefsrc": address}
    route.route("replace", **way, metrics={"cc_algo": congestion})


def _port(host: int) -> str:
    return f"port{host}"


def _index(route: Any, interface: str) -> int:
    return int(route.link_lookup(ifname=interface)[0])


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def checked_rate(rate: float) -> float:
    """A rate that links can have (bytes/s).

    Raises:
        InputError: it is not.
    """
    if not 1e4 <= rate <= FASTEST:
        raise InputError(
            f"a testbed's rate must be between {format_rate(1e4)} and {format_rate(FASTEST)}, got {format_rate(rate)}"
        )
    return rate
