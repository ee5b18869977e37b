"""The least step that unequal blocks of several tensors each allow; what `unequal` says holds; compiled."""
# ruff: noqa: PLR0912, PLR0913, PLR0915, PLR0917 (compiled code: flat loops are the point)
# mypy: disallow-untyped-decorators=False

import numpy as np

from autobyte.compiling import njit
from autobyte.job import Floats, Ints
from autobyte.scheduler.policies.unequal import PASSES, better, effort_for

WAYS, CLIMBS = 8, 3  # beginnings of the search, and how many of the best are followed
TURNS = 4096  # in which a step of 400 tensors is tightened by as little as can be; then by halves of what is left


@njit(cache=True)
def _group(
    left: Floats,
    travels: Ints,
    tail: Floats,
    kind: Ints,
    start: float,
    latency: float,
    free: float,
    within: float,
    group: Ints,
) -> tuple[float, float]:
    """Fuse remainders, front first, as far as a step within so many seconds allows: its length (or inf), and end

    The message that has to be there first grows until its own deadline: no other choice has fewer messages up to any
    tensor.
    """
    step, end, number, first = 0.0, free, -1, -1
    for k in range(len(left)):
        if not travels[k]:
            continue
        joins = first >= 0 and kind[first] == kind[k] and end + left[k] + latency + tail[first] <= within
        if not joins:
            if first >= 0:
                step = max(step, end + latency + tail[first])
            number, first = number + 1, k
            end += start
        end += left[k]
        if end + latency + tail[first] > within:
            return np.inf, end
        group[k] = number
    if first >= 0:
        step = max(step, end + latency + tail[first])
    return step, end


@njit(cache=True)
def fused_step(
    begins: Ints,
    ready: Floats,
    tail: Floats,
    load: Floats,
    kind: Ints,
    start: float,
    latency: float,
    compute: float,
    within: float,
    sent: Floats,
    group: Ints,
    work: Floats,
    travels: Ints,
    effort: Ints,
) -> tuple[float, float]:
    """The step (inf if not below `within`), and the end, where messages begin at some gradients and take all there is

    `begins[k]` says that one begins when gradient k is ready; it takes gradients up to the next such place behind.
    Fills in what is sent before the last gradient (s), and the messages of what remains (-1: nothing). Takes what it
    looked at from `effort`.
    """
    n = len(begins)
    effort[0] -= n
    first = n
    for k in range(n):
        if begins[k]:
            first = k
            break
    # messages in a part: one for each kind of gradient in it
    free, messages, kinds = ready[0], 0, 0
    place = first
    while place < n:
        kinds, stop = 0, place
        while stop < n and (stop == place or not begins[stop]):
            kinds |= 1 << kind[stop]
            stop += 1
        count = 0
        while kinds:
            count += kinds & 1
            kinds >>= 1
        messages += count
        free = max(free, ready[place] + messages * start)
        work[place] = messages * start
        place = stop
    if free + latency + tail[0] >= within:
        return np.inf, free
    effort[0] -= 2 * n
    room = np.inf
    for k in range(n - 1, first - 1, -1):  # the tensors of a part share its room, given those behind
        if begins[k]:
            room = min(room, free - ready[k] - work[k])
            work[k] = room
    used, room = 0.0, 0.0
    for k in range(n):
        part = 0.0
        if k >= first:
            if begins[k]:
                room = work[k]
            part = min(load[k], max(0.0, room - used))
            used += part
        sent[k] = part
        travels[k] = 1 if k < first or part < load[k] else 0
        work[k] = load[k] - part
        group[k] = -1
    low, step = compute, within
    if low >= within:
        return np.inf, free
    fastest, fastest_end = np.inf, free
    too_short, turns, small_turns = low, 0, max(64, TURNS * 400 // n)
    while True:  # tighten until nothing shorter can be grouped
        effort[0] -= n
        turns += 1
        tried, end = _group(work, travels, tail, kind, start, latency, free, step, group)
        if tried < np.inf:
            fastest, fastest_end = tried, end
        elif turns <= small_turns or fastest == np.inf:
            break
        else:
            too_short = step
        if fastest <= low or (turns >= small_turns and fastest - too_short <= 1e-12 * fastest):
            break
        step = fastest * (1 - 1e-12) if turns < small_turns else (fastest + too_short) / 2
    if fastest < np.inf:
        _group(work, travels, tail, kind, start, latency, free, fastest * (1 + 1e-13), group)
    return max(fastest, low), fastest_end


@njit(cache=True)
def _start_fused(way: int, begins: Ints, ready: Floats, load: Floats, start: float, places: Ints) -> None:
    """Where to begin the search: nowhere, wherever the link falls idle, at every gradient, at evenly spread ones"""
    n = len(begins)
    begins[:] = 0
    if way == 1:
        now, k = 0.0, n - 1
        while k > 0 and ready[k] < ready[0]:
            now = max(now, ready[k])
            mass, last = 0.0, k
            while last >= 1 and ready[last] <= now and ready[last] < ready[0]:
                mass += load[last]
                last -= 1
            begins[last + 1] = 1
            now += start + mass
            k = last
    elif way >= 2:
        count = len(places)
        wanted = (count, 1, 2, 4, 8, 16)[way - 2]
        for i in range(min(wanted, count)):
            begins[places[(i * count) // min(wanted, count)]] = 1


@njit(cache=True)
def search_fused(
    ready: Floats, tail: Floats, load: Floats, kind: Ints, start: float, latency: float, compute: float
) -> tuple[float, Ints, Floats, Ints]:
    """Choose where messages begin, with fusion: the step (s), `begins`, the parts sent before (s), later messages"""
    n = len(ready)
    sent, group, work, travels = np.zeros(n), np.zeros(n, np.int64), np.zeros(n), np.zeros(n, np.int64)
    places = np.empty(n, np.int64)  # the front tensor of every layer that has gradients before the last
    count = 0
    for k in range(1, n):
        if ready[k] < ready[0] and ready[k] < ready[k - 1]:
            places[count] = k
            count += 1
    places = places[:count]
    starts, steps, effort = np.zeros((WAYS, n), np.int64), np.empty(WAYS), np.full(1, effort_for(n))
    for way in range(WAYS):
        _start_fused(way, starts[way], ready, load, start, places)
        steps[way], _ = fused_step(
            starts[way], ready, tail, load, kind, start, latency, compute, np.inf, sent, group, work, travels, effort
        )
    best, best_begins = np.inf, np.zeros(n, np.int64)
    for climb, way in enumerate(np.argsort(steps)[:CLIMBS]):
        begins, step, end = starts[way], steps[way], np.inf
        until = effort[0] - effort[0] // (CLIMBS - climb)  # what one does not need the others may
        for _ in range(PASSES):
            improved = False
            for i in range(count):
                for reach in range(4):  # alone, or together with one of the next three: a move
                    if reach and (i + reach >= count or begins[places[i]] == begins[places[i + reach]]):
                        continue
                    if effort[0] <= until:
                        break
                    begins[places[i]] ^= 1
                    if reach:
                        begins[places[i + reach]] ^= 1
                    tried, tried_end = fused_step(
                        begins,
                        ready,
                        tail,
                        load,
                        kind,
                        start,
                        latency,
                        compute,
                        step * (1 + 1e-12),
                        sent,
                        group,
                        work,
                        travels,
                        effort,
                    )
                    if better(tried, tried_end, step, end):
                        step, end, improved = tried, tried_end, True
                    else:
                        begins[places[i]] ^= 1
                        if reach:
                            begins[places[i + reach]] ^= 1
            if not improved:
                break
        if step <= best:
            best, best_begins = step, begins
    fused_step(
        best_begins, ready, tail, load, kind, start, latency, compute, np.inf, sent, group, work, travels, effort
    )
    return best, best_begins, sent, group
