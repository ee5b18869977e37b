"""Two network namespaces that only a relay joins: what runs in one reaches the other through the relay's bottleneck.

    namespace h0, 10.78.0.1 ── TUN device ── relay ── TUN device ── namespace h1, 10.78.0.2

So the kernel's own TCP meets the same link as our datapath, on kernels without netem too.
"""

import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from autobyte.congestion.datapath.relay import Hop, RelayCounts, relaying
from autobyte.congestion.paths import PACKET_BYTES
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

ADDRESSES = ("10.78.0.1", "10.78.0.2")
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # Linux's if_tun.h
DEVICE = "tun0"


@dataclass(frozen=True)
class Tunnel:
    """Two hosts, named by their namespaces, and what the relay between them did.

    Args:
        names: of the namespaces; the first is the sender's.
        carried: known when the block is over.
    """

    names: tuple[str, str]
    carried: RelayCounts

    def inside(self, host: int) -> AbstractContextManager[None]:
        """Let the calling thread be in a host: sockets and processes that it makes are there, and stay there."""
        return inside(self.names[host])


@contextlib.contextmanager
def tunnel(hop: Hop) -> Iterator[Tunnel]:
    """Make two hosts with a relay between them, for as long as the block lasts.

    Args:
        hop: what packets meet; devices show headers, so its `headers` should be 0.

    Raises:
        TestbedError: no right to make network namespaces, or no TUN device.
        MissingExtra: pyroute2 is not installed.
    """
    with contextlib.ExitStack() as stack:
        names, sides = _hosts(stack)
        yield Tunnel(names, stack.enter_context(relaying(sides[0], sides[1], hop)))


def check_tunnel(algorithm: str) -> None:
    """Make sure that there can be a tunnel, and the kernel's TCP with this algorithm in it.

    Raises:
        TestbedError: there cannot.
        MissingExtra: pyroute2 is not installed.
    """
    with contextlib.ExitStack() as stack:
        names, _ = _hosts(stack)
        with inside(names[0]), socket.socket() as sock:
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm.encode())
            except OSError as error:
                raise TestbedError(f"this kernel has no TCP '{algorithm}': {error.strerror}") from error


def _hosts(stack: contextlib.ExitStack) -> tuple[tuple[str, str], list[int]]:
    """Two namespaces, and the descriptors of their TUN devices."""
    check_right()
    owner, sides = new_owner(), list[int]()
    names = (f"{owner}-h0", f"{owner}-h1")
    try:
        clean_up()
        for name, address in zip(names, ADDRESSES, strict=True):
            stack.callback(remove, name)
            create(name)
            sides.append(_device(name, address, stack))
    except (OSError, pyroute2().NetlinkError) as error:
        raise TestbedError(f"the tunnel's two hosts cannot be made here: {error}") from error
    return names, sides


def _device(name: str, address: str, stack: contextlib.ExitStack) -> int:
    """A TUN device in a namespace, with an address; its descriptor."""
    with inside(name):
        try:
            side = os.open("/dev/net/tun", os.O_RDWR)
            stack.callback(os.close, side)
            fcntl.ioctl(side, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
        except OSError as error:
            needs = "has no TUN device" if error.errno in (errno.ENOENT, errno.ENODEV) else "refuses a TUN device"
            raise TestbedError(f"the tunnel needs /dev/net/tun, and this kernel {needs}: {error.strerror}") from error
    with netlink(name) as route:
        index = int(route.link_lookup(ifname=DEVICE)[0])
        route.addr("add", index=index, address=address, prefixlen=24)
        route.link("set", index=index, state="up", mtu=PACKET_BYTES)
        route.link("set", index=int(route.link_lookup(ifname="lo")[0]), state="up")
    return side
