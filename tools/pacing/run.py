"""Training on parameter servers whose connections are paced, beside a neighbour that measures its latency.

    python tools/pacing/run.py --real-time    # docs/data/congestion/pacing.json; 14 minutes, root
    python tools/pacing/run.py --real-time --scenes changing    # only this one again
    python tools/pacing/run.py --table        # the table of docs/congestion.md again, from what was measured

Two emulated hosts, a worker and a server on each; compute is emulated by sleeping. The neighbour sends a small packet
from one host to the other and back every 5 ms, over the same links. A step is the slower rank's.

Links are steady; or another flow takes a quarter of them, each way; or their rate is halved for every other 3 s.
"""

import argparse
import contextlib
import json
import math
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import autobyte.torch as ab
from autobyte.bench.priority import undisturbed
from autobyte.cli.console import progress
from autobyte.config import Config
from autobyte.testbed import Testbed
from autobyte.testbed.flows import Flows, ring
from autobyte.testbed.hosts import PAYLOAD
from autobyte.testbed.load import OtherLoad

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE, OUT = DOCS / "congestion.md", DOCS / "data" / "congestion" / "pacing.json"
RATE = 25e6  # of every link, nominal (bytes/s): 200 Mbit/s
LAYERS, WIDTH = 6, 724  # 12.6 MB of gradients, which take half a second
FORWARD_S, BACKWARD_S = 0.02, 0.04  # of a layer
CONFIG = Config(1 << 19, 1 << 20)
WARMUP, STEPS, REPEATS = 4, 12, 2
FAIR = RATE * PAYLOAD / 2  # two connections leave each host: to a server, and to a worker
ARMS = {
    "no training": None,
    "kernel's default (CUBIC)": "",
    "half of the link for each connection": f"rate:{FAIR:.0f}B/s",
    "MOCC ⟨0.8, 0.1, 0.1⟩": "mocc:0.8,0.1,0.1",
    "MOCC ⟨0.4, 0.5, 0.1⟩": "mocc:0.4,0.5,0.1",
    "MOCC ⟨0.1, 0.8, 0.1⟩": "mocc:0.1,0.8,0.1",
}
STEADY, BACKGROUND, CHANGING = "steady", "background", "changing"
SCENES = {STEADY: list(ARMS), BACKGROUND: list(ARMS)[:-1], CHANGING: list(ARMS)[:-1]}
OTHERS_SHARE = 0.25  # of each link, which the other flow takes
PHASE_S, LOW = 3.0, 0.5  # that a rate lasts, and the lower one's share
PORT, EVERY_S, ALONE_S, LIMIT_S = 9000, 0.005, 8.0, 120.0


def main() -> None:
    """Measure, write, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--real-time", action="store_true", help="ranks get real-time priority")
    parser.add_argument("--scenes", default=",".join(SCENES), help="what is measured again; the others' rows stay")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        train(given.rank[0], Path(given.rank[1]))
        return
    if not given.table:
        scenes = given.scenes.split(",")
        if unknown := [scene for scene in scenes if scene not in SCENES]:
            parser.error(f"no scene '{unknown[0]}'; there are {', '.join(SCENES)}")
        kept = json.loads(given.out.read_text(encoding="utf-8"))["rows"] if given.out.exists() else []
        measured = measure(scenes, real_time=given.real_time)
        measured["rows"] = [row for row in kept if row["scene"] not in scenes] + measured["rows"]
        given.out.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    made = table(json.loads(given.out.read_text(encoding="utf-8")))
    if given.out == OUT:
        sys.path.insert(0, str(Path(__file__).parent.parent))
        from judge_tables import fill  # noqa: PLC0415, pandas: not in every rank

        fill(PAGE, {"pacing": made + "\n"})
    sys.stdout.write(made + "\n")


class Layer(nn.Linear):
    """A layer that takes its time."""

    def forward(self, inputs: Tensor) -> Tensor:
        time.sleep(FORWARD_S)
        out = super().forward(inputs)
        out.register_hook(lambda _: time.sleep(BACKWARD_S))
        return out


def train(pacing: str, out: Path) -> None:
    """One rank: steps of a model whose gradients travel, and how long each took."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = ab.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model, engine="ps", config=CONFIG, pacing=pacing or None
    )
    ends = []
    for _ in range(WARMUP + STEPS + 1):
        optimizer.zero_grad()
        model(torch.ones(1, WIDTH)).square().mean().backward()
        optimizer.step()
        ends.append(time.monotonic())
    optimizer.close()
    times = [end - begin for begin, end in zip(ends[WARMUP:], ends[WARMUP + 1 :], strict=False)]
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        out.write_text(json.dumps({"from_s": ends[WARMUP], "to_s": ends[-1], "steps_s": slowest.tolist()}))
    dist.destroy_process_group()


def measure(scenes: Sequence[str], *, real_time: bool) -> dict[str, Any]:
    """Every arm of these scenes, in turn, `REPEATS` times."""
    runs = [(scene, arm) for scene in scenes for _ in range(REPEATS) for arm in SCENES[scene]]
    rows: list[dict[str, Any]] = []
    with progress("paced training") as shown, undisturbed() if real_time else nullcontext(False) as raised:
        for scene, arm in runs:
            with OtherLoad() as others:
                row = run(ARMS[arm], scene)
            about = {"scene": scene, "arm": arm, "real_time": raised, "other_cores": round(others.cores, 2)}
            rows.append(about | row)
            shown(len(rows), len(runs), f"{scene}: {arm}")
    facts = {"what": "emulated", "torch": torch.__version__, "rate": RATE}
    job = {"nbytes": 4 * LAYERS * (WIDTH + 1) * WIDTH, "compute_s": LAYERS * (FORWARD_S + BACKWARD_S)}
    return {**facts, **job, "rows": rows}


def run(pacing: str | None, scene: str) -> dict[str, Any]:
    """One training, and its neighbour."""
    with TemporaryDirectory() as folder, Testbed(2, rate=RATE) as testbed:
        out = Path(folder) / "steps.json"
        before = sent_again(testbed)
        with happening(scene, testbed), pings(testbed) as round_trips:
            if pacing is None:
                time.sleep(ALONE_S)
            else:
                testbed.run(
                    [sys.executable, str(Path(__file__).resolve()), "--rank", pacing, str(out)], timeout_s=LIMIT_S
                )
        told = json.loads(out.read_text()) if pacing is not None else {"from_s": 0, "to_s": math.inf, "steps_s": []}
        found = sorted(took_s for sent_s, took_s in round_trips if told["from_s"] <= sent_s < told["to_s"])
        return {
            "steps_s": [round(step, 5) for step in told["steps_s"]],
            "neighbour_p50_s": found[len(found) // 2],
            "neighbour_p99_s": found[int(0.99 * len(found))],
            "pings": len(found),
            "sent_again": sent_again(testbed) - before,
        }


@contextlib.contextmanager
def happening(scene: str, testbed: Testbed) -> Iterator[None]:
    """What goes on at the links meanwhile."""
    if scene == BACKGROUND:
        with Flows(testbed, ring(testbed), rate=OTHERS_SHARE * RATE):
            yield
        return
    over = threading.Event()

    def change() -> None:
        low = False
        while not over.wait(PHASE_S):
            low = not low
            rate = LOW * RATE if low else RATE
            for host in range(testbed.hosts):
                testbed.shape(host, up=rate, down=rate)

    thread = threading.Thread(target=change)
    if scene == CHANGING:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if scene == CHANGING:
            thread.join()


@contextlib.contextmanager
def pings(testbed: Testbed) -> Iterator[list[tuple[float, float]]]:
    """When small packets left that came back to a host, and how long that took; those that are lost miss."""
    round_trips: list[tuple[float, float]] = []
    stop = threading.Event()
    with testbed.inside(0), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near:
        near.bind((testbed.address(0), PORT))
        near.settimeout(EVERY_S)
        with testbed.inside(1), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as far:
            far.bind((testbed.address(1), PORT))
            far.settimeout(0.1)
            threads = [
                threading.Thread(target=_echo, args=(far, stop)),
                threading.Thread(target=_ping, args=(near, (testbed.address(1), PORT), stop, round_trips)),
            ]
            for thread in threads:
                thread.start()
            try:
                yield round_trips
            finally:
                stop.set()
                for thread in threads:
                    thread.join()


def _echo(sock: socket.socket, stop: threading.Event) -> None:
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            message, peer = sock.recvfrom(64)
            sock.sendto(message, peer)


def _ping(
    sock: socket.socket, peer: tuple[str, int], stop: threading.Event, found: list[tuple[float, float]]
) -> None:
    next_s = time.monotonic()
    while not stop.is_set():
        if time.monotonic() >= next_s:
            sock.sendto(repr(time.monotonic()).encode(), peer)
            next_s += EVERY_S
        sock.settimeout(max(1e-4, next_s - time.monotonic()))
        with contextlib.suppress(TimeoutError, BlockingIOError):
            sent_s = float(sock.recv(64))
            found.append((sent_s, time.monotonic() - sent_s))


def sent_again(testbed: Testbed) -> int:
    """Segments that both hosts' TCP has sent again."""
    total = 0
    for host in range(testbed.hosts):
        with testbed.inside(host):
            lines = Path("/proc/thread-self/net/snmp").read_text().splitlines()
        names, values = (line.split() for line in lines if line.startswith("Tcp:"))
        total += int(values[names.index("RetransSegs")])
    return total


def table(measured: dict[str, Any]) -> str:
    """A row for each arm of each scene, as Markdown: the least and the greatest of its repeats.

    A repeat's step is the median of its steps; where rates change, their mean.
    """
    lines = [["links", "connections", "step (ms)", "neighbour's p50 (ms)", "neighbour's p99 (ms)", "sent again"]]
    lines.append(["---"] * len(lines[0]))
    for scene, arm in [(one, arm) for one, arms in SCENES.items() for arm in arms]:
        rows = [row for row in measured["rows"] if (row["scene"], row["arm"]) == (scene, arm)]
        if not rows:
            continue
        middle = statistics.fmean if scene == CHANGING else statistics.median
        steps = [1e3 * middle(row["steps_s"]) for row in rows if row["steps_s"]]
        lines.append([
            scene,
            arm,
            _range(steps, ".0f") if steps else "–",
            _range([1e3 * row["neighbour_p50_s"] for row in rows], ".1f"),
            _range([1e3 * row["neighbour_p99_s"] for row in rows], ".1f"),
            _range([row["sent_again"] for row in rows], ".0f"),
        ])  # fmt: skip
    busy = statistics.fmean(row["other_cores"] for row in measured["rows"])
    made = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    real_time = all(row["real_time"] for row in measured["rows"])
    return f"{made}\n\nReal-time priority: {real_time}; other processes used {busy:.1f} cores."


def _range(values: Sequence[float], form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
