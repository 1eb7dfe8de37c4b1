"""Rectangles that fill time x address without a gap: packings whose optimum is known.

address ^   +----+-------+     recursive cuts: through a rectangle, or as a pinwheel around a middle one
        |   |    +---+---+     grown cuts: segments grow from random points until they meet others, which
        |   +----+   |   |     gives few buffers of equal lives, and no cut through the whole
        |   |    +---+---+
        +---+----+-------+-> time
"""

import random
from dataclasses import dataclass
from typing import Final, TypeAlias

Rectangle: TypeAlias = tuple[int, int, int, int]
"""Start, end, lowest and highest address, in cells; half-open."""

SIDE: Final = 1024
"""Cells of a packing in time and in address."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """How a packing is cut.

    Attributes:
        count: number of rectangles.
        across: how much more often time is cut than addresses, for a square.
        area: exponent of a rectangle's area in its chance to be cut; 0 = all alike, 1 = by area.
        pinwheels: share of cuts into five.
    """

    count: int
    across: float = 1.0
    area: float = 0.7
    pinwheels: float = 0.1


def cut(draw: random.Random, cuts: Cuts) -> list[Rectangle]:
    """Cut the square recursively."""
    pieces: list[Rectangle] = [(0, SIDE, 0, SIDE)]
    while len(pieces) < cuts.count:
        weights = [((end - start) * (high - low)) ** cuts.area for start, end, low, high in pieces]
        at = draw.choices(range(len(pieces)), weights)[0]
        start, end, low, high = pieces[at]
        width, height = end - start, high - low
        if draw.random() < cuts.pinwheels and min(width, height) > 2 and len(pieces) + 4 <= cuts.count:
            pieces[at : at + 1] = _pinwheel(draw, pieces[at])
        elif draw.random() * (width * cuts.across + height) < width * cuts.across:
            if width > 1:
                middle = draw.randrange(start + 1, end)
                pieces[at : at + 1] = [(start, middle, low, high), (middle, end, low, high)]
        elif height > 1:
            middle = draw.randrange(low + 1, high)
            pieces[at : at + 1] = [(start, end, low, middle), (start, end, middle, high)]
    return pieces


def _pinwheel(draw: random.Random, piece: Rectangle) -> list[Rectangle]:
    start, end, low, high = piece
    left, right = sorted(draw.sample(range(start + 1, end), 2))
    down, up = sorted(draw.sample(range(low + 1, high), 2))
    blades = [
        (start, right, low, down),
        (right, end, low, up),
        (left, end, up, high),
        (start, left, down, high),
        (left, right, down, up),
    ]
    if draw.random() < 0.5:
        return blades
    return [(start + end - b, start + end - a, c, d) for a, b, c, d in blades]


def grow(draw: random.Random, count: int, upright: float) -> list[Rectangle]:
    """Let ``count - 1`` segments grow from random points, all at one speed, until they meet others.

    ``upright`` is the share of segments along the addresses.
    """
    xs, ys = draw.sample(range(1, SIDE), count - 1), draw.sample(range(1, SIDE), count - 1)
    points = list(zip(xs, ys, strict=True))
    vertical = [draw.random() < upright for _ in points]
    reach = [[0, SIDE] for _ in points]
    meetings = []
    for flat, (x, y) in enumerate(points):
        for steep, (u, v) in enumerate(points):
            if not vertical[flat] and vertical[steep]:
                flat_later = abs(u - x) > abs(v - y)
                meetings.append((max(abs(u - x), abs(v - y)), flat, steep, flat_later))
    for _, flat, steep, flat_later in sorted(meetings):
        (x, y), (u, v) = points[flat], points[steep]
        if reach[flat][0] <= u <= reach[flat][1] and reach[steep][0] <= y <= reach[steep][1]:
            if flat_later:
                reach[flat][u > x] = u
            else:
                reach[steep][y > v] = y
    return _faces(points, vertical, reach)


def _faces(points: list[tuple[int, int]], vertical: list[bool], reach: list[list[int]]) -> list[Rectangle]:
    """List the rectangles between the segments."""
    times = sorted({0, SIDE, *(x for (x, _), up in zip(points, vertical, strict=True) if up)})
    heights = sorted({0, SIDE, *(y for (_, y), up in zip(points, vertical, strict=True) if not up)})
    column = {x: at for at, x in enumerate(times)}
    row = {y: at for at, y in enumerate(heights)}
    closed: set[tuple[bool, int, int]] = set()  # the cell's right side, or its top, is a segment
    for (x, y), up, (first, last) in zip(points, vertical, reach, strict=True):
        if up:
            closed |= {(True, column[x] - 1, at) for at in range(row[first], row[last])}
        else:
            closed |= {(False, at, row[y] - 1) for at in range(column[first], column[last])}
    seen: set[tuple[int, int]] = set()
    faces = []
    for left in range(len(times) - 1):
        for bottom in range(len(heights) - 1):
            if (left, bottom) in seen:
                continue
            right, top = left, bottom
            while right < len(times) - 2 and (True, right, bottom) not in closed:
                right += 1
            while top < len(heights) - 2 and (False, left, top) not in closed:
                top += 1
            seen |= {(x, y) for x in range(left, right + 1) for y in range(bottom, top + 1)}
            faces.append((times[left], times[right + 1], heights[bottom], heights[top + 1]))
    return faces
