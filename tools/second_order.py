"""Second-order effects on shaped links: what bytes in flight, idle links and a server's CPU cost. Emulated.

    python tools/second_order.py --minutes 6    # root and an idle machine; ends itself in 5 minutes, or goes on later
    python tools/second_order.py --table        # the tables, from docs/data/second_order.csv

In one process, with real-time priority: sockets in the hosts' namespaces, a thread for each end. *Incast*: so many
hosts send to one in blocks of 64 KiB; each has its part of the bytes in flight. *Idle*: a block after a pause on a
warm connection, with and without the kernel's slow start after idling. *CPU*: of a step, by blocks, from
the recorded grids (paper/data/testbed_grid.csv). What the file has is not measured again.
"""

import argparse
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from autobyte.bench.grid import read
from autobyte.bench.priority import undisturbed
from autobyte.cli.console import print_line
from autobyte.models import find
from autobyte.testbed import Testbed
from autobyte.testbed.hosts import PAYLOAD
from autobyte.testbed.load import OtherLoad
from autobyte.units import KIB, MIB

ROOT = Path(__file__).parent.parent
OUT, GRID = ROOT / "docs" / "data" / "second_order.csv", ROOT / "paper" / "data" / "testbed_grid.csv"
REPEATS = 5
SENDERS, FLIGHTS = (1, 3, 7), (1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB)  # hosts; bytes in flight, of all together
BLOCK = 64 * KIB
WARM_S, MEASURED_S = 0.3, 1.0
SIZES, IDLE_S = (256 * KIB, 1 * MIB, 4 * MIB), (0.01, 0.3, 1.0)  # a retransmission timer is 0.2 s
BLOCKS_AFTER_IDLE = 3
SETTING = Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle")  # of the network namespace that a thread is in
RETRANSMITTED = struct.Struct("100xI")  # of Linux's struct tcp_info

Row = dict[str, Any]


def connect(testbed: Testbed, source: int, target: int) -> tuple[socket.socket, socket.socket]:
    """A connection: its sending and its receiving end."""
    with testbed.inside(target):
        listener = socket.create_server((testbed.address(target), 0))
    with listener, testbed.inside(source):
        sender = socket.create_connection(listener.getsockname(), 2.0)
        receiver, _ = listener.accept()
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sender.settimeout(None)
    return sender, receiver


def receive(sock: socket.socket, nbytes: int, buffer: bytearray) -> bool:
    """Read so many bytes; False: the other end has closed."""
    left = memoryview(buffer)
    while nbytes:
        got = sock.recv_into(left[: min(nbytes, len(buffer))])
        if not got:
            return False
        nbytes -= got
    return True


def incast(testbed: Testbed, senders: int, flight: int) -> Row:
    """So many hosts send to host 0 for a second: what its link carries, of its payload rate."""
    size, credit = BLOCK, max(1, flight // senders // BLOCK)
    ends = [connect(testbed, 1 + host, 0) for host in range(senders)]
    received, stop = [0] * senders, threading.Event()

    def send(sock: socket.socket, free: threading.Semaphore) -> None:
        block = bytes(size)
        while not stop.is_set():
            free.acquire()
            sock.sendall(block)
        sock.shutdown(socket.SHUT_WR)

    def take(number: int, sock: socket.socket, free: threading.Semaphore) -> None:
        buffer = bytearray(256 * KIB)
        while receive(sock, size, buffer):
            received[number] += size
            free.release()

    threads = []
    for number, (sender, receiver) in enumerate(ends):
        free = threading.Semaphore(credit)
        threads += [threading.Thread(target=send, args=(sender, free))]
        threads += [threading.Thread(target=take, args=(number, receiver, free))]
    for thread in threads:
        thread.start()
    time.sleep(WARM_S)
    before, began = sum(received), time.perf_counter()
    time.sleep(MEASURED_S)
    rate = (sum(received) - before) / (time.perf_counter() - began)
    stop.set()
    for thread in threads:
        thread.join()
    again = sum(_retransmitted(sender) for sender, _ in ends)
    for end in (end for pair in ends for end in pair):
        end.close()
    share = rate / (testbed.rates(0)[1] * PAYLOAD)
    return {"share": share, "retransmitted_per_gb": again / (sum(received) * 1e-9)}


def _retransmitted(sock: socket.socket) -> int:
    """Segments that a connection has sent twice."""
    return int(RETRANSMITTED.unpack_from(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256))[0])


def after_idle(testbed: Testbed, slow_start: int, size: int, idle_s: float) -> Row:
    """Blocks that begin after a pause: what they take in the median, over the time of their bytes (s)."""
    with testbed.inside(1):
        SETTING.write_text(str(slow_start))
    sender, receiver = connect(testbed, 1, 0)
    block, buffer, took = bytes(size), bytearray(256 * KIB), []
    done = threading.Semaphore(0)

    def take() -> None:
        while receive(receiver, size, buffer):
            done.release()

    thread = threading.Thread(target=take)
    thread.start()
    for number in range(4 + BLOCKS_AFTER_IDLE):
        time.sleep(idle_s if number >= 4 else 0.0)  # the first open the window
        began = time.perf_counter()
        sender.sendall(block)
        done.acquire()
        took.append(time.perf_counter() - began)
    sender.close()
    thread.join()
    receiver.close()
    bytes_s = size / (testbed.rates(0)[1] * PAYLOAD)
    return {"extra_ms": 1e3 * (float(np.median(took[4:])) - bytes_s)}


def points(rate: float) -> Iterator[tuple[Row, int, Callable[[Testbed], Row]]]:
    """What is measured: its name in the table, hosts, and how."""
    for senders, flight in product(SENDERS, FLIGHTS):
        place = {"effect": "incast", "gbit": 8e-9 * rate, "senders": senders, "flight": flight}
        yield place, 1 + max(SENDERS), lambda bed, n=senders, f=flight: incast(bed, n, f)
    for size, idle_s, slow_start in product(SIZES, IDLE_S, (0, 1)):
        place = {"effect": "idle", "gbit": 8e-9 * rate, "block": size, "idle_s": idle_s, "slow_start": slow_start}
        yield place, 2, lambda bed, s=slow_start, b=size, i=idle_s: after_idle(bed, s, b, i)


def measure(out: Path, rate: float, minutes: float) -> None:
    """Measure what the file lacks, repeat after repeat, and write it after each testbed."""
    rows = pd.read_csv(out).to_dict("records") if out.exists() else []
    began = time.monotonic()
    for repeat, hosts in product(range(REPEATS), dict.fromkeys(hosts for _, hosts, _ in points(rate))):
        left = [
            (place | {"repeat": repeat}, how)
            for place, needed, how in points(rate)
            if needed == hosts and not any(_same(row, place | {"repeat": repeat}) for row in rows)
        ]
        if not left or (time.monotonic() - began) / 60 > minutes:
            continue
        with undisturbed(), OtherLoad() as others, Testbed(hosts, rate=rate) as testbed:
            found = [place | how(testbed) for place, how in left]
        rows += [row | {"other_cores": round(others.cores, 2)} for row in found]
        out.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows).to_csv(out, index=False, float_format="%.6g")


def _same(row: Row, place: Row) -> bool:
    return all(row.get(key) == value for key, value in place.items())


def tables(out: Path) -> None:
    """Print what was measured: medians and ranges over repeats."""
    if out.exists():
        rows = pd.read_csv(out)
        for effect, keys, value in (
            ("incast", ["gbit", "flight", "senders"], "share"),
            ("incast", ["gbit", "flight", "senders"], "retransmitted_per_gb"),
            ("idle", ["gbit", "block", "idle_s", "slow_start"], "extra_ms"),
        ):
            there = rows[rows["effect"] == effect]
            if there.empty:  # stopped before it was its turn
                continue
            summed = there.groupby(keys)[value].agg(["median", "min", "max", "count"])
            print_line(f"\n{effect}: {value}\n{summed.to_string(float_format=lambda number: f'{number:.4g}')}")
        print_line(f"\nothers used up to {rows['other_cores'].max():g} cores meanwhile")
    print_line(
        "\nCPU of a rank's step, recorded: ms = a + b × blocks, 7 MiB in all; a server is in its rank's process"
    )
    for engine in ("allreduce", "ps"):
        print_line(f"{engine}: {cpu(engine)}")


def cpu(engine: str) -> str:
    """What a block costs a process (least squares over all recorded cells, which carry about the same bytes)."""
    there = [row for row in read(GRID) if row.engine == engine and row.policy == "bytescheduler"]
    blocks = [find(row.model).parameters * 4 * row.size_scale / row.config.partition_bytes for row in there]
    columns = np.array([np.ones(len(there)), blocks]).T
    cpu_ms = np.array([1e3 * row.cpu_s for row in there])
    fitted, *_ = np.linalg.lstsq(columns, cpu_ms, rcond=None)
    left = cpu_ms - columns @ fitted
    return (
        f"a {fitted[0]:.2f}, b {fitted[1]:.3f}; {len(there)} points of {cpu_ms.min():.1f} to {cpu_ms.max():.1f} ms, "
        f"standard deviation from the line {left.std():.2f} ms"
    )


def main() -> None:
    """Read the command line, measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--rate", type=float, default=1.0, help="of links (Gbit/s, default: 1)")
    parser.add_argument("--minutes", type=float, default=6.0, help="begin no testbed after so many (default: 6)")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if not options.table:
        measure(options.out, options.rate * 1.25e8, options.minutes)
    tables(options.out)


if __name__ == "__main__":
    main()
