"""Minimum s-t cuts and maximum flows: Dinic's algorithm in C++ where there is a compiler, else in Python."""

import ctypes
from collections import deque
from collections.abc import Sequence
from functools import cache

from tightrope.native.interface import INTEGER, POINTER, load, missing, table

INFINITE = 2**60
"""Capacity of an edge that no cut may take."""


def min_cut(
    num_vertices: int,
    edges: Sequence[tuple[int, int, int]],
    *,
    source: int,
    sink: int,
    native: bool = True,
) -> tuple[int, tuple[bool, ...]]:
    """Find a cut of the smallest capacity, the one nearest to the source.

    Args:
        num_vertices: numbered from 0.
        edges: (from, to, capacity); the sum of capacities below `INFINITE` is below it, too.
        source: vertex on the first side.
        sink: vertex on the other.
        native: whether C++ may be used; the answer is the same without.

    Returns:
        The capacity, and for every vertex whether it is on the source's side.

    Example:
        >>> min_cut(3, [(0, 1, 5), (1, 2, 3)], source=0, sink=2)
        (3, (True, True, False))
    """
    if not native or missing("mincut"):
        return _Flow(num_vertices, edges).cut(source, sink)
    side = (INTEGER * num_vertices)()
    total = int(_library().tightrope_mincut(num_vertices, len(edges), table(edges), source, sink, side))
    return total, tuple(bool(mark) for mark in side)


def max_flow(
    num_vertices: int,
    edges: Sequence[tuple[int, int, int]],
    *,
    source: int,
    sink: int,
    native: bool = True,
) -> tuple[int, tuple[int, ...]]:
    """Find a largest flow.

    Args:
        num_vertices: numbered from 0.
        edges: (from, to, capacity); the sum of capacities below `INFINITE` is below it, too.
        source: vertex that flow comes from.
        sink: vertex that it goes to.
        native: whether C++ may be used.

    Returns:
        The amount, and how much of it every edge carries.

    Example:
        >>> max_flow(3, [(0, 1, 5), (1, 2, 3)], source=0, sink=2)
        (3, (3, 3))
    """
    if not native or missing("mincut"):
        flow = _Flow(num_vertices, edges)
        total, _ = flow.cut(source, sink)
        return total, tuple(flow.room[2 * edge + 1] for edge in range(len(edges)))
    flows = (INTEGER * max(1, len(edges)))()
    total = int(_library().tightrope_maxflow(num_vertices, len(edges), table(edges), source, sink, flows))
    return total, tuple(flows[: len(edges)])


@cache
def _library() -> ctypes.CDLL:
    native = load("mincut")
    for function in (native.tightrope_mincut, native.tightrope_maxflow):
        function.restype = INTEGER
        function.argtypes = [INTEGER, INTEGER, POINTER, INTEGER, INTEGER, POINTER]
    return native


class _Flow:
    """Residual capacities; edge i and its reverse i ^ 1 stand side by side."""

    def __init__(self, num_vertices: int, edges: Sequence[tuple[int, int, int]]) -> None:
        self.out: list[list[int]] = [[] for _ in range(num_vertices)]
        self.to: list[int] = []
        self.room: list[int] = []
        for start, end, capacity in edges:
            for tail, head, room in ((start, end, capacity), (end, start, 0)):
                self.out[tail].append(len(self.to))
                self.to.append(head)
                self.room.append(room)

    def cut(self, source: int, sink: int) -> tuple[int, tuple[bool, ...]]:
        total = 0
        while (level := self._levels(source))[sink] >= 0:
            begin = [0] * len(self.out)
            while pushed := self._push(source, sink, level, begin):
                total += pushed
        return total, tuple(depth >= 0 for depth in level)

    def _levels(self, source: int) -> list[int]:
        level = [-1] * len(self.out)
        level[source] = 0
        queue = deque([source])
        while queue:
            at = queue.popleft()
            for edge in self.out[at]:
                if self.room[edge] > 0 and level[self.to[edge]] < 0:
                    level[self.to[edge]] = level[at] + 1
                    queue.append(self.to[edge])
        return level

    def _push(self, source: int, sink: int, level: list[int], begin: list[int]) -> int:
        """Push flow along one path of the level graph; 0 when there is none left."""
        path: list[int] = []
        at = source
        while at != sink:
            edges = self.out[at]
            while begin[at] < len(edges):
                edge = edges[begin[at]]
                if self.room[edge] > 0 and level[self.to[edge]] == level[at] + 1:
                    break
                begin[at] += 1
            else:
                if not path:
                    return 0
                at = self.to[path.pop() ^ 1]
                begin[at] += 1
                continue
            path.append(edge)
            at = self.to[edge]
        least = min(self.room[edge] for edge in path)
        for edge in path:
            self.room[edge] -= least
            self.room[edge ^ 1] += least
        return least
