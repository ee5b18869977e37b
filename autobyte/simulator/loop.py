"""The event loop of the compiled simulator, and the arrays that it reads and fills in.

One flat function: small compiled functions that pass a bundle of arrays cost many times as much (docs/design.md).
Ready blocks wait in a heap of *runs*: consecutive ranks that became ready together, so that a tensor cut into a
thousand blocks is one entry.
"""

from typing import NamedTuple

import numpy as np

from autobyte.compiling import njit
from autobyte.job import Floats, Ints
from autobyte.scheduler.plan import Overlap
from autobyte.simulator.costs import Flags

BACKWARD, WAITING, FORWARD, REST = 0, 1, 2, 3  # what a class of workers is doing
OVERLAPS = {Overlap.NONE: 0, Overlap.BACKWARD: 1, Overlap.STEP: 2}


class Table(NamedTuple):
    """A tiling, as the loop reads it."""

    nbytes: Ints
    order: Ints  # rank -> block
    rank: Ints
    waits: Ints
    follower: Ints  # the all-gather of a reduce-scatter, or -1
    gathers: Ints  # the reduce-scatter of an all-gather, or -1
    tensor_blocks: Ints  # by tensor, the most urgent first
    tensor_edges: Ints
    block_tensors: Ints  # by block
    block_edges: Ints
    layer: Ints  # of each tensor


class Compute(NamedTuple):
    """A model's layers."""

    forward_s: Floats
    backward_s: Floats
    compute_s: float


class Rules(NamedTuple):
    """A plan's window and order."""

    credit: int  # -1 is unlimited
    hard: bool
    overlap: int
    sequence: Ints  # empty: by urgency
    accumulation: int
    barrier: int  # reduce-scatters that the forward pass waits for
    ring: bool
    large: float  # see `sends`
    light: float


class Costs(NamedTuple):
    """As `autobyte.simulator.costs` has them, without what the loop does not need."""

    link: Ints
    compute: Floats
    up: Floats
    down: Floats
    ring_s_per_byte: Floats
    push_up: Floats
    push_down: Floats
    pull_up: Floats
    pull_down: Floats
    own_pull_up: Floats
    own_pull_hold_s: Floats
    serves: Flags
    link_serves: Flags
    push_hold_s: Floats
    stretch: Floats
    ring_hold_s: Floats
    latency_s: Floats
    pull_hold_s: float
    inflight_bytes: float
    sharing: int
    compute_slowdown: float
    wire_slowdown: float


class Out(NamedTuple):
    """What the loop fills in."""

    ends_s: Floats
    forward_s: Floats
    backward_s: Floats
    wait_s: Floats
    up_busy_s: Floats
    down_busy_s: Floats
    order: Ints
    ready_s: Floats  # per tensor
    start_s: Floats
    done_s: Floats
    sends: Floats


@njit(cache=True)
def _note(sends: Floats, size: int, busy_s: float, flight: int, rules: Rules) -> None:
    """Add a block to `sends`, if it is a large one"""
    for kind in range(0 if size < rules.large else 2 if flight <= rules.light else 1):
        sends[kind, 0] += 1.0
        sends[kind, 1] += size
        sends[kind, 2] += busy_s
        sends[kind, 3] += float(size) * flight


@njit(cache=True)
def _copy(values: Ints, to: Ints) -> None:
    """`to[:] = values`, which takes seconds to compile"""
    for index in range(len(values)):
        to[index] = values[index]


@njit(cache=True)
def _push_run(heap: Ints, size: int, low: int, high: int) -> None:
    """Add a run of ranks [low, high) to a heap of `size` runs"""
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if heap[parent, 0] <= low:
            break
        heap[place, 0], heap[place, 1] = heap[parent, 0], heap[parent, 1]
        place = parent
    heap[place, 0], heap[place, 1] = low, high


@njit(cache=True)
def _drop_first_run(heap: Ints, size: int) -> None:
    """Take the most urgent run out of a heap of `size` runs"""
    low, high = heap[size - 1, 0], heap[size - 1, 1]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size - 1:
            break
        if child + 2 < size and heap[child + 1, 0] < heap[child, 0]:
            child += 1
        if heap[child, 0] >= low:
            break
        heap[place, 0], heap[place, 1] = heap[child, 0], heap[child, 1]
        place = child
    heap[place, 0], heap[place, 1] = low, high


@njit(cache=True)
def _ratios(before: Floats, after: Floats) -> Floats:
    """network._slower, of every link"""
    ratios = np.ones(len(before))
    for index in range(len(before)):
        if before[index] != after[index] and before[index] < np.inf:
            ratios[index] = before[index] / after[index]
    return ratios


@njit(cache=True)
def _stretched(when: float, ratio: float, now: float) -> float:
    return now + (when - now) * ratio if ratio != 1.0 and when > now else when


@njit(cache=True)
def _sum(values: Floats, count: int) -> float:
    """Shared._round_s: the first `count`, added one by one"""
    total = 0.0
    for place in range(count):
        total += values[place]
    return total


@njit(cache=True)
def _stretch_links(free: Floats, busy: Floats, ratios: Floats, now: float) -> None:
    """Link.stretch, of every link"""
    for index in range(len(ratios)):
        if ratios[index] != 1.0 and free[index] > now:
            after = _stretched(free[index], ratios[index], now)
            busy[index] += after - free[index]
            free[index] = after


@njit(cache=True)
def _stretch_lane(
    near: Floats, far: Floats, head: int, tail: int, near_ratio: float, far_ratio: float, now: float
) -> None:
    """Lane.stretch"""
    for place in range(head, tail):
        near[place] = _stretched(near[place], near_ratio, now)
        far[place] = _stretched(far[place], far_ratio, now)


@njit(cache=True, nogil=True)
def last_step_s(table: Table, compute: Compute, rules: Rules, costs: Costs) -> float:
    """Simulate; time of the last step (s)."""
    ends_s = run(table, compute, rules, costs).ends_s
    last_s: float = ends_s[-1].max() - (ends_s[-2].max() if len(ends_s) > 1 else 0.0)
    return last_s


@njit(cache=True, nogil=True)
def _empty(table: Table, compute: Compute, costs: Costs) -> Out:
    steps, classes = costs.compute.shape[0] - 1, costs.compute.shape[1]
    layers, blocks, tensors = len(compute.forward_s), len(table.nbytes), len(table.layer)
    return Out(
        np.zeros((steps, classes)),
        np.zeros((classes, layers)),
        np.zeros((classes, layers)),
        np.zeros((classes, layers)),
        np.zeros(classes),
        np.zeros(len(costs.link_serves)),
        np.zeros(blocks, dtype=np.int64),
        np.zeros(tensors),
        np.zeros(blocks),
        np.zeros(blocks),
        np.zeros((classes, 2, 4)),
    )


@njit(cache=True, nogil=True)
def run(table: Table, compute: Compute, rules: Rules, costs: Costs) -> Out:
    """Simulate until every class of workers is through its steps.

    A turn of the loop is one gradient of a layer that is over, or what follows that layer, or the next event. It
    prepares, then starts blocks, then finishes one, then lets tensors arrive, then begins layers: the order in which
    the reference's objects call each other. Groups share a schedule: all classes of a ring, or each class by itself.
    """
    nbytes, order, rank, waits = table.nbytes, table.order, table.rank, table.waits
    follower, gathers = table.follower, table.gathers
    tensor_blocks, tensor_edges = table.tensor_blocks, table.tensor_edges
    block_tensors, block_edges, layer_of = table.block_tensors, table.block_edges, table.layer
    forward_s, backward_s = compute.forward_s, compute.backward_s
    credit, hard, overlap, sequence, ring = rules.credit, rules.hard, rules.overlap, rules.sequence, rules.ring
    factor, stretch, link, latency_s = costs.compute, costs.stretch, costs.link, costs.latency_s
    ring_s_per_byte, ring_hold_s = costs.ring_s_per_byte, costs.ring_hold_s
    push_up, push_down, push_hold_s = costs.push_up, costs.push_down, costs.push_hold_s
    pull_up, pull_down, pull_hold_s = costs.pull_up, costs.pull_down, costs.pull_hold_s
    own_pull_up, own_pull_hold_s = costs.own_pull_up, costs.own_pull_hold_s
    serves, link_serves = costs.serves, costs.link_serves
    inflight_bytes, compute_slowdown, wire_slowdown = (
        costs.inflight_bytes,
        costs.compute_slowdown,
        costs.wire_slowdown,
    )
    out = _empty(table, compute, costs)
    up_busy_s, down_busy_s, ends_s = out.up_busy_s, out.down_busy_s, out.ends_s
    order_out, ready_out, start_out, done_out = out.order, out.ready_s, out.start_s, out.done_s
    spent_forward, spent_backward, waited, sends = out.forward_s, out.backward_s, out.wait_s, out.sends

    steps, classes = ends_s.shape
    groups, group_size, lanes = (1, classes, 1) if ring else (classes, 1, 2 * classes)
    blocks, tensors, layers, links = len(nbytes), len(layer_of), len(forward_s), len(link_serves)
    in_sequence = len(sequence) > 0
    layer_edges = np.searchsorted(layer_of, np.arange(layers + 1))
    per_layer = layer_edges[1:] - layer_edges[:-1]
    per_layer[0] += rules.barrier
    pieces = tensor_edges[1:] - tensor_edges[:-1]

    # core and runner, per group
    heap = np.empty((groups, blocks + 1, 2), dtype=np.int64)  # runs of ranks, the most urgent first
    runs = np.zeros(groups, dtype=np.int64)
    position = np.zeros(groups, dtype=np.int64)  # in the sequence
    missing = np.empty((groups, blocks), dtype=np.int64)  # gradients that a block waits for
    coming = np.empty((groups, tensors), dtype=np.int64)  # blocks that a tensor waits for
    for g in range(groups):
        _copy(waits, missing[g])
        _copy(pieces, coming[g])
    complete = np.zeros((groups, tensors), dtype=np.int64)  # classes that have a gradient
    over = np.zeros(groups, dtype=np.int64)  # classes whose backward pass is over
    closed = np.zeros(groups, dtype=np.bool_)
    undone = np.full(groups, blocks)
    core_step = np.zeros(groups, dtype=np.int64)
    core_flight = np.zeros(groups, dtype=np.int64)
    scatters = np.full(groups, 0 if in_sequence else rules.barrier)  # that are not over
    engine_flight = np.zeros(groups, dtype=np.int64)
    started = 0  # blocks of the first group's last step

    # network: lanes are pushes (or all-reduces) of each class, then pulls of each class
    iteration = 0  # the newest that a worker has started
    up_free_s, down_free_s = np.zeros(classes), np.zeros(links)
    pushed = np.zeros(blocks, dtype=np.int64)  # classes whose push is in
    summed = -1  # a reduce-scatter whose pushes are all in
    told: int = classes  # the next class that hears of it
    lane_block = np.empty((lanes, blocks + 1), dtype=np.int64)
    near_s, far_s = np.empty((lanes, blocks + 1)), np.empty((lanes, blocks + 1))
    head, tail = np.zeros(lanes, dtype=np.int64), np.zeros(lanes, dtype=np.int64)

    # Shared: blocks that share the ring, in the order in which they began, then those that wait
    room = costs.sharing if ring else 1
    places = min(room, blocks) if room > 1 else 0
    shared_block, shared_end, shared_s = np.empty(places, dtype=np.int64), np.empty(places), np.empty(places)
    waiting_block, waiting_s = np.empty(blocks, dtype=np.int64), np.empty(blocks)
    served = wait_head = wait_tail = 0
    part = since_shared_s = 0.0
    await_shared = False

    # workers, per class
    doing = np.full(classes, BACKWARD)
    at_layer = np.full(classes, layers - 1)
    at_iteration = np.zeros(classes, dtype=np.int64)
    since_s = np.zeros(classes)  # when it began to wait
    left = np.empty((classes, layers), dtype=np.int64)  # tensors that have not arrived
    for c in range(classes):
        _copy(per_layer, left[c])
    left_all = np.full(classes, tensors)
    begins = np.ones(classes, dtype=np.bool_)  # a layer, at the end of this turn
    computing = np.ones(classes, dtype=np.bool_)

    # when each lane's first transfer arrives, and when each class has computed its layer
    when_s = np.full(3 * classes, np.inf)
    now = 0.0
    actor, gradient, lowest, follow = 0, -1, 0, False  # the class whose layer is over, and its gradients
    some_begin = True
    g, start, finish, done_block, arrived = 0, False, False, -1, -1

    while True:
        if some_begin:  # Worker._await_layer, Worker._compute
            some_begin = False
            for c in range(classes):
                if not begins[c]:
                    continue
                begins[c] = False
                layer = at_layer[c]
                if doing[c] == WAITING:
                    may_go = left[c, layer] == 0 if overlap == 2 else layer > 0 or left_all[c] == 0
                    if not may_go:
                        computing[c] = False
                        since_s[c] = now
                        continue
                    doing[c] = FORWARD
                forward = doing[c] == FORWARD
                plain_s = forward_s[layer] if forward else backward_s[layer]
                own_s = plain_s * factor[at_iteration[c] + (1 if forward else 0), c]
                backlog_s = max(0.0, up_free_s[0 if ring else c] - now)
                spent_s = own_s + compute_slowdown * min(own_s, backlog_s)
                if forward:
                    spent_forward[c, layer] += spent_s
                else:
                    spent_backward[c, layer] += spent_s
                when_s[2 * classes + c] = now + spent_s

        start, finish, done_block, arrived = False, False, -1, -1
        if gradient >= lowest:  # _Run.gradient, Runner.ready, Core._mark
            tensor = gradient
            gradient -= 1
            g = 0 if ring else actor
            complete[g, tensor] += 1
            if complete[g, tensor] < group_size:
                continue
            complete[g, tensor] = 0
            if g == 0 and core_step[0] == steps - 1:
                ready_out[tensor] = now
            low = high = -1
            for place in range(tensor_edges[tensor], tensor_edges[tensor + 1]):
                block = tensor_blocks[place]
                missing[g, block] -= 1
                if missing[g, block] == 0 and not in_sequence:
                    if rank[block] != high:
                        if low >= 0:
                            _push_run(heap[g], runs[g], low, high)
                            runs[g] += 1
                        low = rank[block]
                    high = rank[block] + 1
            if low >= 0:
                _push_run(heap[g], runs[g], low, high)
                runs[g] += 1
            start = True
            if pieces[tensor] == 0:
                arrived = tensor
        elif follow:  # the layer's gradients are out
            follow = False
            c = actor
            begins[c] = some_begin = True
            if at_layer[c] > 0:
                at_layer[c] -= 1
            else:  # _Run.backward_over
                if at_iteration[c] == iteration:
                    before, iteration = iteration, iteration + 1
                    if ring:
                        ratio = 1.0
                        if ring_s_per_byte[before] != ring_s_per_byte[iteration] and ring_s_per_byte[before] > 0:
                            ratio = ring_s_per_byte[iteration] / ring_s_per_byte[before]
                        _stretch_links(up_free_s, up_busy_s, np.full(1, ratio), now)
                        _stretch_lane(near_s[0], far_s[0], head[0], tail[0], ratio, ratio, now)
                        if room > 1 and ratio != 1.0:  # Shared.stretch
                            round_s = _sum(shared_s, served)
                            if round_s > 0:
                                part += (now - since_shared_s) / round_s
                            since_shared_s = now
                            for place in range(served):
                                shared_s[place] *= ratio
                            for place in range(wait_head, wait_tail):
                                waiting_s[place] *= ratio
                            await_shared = True
                    else:
                        up = _ratios(costs.up[before], costs.up[iteration])
                        down = _ratios(costs.down[before], costs.down[iteration])
                        _stretch_links(up_free_s, up_busy_s, up, now)
                        _stretch_links(down_free_s, down_busy_s, down, now)
                        far_up, far_down = up[serves].max(), down[link_serves].max()
                        for o in range(classes):
                            p, q = o, classes + o
                            _stretch_lane(near_s[p], far_s[p], head[p], tail[p], up[o], far_down, now)
                            _stretch_lane(near_s[q], far_s[q], head[q], tail[q], down[link[o]], far_up, now)
                    for lane in range(lanes):  # Lane._await_first
                        if head[lane] < tail[lane]:
                            through_s = max(near_s[lane, head[lane]], far_s[lane, head[lane]])
                            when_s[lane] = max(now, through_s + latency_s[lane_block[lane, head[lane]]])
                g = 0 if ring else c
                over[g] += 1
                if over[g] == group_size:
                    over[g] = 0
                    closed[g] = start = finish = True
                doing[c] = WAITING
                when_s[2 * classes + c] = np.inf
        elif told < classes:  # Servers._pushed, Core.done
            g, start, done_block = told, True, summed
            told += 1
            block = follower[summed]
            scatters[g] = max(0, scatters[g] - 1)
            missing[g, block] -= 1
            if missing[g, block] == 0 and not in_sequence:
                _push_run(heap[g], runs[g], rank[block], rank[block] + 1)
                runs[g] += 1
        else:
            if await_shared:  # Shared._await_first
                await_shared = False
                when_s[classes] = np.inf
                if served > 0:
                    when_s[classes] = max(now, now + (shared_end[0] - part) * _sum(shared_s, served))
            event, now = 0, when_s[0]
            for other in range(1, 3 * classes):  # of equal times the first: the reference's order
                if when_s[other] < now:
                    event, now = other, when_s[other]
            if now == np.inf:
                return out
            if ring and event == classes:  # Shared._over
                block, part, since_shared_s = shared_block[0], shared_end[0], now
                served -= 1
                for place in range(served):
                    shared_block[place] = shared_block[place + 1]
                    shared_end[place], shared_s[place] = shared_end[place + 1], shared_s[place + 1]
                if wait_head < wait_tail:
                    shared_block[served], shared_s[served] = waiting_block[wait_head], waiting_s[wait_head]
                    shared_end[served] = part + 1.0
                    served += 1
                    wait_head += 1
                    if wait_head == wait_tail:
                        wait_head = wait_tail = 0
                await_shared = True
                lane_block[0, tail[0]] = block
                near_s[0, tail[0]] = far_s[0, tail[0]] = now
                if head[0] == tail[0]:
                    when_s[0] = max(now, now + latency_s[block])
                tail[0] += 1
                continue
            if event < 2 * classes:  # Lane._arrive
                g = event % classes
                block = lane_block[event, head[event]]
                head[event] += 1
                if head[event] == tail[event]:
                    head[event] = tail[event] = 0
                    when_s[event] = np.inf
                else:
                    through_s = max(near_s[event, head[event]], far_s[event, head[event]])
                    when_s[event] = max(now, through_s + latency_s[lane_block[event, head[event]]])
                if event < classes:
                    engine_flight[g] -= nbytes[block]
                    core_flight[g] -= nbytes[block]
                    start = True
                    if ring and follower[block] >= 0:  # Core._reduced
                        scatters[g] = max(0, scatters[g] - 1)
                        missing[g, follower[block]] -= 1
                        if missing[g, follower[block]] == 0 and not in_sequence:
                            _push_run(heap[g], runs[g], rank[follower[block]], rank[follower[block]] + 1)
                            runs[g] += 1
                    if not ring:  # Servers._pushed, Servers._pull
                        pushed[block] += 1
                        if pushed[block] == classes:
                            pushed[block] = 0
                            whole = follower[block] < 0
                            if not whole:
                                summed, told = block, 0
                            load = nbytes[block] * stretch[block]
                            far = now
                            for c in range(classes if whole else 0):
                                if serves[c]:
                                    hold = pull_hold_s + pull_up[iteration, c] * load
                                    up_free_s[c] = max(now, up_free_s[c]) + hold
                                    up_busy_s[c] += hold
                                    far = max(far, up_free_s[c])
                            for other in range(links if whole else 0):
                                hold = pull_down[iteration, other] * load
                                down_free_s[other] = max(now, down_free_s[other]) + hold
                                down_busy_s[other] += hold
                            for c in range(classes if whole else 0):
                                lane, near = classes + c, down_free_s[link[c]]
                                lane_block[lane, tail[lane]] = block
                                near_s[lane, tail[lane]], far_s[lane, tail[lane]] = near, far
                                if head[lane] == tail[lane]:
                                    when_s[lane] = max(now, max(near, far) + latency_s[block])
                                tail[lane] += 1
                elif gathers[block] >= 0:  # Servers.pull: its credit comes back with it
                    core_flight[g] -= nbytes[block]
                    start = True
                if ring or event >= classes:
                    done_block = block
            else:
                c = event - 2 * classes
                if doing[c] == BACKWARD:  # Worker._backward
                    actor, follow = c, True
                    gradient, lowest = layer_edges[at_layer[c] + 1] - 1, layer_edges[at_layer[c]]
                elif doing[c] == FORWARD and at_layer[c] + 1 < layers:  # Worker._forward
                    at_layer[c] += 1
                    doing[c] = WAITING
                    when_s[event] = np.inf
                    begins[c] = some_begin = True
                elif doing[c] == FORWARD:  # Worker._accumulate
                    doing[c] = REST
                    rest_s = (rules.accumulation - 1) * compute.compute_s * factor[at_iteration[c] + 1, c]
                    when_s[event] = now + rest_s
                else:  # _Run.step_over, Worker.start_step
                    ends_s[at_iteration[c], c] = now
                    when_s[event] = np.inf
                    at_iteration[c] += 1
                    if at_iteration[c] < steps:
                        doing[c] = BACKWARD
                        at_layer[c] = layers - 1
                        _copy(per_layer, left[c])
                        left_all[c] = tensors
                        begins[c] = some_begin = True
                continue

        if start and (overlap > 0 or closed[g]):  # Core._start
            log = g == 0 and core_step[0] == steps - 1
            while True:
                if in_sequence:
                    if position[g] == blocks or missing[g, sequence[position[g]]] != 0:
                        break
                    block = sequence[position[g]]
                else:
                    if runs[g] == 0:
                        break
                    first = heap[g, 0, 0]
                    block = order[first]
                size, flight = nbytes[block], core_flight[g]
                if flight != 0 and scatters[g] > 0 and follower[block] < 0:
                    break
                if credit >= 0 and flight != 0 and (flight + size > credit if hard else flight >= credit):
                    break
                if in_sequence:
                    position[g] += 1
                elif first + 1 < heap[g, 0, 1]:
                    heap[g, 0, 0] = first + 1  # the rest of the run stays the most urgent
                else:
                    _drop_first_run(heap[g], runs[g])
                    runs[g] -= 1
                core_flight[g] = flight + size
                if log:
                    order_out[started] = block
                    started += 1
                    start_out[block] = now
                if not ring and gathers[block] >= 0:  # Servers.pull
                    load = size * stretch[block]
                    far = now
                    for c in range(classes):
                        if serves[c]:
                            hold = own_pull_hold_s[g, c] + own_pull_up[iteration, g, c] * load
                            up_free_s[c] = max(now, up_free_s[c]) + hold
                            up_busy_s[c] += hold
                            far = max(far, up_free_s[c])
                    hold = pull_down[iteration, link[g]] * load
                    near = max(now, down_free_s[link[g]]) + hold
                    down_free_s[link[g]] = near
                    down_busy_s[link[g]] += hold
                    lane = classes + g
                    lane_block[lane, tail[lane]] = block
                    near_s[lane, tail[lane]], far_s[lane, tail[lane]] = near, far
                    if head[lane] == tail[lane]:
                        when_s[lane] = max(now, max(near, far) + latency_s[block])
                    tail[lane] += 1
                    continue
                engine_flight[g] += size
                load = size * stretch[block] * (1.0 + engine_flight[g] / inflight_bytes)
                beside = 1.0
                if wire_slowdown > 0.0:
                    beside = 1.0 + wire_slowdown if (computing.any() if ring else computing[g]) else 1.0
                if ring:  # Ring.start
                    hold = (ring_hold_s[block] + ring_s_per_byte[iteration] * load) * beside
                    near = max(now, up_free_s[0]) + hold
                    far = near
                    up_free_s[0] = near
                    up_busy_s[0] += hold
                    _note(sends[0], size, hold, engine_flight[0], rules)
                else:  # Servers.push
                    begin = max(now, up_free_s[g])
                    hold = (push_hold_s[g] + push_up[iteration, g] * load) * beside
                    near = begin + hold
                    up_free_s[g] = near
                    up_busy_s[g] += hold
                    back = pull_hold_s + pull_up[iteration, g] * (size * stretch[block]) if serves[g] else 0.0
                    _note(sends[g], size, hold + back, engine_flight[g], rules)
                    far = begin
                    for other in range(links):
                        if link_serves[other]:
                            hold = push_down[iteration, g, other] * load
                            down_free_s[other] = max(begin, down_free_s[other]) + hold
                            down_busy_s[other] += hold
                            far = max(far, down_free_s[other])
                if room > 1:  # Shared.add
                    round_s = _sum(shared_s, served)
                    if round_s > 0:
                        part += (now - since_shared_s) / round_s
                    since_shared_s = now
                    if served == room:
                        waiting_block[wait_tail], waiting_s[wait_tail] = block, hold
                        wait_tail += 1
                    else:
                        shared_block[served], shared_s[served], shared_end[served] = block, hold, part + 1.0
                        served += 1
                    await_shared = True
                    continue
                lane_block[g, tail[g]] = block  # Lane.add
                near_s[g, tail[g]], far_s[g, tail[g]] = near, far
                if head[g] == tail[g]:
                    when_s[g] = max(now, max(near, far) + latency_s[block])
                tail[g] += 1

        if done_block >= 0:
            if g == 0 and core_step[0] == steps - 1:
                done_out[done_block] = now
            undone[g] -= 1
            finish = True
        if finish and closed[g] and undone[g] == 0:  # Core._finish_step
            core_step[g] += 1
            _copy(waits, missing[g])
            scatters[g] = 0 if in_sequence else rules.barrier
            position[g] = 0
            undone[g] = blocks
            closed[g] = False

        if rules.barrier > 0 and done_block >= 0 and follower[done_block] >= 0:  # Worker.reduced
            for c in range(0 if ring else g, classes if ring else g + 1):
                left[c, 0] -= 1
                if doing[c] == WAITING and not begins[c] and at_layer[c] == 0 and left[c, 0] == 0:
                    waited[c, 0] += now - since_s[c]
                    computing[c] = True
                    doing[c] = FORWARD
                    begins[c] = some_begin = True

        low, high = 0, 0  # Runner._count
        if done_block >= 0:
            low, high = block_edges[done_block], block_edges[done_block + 1]
        elif arrived >= 0:
            high = 1
        for place in range(low, high):
            tensor = arrived
            if done_block >= 0:
                tensor = block_tensors[place]
                coming[g, tensor] -= 1
                if coming[g, tensor] > 0:
                    continue
                coming[g, tensor] = pieces[tensor]
            for c in range(0 if ring else g, classes if ring else g + 1):  # Worker.arrived
                left[c, layer_of[tensor]] -= 1
                left_all[c] -= 1
                if doing[c] == WAITING and not begins[c]:
                    layer = at_layer[c]
                    if left[c, layer] == 0 if overlap == 2 else left_all[c] == 0:
                        waited[c, layer] += now - since_s[c]
                        computing[c] = True
                        doing[c] = FORWARD
                        begins[c] = some_begin = True
