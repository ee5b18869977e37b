"""A bottleneck in user space, for kernels without netem: rate, queue, delay and random loss, packet by packet.

    sender ── this side ──▶ random loss ▶ queue ▶ rate ▶ delay ──▶ other side ── receiver
                     ◀────────────────────────── delay ◀──

It does what `link.py` simulates, to packets that exist. Each side is a file descriptor that keeps packets apart: a
connected UDP socket or a TUN device. One thread waits for whatever comes next, and notes how late it was.
"""

import json
import math
import os
import random
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from autobyte.errors import AutoByteError, InputError

LARGEST = 1 << 16  # bytes of a packet
MOST_READS = 64  # packets, before those that are due leave
READY_S, END_S = 20.0, 5.0  # that a relay's process may take to start, and to end


@dataclass(frozen=True)
class Hop:
    """What packets meet on their way to the other side; those that come back are only delayed.

    Args:
        bytes_per_s: rate, headers included.
        one_way_s: delay in each direction, beside what waits.
        queue_packets: that may wait, beside the one in service.
        loss: share that is lost at random, before the queue.
        headers: bytes of a packet that the sides do not show: 28 for UDP sockets, 0 for TUN devices.
        seed: of losses.

    Raises:
        InputError: a value that no link has.
    """

    bytes_per_s: float
    one_way_s: float
    queue_packets: int
    loss: float = 0.0
    headers: int = 28
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.bytes_per_s < math.inf:
            raise InputError(f"a relay's rate must be positive and finite, got {self.bytes_per_s:g} bytes/s")
        if not 0 <= self.one_way_s <= 10:
            raise InputError(f"a relay's delay must be between 0 and 10 s, got {self.one_way_s:g} s")
        if self.queue_packets < 0:
            raise InputError(f"a relay's queue must hold at least 0 packets, got {self.queue_packets}")
        if not 0 <= self.loss < 1:
            raise InputError(f"loss must be a share from 0 to below 1, got {self.loss:g}")


@dataclass
class RelayCounts:
    """What a relay did.

    Args:
        came: packets from this side.
        lost: of them, at random.
        dropped: of them, because the queue was full.
        left: packets that reached the other side.
        back: packets that came back.
        late_s: sum of how late packets left, both ways.
        latest_s: the latest.
        cpu_s: of the relay's thread.
    """

    came: int = 0
    lost: int = 0
    dropped: int = 0
    left: int = 0
    back: int = 0
    late_s: float = 0.0
    latest_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def mean_late_s(self) -> float:
        """How late a packet left on average."""
        return self.late_s / max(1, self.left + self.back)


@dataclass
class Pipe:
    """Packets on their way, each with the time at which it is due; no descriptor, no clock."""

    hop: Hop
    carried: RelayCounts = field(default_factory=RelayCounts)
    away: deque[tuple[float, bytes]] = field(default_factory=deque)  # to the other side
    back: deque[tuple[float, bytes]] = field(default_factory=deque)
    _in_line: deque[float] = field(default_factory=deque)  # when each packet in queue and service has been served
    _free_s: float = 0.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.hop.seed)

    def enter(self, now_s: float, packet: bytes) -> None:
        """Take a packet from this side."""
        hop, carried = self.hop, self.carried
        carried.came += 1
        while self._in_line and self._in_line[0] <= now_s:
            self._in_line.popleft()
        if hop.loss and self._random.random() < hop.loss:
            carried.lost += 1
        elif len(self._in_line) > hop.queue_packets:
            carried.dropped += 1
        else:
            self._free_s = max(now_s, self._free_s) + (len(packet) + hop.headers) / hop.bytes_per_s
            self._in_line.append(self._free_s)
            self.away.append((self._free_s + hop.one_way_s, packet))

    def come_back(self, now_s: float, packet: bytes) -> None:
        """Take a packet from the other side."""
        self.back.append((now_s + self.hop.one_way_s, packet))

    def due_s(self) -> float:
        """When the next packet is due; infinite if none is on its way."""
        return min(self.away[0][0] if self.away else math.inf, self.back[0][0] if self.back else math.inf)


def carry(this: int, other: int, stop: int, hop: Hop) -> RelayCounts:
    """Carry packets between two descriptors until a third one can be read.

    Args:
        this: the sender's side.
        other: the receiver's.
        stop: ends the relay when there is something to read, or its other end is closed.
        hop: what packets meet.
    """
    for side in (this, other):
        os.set_blocking(side, False)
    pipe, own_s = Pipe(hop), time.thread_time()
    carried = pipe.carried
    while True:
        wait_s = max(0.0, min(pipe.due_s() - time.monotonic(), 1.0))
        readable, _, _ = select.select([this, other, stop], [], [], wait_s)
        if stop in readable:
            carried.cpu_s = time.thread_time() - own_s
            return carried
        if this in readable:
            for packet in _packets(this):
                pipe.enter(time.monotonic(), packet)
        if other in readable:
            for packet in _packets(other):
                pipe.come_back(time.monotonic(), packet)
        carried.left += _release(pipe.away, other, carried)
        carried.back += _release(pipe.back, this, carried)


def _packets(side: int) -> Iterator[bytes]:
    for _ in range(MOST_READS):
        try:
            yield os.read(side, LARGEST)
        except BlockingIOError:
            return
        except OSError:  # the last packet found nobody there
            continue


def _release(packets: deque[tuple[float, bytes]], side: int, carried: RelayCounts) -> int:
    """Let packets leave that are due; how many did."""
    released, now_s = 0, time.monotonic()
    while packets and packets[0][0] <= now_s:
        due_s, packet = packets.popleft()
        carried.late_s += now_s - due_s
        carried.latest_s = max(carried.latest_s, now_s - due_s)
        try:
            os.write(side, packet)
            released += 1
        except OSError:  # nobody is there, or its buffer is full: it is gone, as on any link
            continue
    return released


@contextmanager
def relaying(this: int, other: int, hop: Hop) -> Iterator[RelayCounts]:
    """Carry packets in a process of its own, for as long as the block lasts; what it did is known after that.

    Args:
        this: descriptor of the sender's side.
        other: of the receiver's.
        hop: what packets meet.

    Raises:
        AutoByteError: the process does not start, or ends too soon.
    """
    words = [sys.executable, "-m", __name__, str(this), str(other), json.dumps(asdict(hop))]
    carried = RelayCounts()
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(this, other), text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            ready, _, _ = select.select([process.stdout], [], [], READY_S)
            if not ready or not process.stdout.readline():
                raise AutoByteError(f"the relay's process did not start within {READY_S:g} s")
            yield carried
            try:
                found, _ = process.communicate(timeout=END_S)  # closes its input, which ends it
            except subprocess.TimeoutExpired as error:
                raise AutoByteError(f"the relay's process did not end within {END_S:g} s") from error
            if process.returncode != 0:
                raise AutoByteError(f"the relay's process ended with status {process.returncode}")
            for name, value in json.loads(found).items():
                setattr(carried, name, value)
        finally:
            if process.poll() is None:
                process.kill()


@contextmanager
def urgent() -> Iterator[None]:
    """Let the calling thread go before others that compute, where that is allowed, as the interrupts of a link do."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        with suppress(PermissionError):
            os.sched_setscheduler(0, *before)


def main(words: list[str]) -> None:
    """The process: two descriptors and a hop as JSON; `ready` when it begins, what it did when its input ends."""
    values: dict[str, Any] = json.loads(words[2])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    with urgent():
        carried = carry(int(words[0]), int(words[1]), sys.stdin.fileno(), Hop(**values))
    sys.stdout.write(json.dumps(asdict(carried)))


if __name__ == "__main__":
    main(sys.argv[1:])
