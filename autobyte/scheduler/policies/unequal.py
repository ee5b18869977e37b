"""The least step that unequal blocks allow under a + s/B: what travels beside backward, and what after it; compiled.

One message at a time; nothing is needed before the last gradient is there, so before that moment only the amounts
matter, not the order. Hence (proofs in docs/usbyte.md):

- no tensor needs more than one cut: a part that travels beside the backward pass, and a remainder;
- beside backward, messages go in the order in which gradients appear; after it, in the order of the forward pass;
- whatever the choice of messages, the amounts follow: as much as fits, front layers first, and no waiting.

What is left to choose is which tensors travel before, after, or cut (here, without fusion), or at which gradients a
message begins that takes all that is ready (`unequal_fused`). Both are searched by changes that shorten the step.

Arrays are over tensors, front first; all in seconds: `ready` not increasing, `tail` not increasing, `load` = s/B.
"""
# ruff: noqa: PLR0912 (compiled code: flat loops are the point)
# mypy: disallow-untyped-decorators=False

import numpy as np

from autobyte.compiling import njit
from autobyte.job import Floats, Ints

BEFORE, AFTER, CUT = 1, 2, 3  # the last gradient: how a tensor travels
PASSES = 12  # over all single changes, at most
BEGINNINGS = 5  # of the search
EFFORT = 32_500  # times that a search looks at each of 400 tensors or more, at most: 400 are planned in 20 ms
MANY, LESS = 4096, 1_000  # times for each tensor beyond so many


@njit(cache=True)
def better(step: float, end: float, best: float, best_end: float) -> bool:
    """Shorter; of equal steps the one that leaves the link earlier"""
    slack = 1e-12 * best
    return step < best - slack or (step <= best + slack and end < best_end - slack)


@njit(cache=True)
def effort_for(n: int) -> int:
    """How many tensors the search for a plan of so many may look at"""
    return EFFORT * min(max(n, 400), MANY) + LESS * max(n - MANY, 0)


@njit(cache=True)
def whole_step(
    mode: Ints, ready: Floats, tail: Floats, load: Floats, start: float, latency: float, compute: float, sent: Floats
) -> tuple[float, float]:
    """The step, and the end of communication, of tensors that travel apart; fills in what is sent before (s)"""
    n = len(mode)
    free, fixed = ready[0], 0.0  # free: when the remainders begin
    for k in range(n):
        if mode[k] == BEFORE:
            fixed += start + load[k]
        elif mode[k] == CUT:
            fixed += start
        else:
            continue
        free = max(free, ready[k] + fixed)
    room = np.inf
    for k in range(n - 1, -1, -1):  # room for cut parts of tensors up to k, given those behind
        if mode[k] != AFTER:
            room = min(room, free - ready[k] - fixed)
            fixed -= start + (load[k] if mode[k] == BEFORE else 0.0)
        sent[k] = room
    used, step, end = 0.0, compute, free
    for k in range(n):
        part = 0.0
        if mode[k] == BEFORE:
            part = load[k]
        elif mode[k] == CUT:
            part = min(load[k], max(0.0, sent[k] - used))
            used += part
        sent[k] = part
        if mode[k] == AFTER or part < load[k]:
            end += start + load[k] - part
            step = max(step, end + latency + tail[k])
    return step, end


@njit(cache=True)
def search_whole(
    ready: Floats, tail: Floats, load: Floats, start: float, latency: float, compute: float
) -> tuple[float, Ints, Floats]:
    """Choose how each tensor travels, without fusion: the step (s), the modes, and the parts sent before (s)"""
    n = len(ready)
    sent, best_sent = np.zeros(n), np.zeros(n)
    best_mode = np.full(n, AFTER)
    best, best_end = whole_step(best_mode, ready, tail, load, start, latency, compute, best_sent)
    effort = effort_for(n) // (3 * n)  # each choice is looked at three times from front to end
    for begin in range(BEGINNINGS):
        mode = np.full(n, AFTER)
        if begin == 1:
            mode[1:] = BEFORE
        elif begin > 1:  # fill the time before the last gradient, front first
            least, used = (0.0, start, 4 * start)[begin - 2], 0.0
            for k in range(1, n):
                left = ready[0] - ready[k] - used
                if start + load[k] <= left:
                    mode[k] = BEFORE
                    used += start + load[k]
                elif left - start > least:
                    mode[k] = CUT
                    used += left
        step, end = whole_step(mode, ready, tail, load, start, latency, compute, sent)
        left = effort // (BEGINNINGS - begin)  # what one does not need the others may
        effort -= left
        for _ in range(PASSES):
            improved = False
            for k in range(1, n):
                if left <= 0:
                    break
                left -= 2
                kept = mode[k]
                for other in (BEFORE, AFTER, CUT):
                    if other == mode[k]:
                        continue
                    mode[k] = other
                    tried, tried_end = whole_step(mode, ready, tail, load, start, latency, compute, sent)
                    if better(tried, tried_end, step, end):
                        step, end, kept, improved = tried, tried_end, other, True
                    mode[k] = kept
            for k in range(1, n - 1):  # what one gives up, another may take
                for other in range(k + 1, min(n, k + 4)):
                    if mode[k] == mode[other] or left <= 0:
                        continue
                    left -= 1
                    mode[k], mode[other] = mode[other], mode[k]
                    tried, tried_end = whole_step(mode, ready, tail, load, start, latency, compute, sent)
                    if better(tried, tried_end, step, end):
                        step, end, improved = tried, tried_end, True
                    else:
                        mode[k], mode[other] = mode[other], mode[k]
            if not improved:
                break
        effort += left
        if better(step, end, best, best_end):
            best, best_end = step, end
            best_mode[:] = mode
    whole_step(best_mode, ready, tail, load, start, latency, compute, best_sent)
    return best, best_mode, best_sent
