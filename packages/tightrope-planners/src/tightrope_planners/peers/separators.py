"""Balanced separators of a graph, from a tree decomposition.

Idea        Eliminate vertices by least degree; the bag of a vertex is itself and its neighbours then.
            The bags form a tree. A centroid bag splits the vertices that are left into parts of at most
            half the size with no edge between them; each part is split in the same way.
Source      Bodlaender and Koster, Treewidth computations I (2010) for the elimination;
            Robertson and Seymour (1986) for the centroid bag
Guarantee   Every edge joins vertices of one separator, or of two of which one is an ancestor of the
            other. Depth at most 1 + log2(n). No separator is larger than width + 1.
Complexity  O(n w^2 log n) for width w
Gaps        Least degree is not always the treewidth; it is on k-trees.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decomposition:
    """Bags of a tree decomposition.

    Attributes:
        bags: of each vertex v, v first.
        up: the bag next to that of v on the way to the root, -1 for roots.
        width: largest bag minus one.
    """

    bags: tuple[tuple[int, ...], ...]
    up: tuple[int, ...]
    width: int


@dataclass(frozen=True, slots=True)
class Separators:
    """A tree of separators.

    Attributes:
        members: vertices of each separator.
        parent: separator above, -1 for the roots.
        level: 0 for the roots.
        of: separator of each vertex.
        width: of the decomposition behind it.
    """

    members: tuple[tuple[int, ...], ...]
    parent: tuple[int, ...]
    level: tuple[int, ...]
    of: tuple[int, ...]
    width: int


def decompose(neighbours: Sequence[set[int]]) -> Decomposition:
    """Decompose an undirected graph by eliminating the vertex of least degree.

    Example:
        >>> decompose([{1}, {0, 2}, {1}]).width
        1
    """
    adjacent = [set(others) for others in neighbours]
    queue = [(len(others), v) for v, others in enumerate(adjacent)]
    heapq.heapify(queue)
    bags: list[tuple[int, ...]] = [()] * len(adjacent)
    rank = [0] * len(adjacent)
    for turn in range(len(adjacent)):
        degree, v = heapq.heappop(queue)
        while degree != len(adjacent[v]) or bags[v]:
            degree, v = heapq.heappop(queue)
        rank[v] = turn
        around = adjacent[v]
        bags[v] = (v, *sorted(around))
        for other in around:
            adjacent[other] |= around
            adjacent[other] -= {other, v}
            heapq.heappush(queue, (len(adjacent[other]), other))
    up = tuple(min(bag[1:], key=rank.__getitem__, default=-1) for bag in bags)
    return Decomposition(tuple(bags), up, max(map(len, bags), default=1) - 1)


def separators(neighbours: Sequence[set[int]]) -> Separators:
    """Split a graph by centroid bags, down to single vertices."""
    bags = decompose(neighbours)
    return _Splitter(bags).split()


class _Splitter:
    """The tree of bags, and which vertices have no separator yet."""

    def __init__(self, bags: Decomposition) -> None:
        self.bags = bags
        self.tree: list[list[int]] = [[] for _ in bags.bags]
        for v, above in enumerate(bags.up):
            if above >= 0:
                self.tree[v].append(above)
                self.tree[above].append(v)
        self.of = [-1] * len(bags.bags)
        self.members: list[tuple[int, ...]] = []
        self.parent: list[int] = []
        self.level: list[int] = []

    def split(self) -> Separators:
        waiting = [(root, -1) for root, above in enumerate(self.bags.up) if above < 0]
        while waiting:
            start, parent = waiting.pop()
            nodes, above = self._component(start)
            weight = sum(self.of[v] < 0 for v in nodes)
            if weight == 0:
                continue
            centre = self._centroid(nodes, above, weight)
            number = self._separate(centre, set(nodes), parent)
            waiting += [(v, number) for v in self.tree[centre]]
            for v in self.tree[centre]:
                self.tree[v].remove(centre)
            self.tree[centre] = []
        return Separators(
            tuple(self.members), tuple(self.parent), tuple(self.level), tuple(self.of), self.bags.width
        )

    def _component(self, start: int) -> tuple[list[int], dict[int, int]]:
        """List the bags that hang together with ``start``, each after the one that it was reached from."""
        above = {start: -1}
        nodes = [start]
        for v in nodes:
            for other in self.tree[v]:
                if other != above[v]:
                    above[other] = v
                    nodes.append(other)
        return nodes, above

    def _centroid(self, nodes: list[int], above: dict[int, int], weight: int) -> int:
        below = {v: int(self.of[v] < 0) for v in nodes}
        largest = dict.fromkeys(nodes, 0)
        for v in reversed(nodes):
            if above[v] >= 0:
                below[above[v]] += below[v]
                largest[above[v]] = max(largest[above[v]], below[v])
        return min(nodes, key=lambda v: (max(largest[v], weight - below[v]), v))

    def _separate(self, centre: int, nodes: set[int], parent: int) -> int:
        """Make the bag of ``centre`` a separator: its vertices of this part that have none yet."""
        members = tuple(v for v in self.bags.bags[centre] if self.of[v] < 0 and v in nodes)
        number = len(self.members)
        for v in members:
            self.of[v] = number
        self.members.append(members)
        self.parent.append(parent)
        self.level.append(0 if parent < 0 else self.level[parent] + 1)
        return number
