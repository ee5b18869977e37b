"""An array that is held stalls what reads it, and nothing else."""

import threading
import time

import numpy as np
import pytest
from clusters import WITH_MXNET, with_names
from ranks import on_ranks

pytestmark = WITH_MXNET

IMPORTS = ("autobyte.mxnet", "mxnet.gluon")


@pytest.mark.parametrize("writes", [False, True])
def test_a_held_array_stalls_its_readers_alone(writes: bool) -> None:
    assert on_ranks(_held, 1, writes, init=False, imports=IMPORTS) == [(7.0 if writes else 0.0) + 1.0]


def _held(rank: int, writes: bool) -> float:
    _, mx = with_names()
    from autobyte.mxnet.dependencies import Release, hold, memory  # noqa: PLC0415

    held, free = mx.nd.zeros((4,)), mx.nd.zeros((4,))
    releases: list[Release] = []
    begun = threading.Event()

    def begin(release: Release) -> None:
        releases.append(release)
        begun.set()

    hold(held, begin)
    assert begun.wait(10)
    after_held, after_free = held + 1, free + 1
    np.testing.assert_array_equal(after_free.asnumpy(), np.ones(4))  # does not wait
    seen: list[float] = []
    reader = threading.Thread(target=lambda: seen.append(float(after_held.asnumpy()[0])))
    reader.start()
    time.sleep(0.1)
    assert not seen, "it was read while it was held"
    if writes:
        memory(held)[:] = 7.0
    releases[0]()
    reader.join(10)
    return seen[0]
