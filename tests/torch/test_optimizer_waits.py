"""On streams the thread that trains waits for no device and for no thread: there only streams wait."""

import sys
import time
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from random import Random
from threading import Thread
from types import FrameType, MappingProxyType
from typing import Any

import torch
from faulty import SMALL, make_model, train
from ranks import on_ranks

import autobyte.torch as ab
from autobyte.exchange import engines
from autobyte.exchange.tuning.online import Online
from autobyte.scheduler.engines.streams import HostStreams
from autobyte.scheduler.runner import Runner

#: What a thread calls to wait for another, or for a device.
WAITING = {"acquire", "wait", "sleep", "get", "join", "select", "poll", "recv", "synchronize", "result"}
#: Whose methods of these names wait for nobody.
PLAIN = (dict, str, bytes, MappingProxyType, ContextVar)
#: Where that is no wait of the host's.
ALLOWED = {
    HostStreams.wait.__code__,  # stands for a wait of the model's stream
    Runner._post.__code__,  # takes a lock if it is free, and goes on if not
    Online._heed.__code__,  # all ranks agree on another config, between two steps
    Thread.is_alive.__code__,  # looks at a lock
    Thread.start.__code__,  # of the thread that thinks about a window: until it runs
}


class Waits:
    """Notes each call of this thread that may wait, and where it was made."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __enter__(self) -> "Waits":
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ in WAITING and not isinstance(called.__self__, PLAIN):
            places = list(_stack(frame))
            if not ALLOWED & {place.f_code for place in places}:
                where = " < ".join(f"{Path(p.f_code.co_filename).name}:{p.f_lineno}" for p in places[:6])
                self.seen.append(f"{called.__name__} at {where}")


def _stack(frame: FrameType | None) -> Any:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _waits(rank: int, engine: str) -> tuple[list[str], int]:
    """Calls that may wait in 30 steps, and events that streams waited for. Kernels are late, those of a rank more."""
    random, made = Random(rank), []

    def streams(_parameters: object, timeout: Any) -> HostStreams:
        late = partial(_late, random, 2e-3 * (1 + rank))
        made.append(HostStreams(hide=True, late=late, timeout_s=timeout.total_seconds()))
        return made[-1]

    engines.STREAMS["ordered"] = streams
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = ab.DistributedOptimizer(sgd, model, config=SMALL, engine=engine)
    train(model, optimizer, rank, range(6))  # the first step waits, and finds layers
    with Waits() as waits:
        train(model, optimizer, rank, range(6, 36))
    optimizer.close()
    return waits.seen, sum(each.waits for each in made)


def _late(random: Random, most_s: float) -> None:
    time.sleep(random.random() * most_s)


def test_no_call_in_a_step_waits() -> None:
    for seen, of_streams in on_ranks(_waits, 2, "ordered"):
        assert seen == []
        assert of_streams > 30  # there was something to wait for


def test_where_gradients_travel_through_the_host_its_thread_waits() -> None:
    """So the test above can fail."""
    for seen, of_streams in on_ranks(_waits, 2, "allreduce"):
        assert any("session.py" in each for each in seen)
        assert of_streams == 0
