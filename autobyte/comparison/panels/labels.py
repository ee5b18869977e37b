"""Where labels go so that none covers another: geometry alone, in points, y upwards."""

import math
import random
from collections.abc import Iterator, Sequence

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, bottom, right, top

CLEARANCE = 3.5  # around a mark
GAP = 5  # between a mark and its label
ORDERS = 60  # in which labels are tried
STEP = 3.0  # between the points of a leader


def spread(wanted: Sequence[float], heights: Sequence[float], *, low: float, high: float) -> list[float]:
    """Stack labels of a column: centres as near to the wanted ones as they fit, between `low` and `high`.

    >>> spread([10, 10], [4, 4], low=0, high=100)
    [8.0, 12.0]

    Labels that would overlap move together, to the mean of where they would be; of equal wishes the first is at the
    bottom. Where the column is too short, the stack begins at `low` and goes beyond `high`.

    Reference: pool adjacent violators, isotonic regression by least squares.
    """
    stacks: list[list[int]] = []

    def bottom(stack: Sequence[int]) -> float:
        below, wishes = 0.0, []
        for index in stack:
            wishes.append(wanted[index] - heights[index] / 2 - below)
            below += heights[index]
        return max(low, min(high - below, math.fsum(wishes) / len(wishes)))

    for index in sorted(range(len(wanted)), key=lambda i: wanted[i]):
        stacks.append([index])
        while len(stacks) > 1 and bottom(stacks[-2]) + sum(heights[i] for i in stacks[-2]) > bottom(stacks[-1]):
            stacks[-2:] = [stacks[-2] + stacks[-1]]
    centres = [0.0] * len(wanted)
    for stack in stacks:
        edge = bottom(stack)
        for index in stack:
            centres[index] = edge + heights[index] / 2
            edge += heights[index]
    return centres


def place(marks: Sequence[Point], sizes: Sequence[Point], *, within: Box) -> list[Point]:
    """Put a label beside each mark: lower left corners, all together as near as there is room.

    No label covers a mark, another label or its leader. No leader crosses a label, a mark or another leader, unless
    there is no other way. Where nothing is left at all, a label stands on its mark.

    Args:
        marks: one for each label; more of them are kept clear too.
        sizes: width and height of the labels.
        within: the box that holds them.
    """
    order, shuffler = list(range(len(sizes))), random.Random(0)
    best = _in_order(order, marks, sizes, within)
    for _ in range(ORDERS):
        if best[0] < (GAP + 0.1) * len(sizes):  # all are as near as can be
            break
        shuffler.shuffle(order)
        best = min(best, _in_order(order, marks, sizes, within), key=lambda placed: placed[0])
    return best[1]


def leader(mark: Point, corner: Point, size: Point) -> list[Point]:
    """Points on the way from a mark to its label; none if the label is so near that no line is needed."""
    end = _nearest(mark, corner, size)
    length = math.dist(mark, end)
    count = 0 if length < 2.5 * CLEARANCE else math.ceil(length / STEP)
    shares = [k / count for k in range(count)] + [1.0] * (count > 0)
    return [(mark[0] + (end[0] - mark[0]) * share, mark[1] + (end[1] - mark[1]) * share) for share in shares]


def _in_order(
    order: Sequence[int], marks: Sequence[Point], sizes: Sequence[Point], within: Box
) -> tuple[float, list[Point]]:
    """Place one label after the other, each where it is best; also how far they are from their marks together."""
    taken = [_around(mark, CLEARANCE) for mark in marks]
    crossed = [_around(mark, CLEARANCE / 2) for mark in marks]  # by leaders
    corners, cost = list(marks[: len(sizes)]), 0.0
    for index in order:
        mark, size = marks[index], sizes[index]
        free = [corner for corner in _candidates(mark, size, within) if not _hits([_box(corner, size)], taken)]
        clear = next((corner for corner in free if not _hits(_thread(mark, corner, size)[1:], crossed)), None)
        corners[index] = clear or (free or [mark])[0]
        cost += math.dist(mark, _nearest(mark, corners[index], size)) + 1e3 * (clear is None) + 1e6 * (not free)
        taken += [_box(corners[index], size), *_thread(mark, corners[index], size)]
        crossed += [_box(corners[index], size), *_thread(mark, corners[index], size)]
    return cost, corners


def _ways() -> Iterator[tuple[float, float, float, float]]:
    """A direction from the mark, and the part of the label, (0, 0) to (1, 1), that lies in this direction."""
    for part in (0.5, 0.2, 0.8, 0.0, 1.0):
        yield from [(1, 0, 0, part), (0, 1, part, 0), (0, -1, part, 1), (-1, 0, 1, part)]
    for degrees in (45, 20, 70, 32, 58):
        x, y = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        yield from [(x, y, 0, 0), (x, -y, 0, 1), (-x, y, 1, 0), (-x, -y, 1, 1)]


_WAYS = tuple(_ways())


def _candidates(mark: Point, size: Point, within: Box) -> Iterator[Point]:
    """Corners of labels around a mark, the nearest first, inside the box."""
    reach = math.hypot(within[2] - within[0], within[3] - within[1])
    for distance in range(GAP, math.ceil(reach), 4):
        for x, y, across, up in _WAYS:
            corner = mark[0] + distance * x - size[0] * across, mark[1] + distance * y - size[1] * up
            left, bottom, right, top = _box(corner, size)
            if within[0] <= left and within[1] <= bottom and right <= within[2] and top <= within[3]:
                yield corner


def _nearest(mark: Point, corner: Point, size: Point) -> Point:
    """The point of a label that is nearest to a mark."""
    return min(max(mark[0], corner[0]), corner[0] + size[0]), min(max(mark[1], corner[1]), corner[1] + size[1])


def _thread(mark: Point, corner: Point, size: Point) -> list[Box]:
    return [_around(point, 0.8) for point in leader(mark, corner, size)[:-1]]


def _hits(boxes: Sequence[Box], taken: Sequence[Box]) -> bool:
    return any(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for a in boxes for b in taken)


def _box(corner: Point, size: Point) -> Box:
    return corner[0], corner[1], corner[0] + size[0], corner[1] + size[1]


def _around(point: Point, margin: float) -> Box:
    return point[0] - margin, point[1] - margin, point[0] + margin, point[1] + margin
