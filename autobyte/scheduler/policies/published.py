"""US-Byte's algorithms 1 to 3 as published: unequal blocks of whole units, and their priorities; compiled.

Arrays are over tensors, front first; times in seconds, sizes in units, `unit` = what a unit adds to a message (s).
"""
# ruff: noqa: PLR0913, PLR0917 (compiled code: flat loops are the point)
# mypy: disallow-untyped-decorators=False

import numpy as np

from autobyte.compiling import njit
from autobyte.job import Floats, Ints
from autobyte.scheduler.policies.unequal import effort_for


@njit(cache=True)
def _push(heap: Ints, size: int, priority: Floats, item: int) -> None:
    """Add a tensor to a heap of `size`; no two have the same priority"""
    place = size
    while place > 0 and priority[heap[(place - 1) >> 1]] > priority[item]:
        heap[place] = heap[(place - 1) >> 1]
        place = (place - 1) >> 1
    heap[place] = item


@njit(cache=True)
def _drop_first(heap: Ints, size: int, priority: Floats) -> None:
    """Take the first out of a heap, which leaves `size`"""
    item, place = heap[size], 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and priority[heap[child + 1]] < priority[heap[child]]:
            child += 1
        if priority[heap[child]] >= priority[item]:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = item


@njit(cache=True)
def _blocks(
    priority: Floats,
    ready: Floats,
    load: Floats,
    start: float,
    unit: float,
    left: Ints,
    item: Ints,
    amount: Ints,
    first_s: Floats,
) -> tuple[int, float]:
    """Algorithm 1: the blocks beside the backward pass, each until the next gradient: how many, and the end

    Fills in `left`, the units of each tensor that remain, each block's tensor and units, and when each tensor begins.
    Two blocks of one tensor in a row are one block (the released code counts one of them only).
    """
    n = len(ready)
    waiting, count, blocks = np.empty(n, np.int64), 0, 0  # a heap by priority
    now, first_s[:] = ready[n - 1], np.inf
    for k in range(n):
        left[k] = max(1, np.ceil(load[k] / unit)) if unit > 0 else 1
    for coming in range(n - 1, -1, -1):
        while now < ready[coming]:
            if count == 0:
                now = ready[coming]
                break
            k = waiting[0]
            goes_on = blocks > 0 and item[blocks - 1] == k
            setup = 0.0 if goes_on else start
            gap, whole = ready[coming] - now, setup + _seconds(left[k], left[k], load[k], unit)
            if gap >= whole:
                units = left[k]
            else:
                units = min(left[k], max(1, np.int64(np.ceil((gap - setup) / unit)))) if unit > 0 else left[k]
            first_s[k] = min(first_s[k], now)
            now += setup + _seconds(units, left[k], load[k], unit)
            left[k] -= units
            if goes_on:
                amount[blocks - 1] += units
            else:
                item[blocks], amount[blocks] = k, units
                blocks += 1
            if left[k] == 0:
                count -= 1
                _drop_first(waiting, count, priority)
        _push(waiting, count, priority, coming)
        count += 1
    return blocks, max(now, ready[0])


@njit(cache=True)
def _seconds(units: int, left: int, load: float, unit: float) -> float:
    """What some of the last `left` units of a tensor take; the last of all is not full"""
    total = max(1, np.ceil(load / unit)) if unit > 0 else 1
    return units * unit - (total * unit - load if units == left else 0.0) if unit > 0 else 0.0


@njit(cache=True)
def _step(
    priority: Floats,
    ready: Floats,
    tail: Floats,
    load: Floats,
    start: float,
    unit: float,
    latency: float,
    compute: float,
    left: Ints,
    item: Ints,
    amount: Ints,
    first_s: Floats,
) -> float:
    """Algorithm 2: the step, with every remainder as one block in forward order"""
    _, now = _blocks(priority, ready, load, start, unit, left, item, amount, first_s)
    step = compute
    for k in range(len(ready)):
        if left[k]:
            now += start + _seconds(left[k], left[k], load[k], unit)
            step = max(step, now + latency + tail[k])
    return step


@njit(cache=True)
def search_published(
    ready: Floats, tail: Floats, load: Floats, start: float, unit: float, latency: float, compute: float
) -> tuple[float, Ints, Ints, Ints]:
    """Algorithm 3: the step (s), each block's tensor and units beside backward, and the units of each that remain

    Of very many tensors the last are tried alone: the search ends when it has looked at as many as others may.
    """
    n = len(ready)
    trials = effort_for(n) // (4 * n)  # each is some four times as long as a look at every tensor
    left, item, amount = np.zeros(n, np.int64), np.zeros(3 * n, np.int64), np.zeros(3 * n, np.int64)
    priority, first_s, tried_first_s = np.arange(n).astype(np.float64), np.empty(n), np.empty(n)
    best = _step(priority, ready, tail, load, start, unit, latency, compute, left, item, amount, first_s)
    last = n - 1
    while last > 0 and trials > 0:
        if first_s[last] == np.inf:
            last -= 1
            continue
        whole_s = first_s[last] + start + load[last]  # when it would be through if nothing preempted it
        reach = last
        while reach > 0 and ready[reach - 1] < whole_s:
            reach -= 1
        if reach == last:
            last -= 1
            continue
        kept = priority[last]
        priority[last] = reach - 0.5 + 0.4 * (n - last) / n  # above tensors reach … last - 1
        trials -= 1
        tried = _step(priority, ready, tail, load, start, unit, latency, compute, left, item, amount, tried_first_s)
        if tried < best:
            best, last = tried, reach
            first_s[:] = tried_first_s
        else:
            priority[last] = kept
            last -= 1
    blocks, _ = _blocks(priority, ready, load, start, unit, left, item, amount, first_s)
    return best, item[:blocks], amount[:blocks], left
