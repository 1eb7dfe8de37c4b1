"""Divide a graph over ranks: who owns which node, which rows travel, and what each rank computes.

Idea        METIS cuts few edges where it is installed. Else nodes join, in breadth-first order, the part that
            has most of their neighbours and room. A node is central if all its edges come from its own rank.
Source      Karypis & Kumar, SIAM J. Sci. Comput. 1998; Stanton & Kliot, KDD 2012 (linear greedy).
Guarantee   Every node has one owner and no part is empty.
Complexity  Linear in edges.
Gaps        The greedy way cuts more edges than METIS; plans say which one was used.
"""

from collections import deque
from typing import Any

import numpy as np

from tightrope.core import TightropeError
from tightrope.core.units import is_whole, shown
from tightrope_ranks.values.graphs import BlockEdges, GraphPart, NodeGraph, Route

MOST_RANKS = 256
_SLACK = 1.03


def divide(graph: NodeGraph, ranks: int, parts: Any = None) -> tuple[np.ndarray, str]:
    """Give each node's owner, (N,), and what chose them; ``parts`` are owners that were chosen elsewhere.

    Raises:
        TightropeError: there are too few nodes, or a part that was given is empty or unknown.
    """
    num = graph.num_nodes
    most = min(MOST_RANKS, num)
    if not is_whole(ranks) or not 1 <= ranks <= most:
        raise TightropeError(f"{num} nodes cannot be divided over {shown(ranks)} ranks; from 1 to {most}.")
    if parts is None:
        owner, name = _found(graph, ranks) if ranks > 1 else (np.zeros(num, np.int64), "given")
    else:
        owner, name = np.asarray(parts), "given"
        if owner.shape != (num,) or owner.dtype.kind not in "iu" or owner.min() < 0 or owner.max() >= ranks:
            raise TightropeError(f"parts must be {num} integers from 0 to {ranks - 1}, one for each node.")
    counts = np.bincount(owner, minlength=ranks)
    if not counts.all():
        raise TightropeError(f"part {int(counts.argmin())} of {ranks} has no node. Use fewer ranks.")
    return owner.astype(np.int64), name


def _found(graph: NodeGraph, ranks: int) -> tuple[np.ndarray, str]:
    begin, near = _neighbours(graph)
    try:
        import pymetis  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return _greedy(begin, near, ranks), "greedy"
    owner = np.asarray(pymetis.part_graph(ranks, pymetis.CSRAdjacency(begin.tolist(), near.tolist()))[1])
    if np.bincount(owner, minlength=ranks).all():
        return owner, "metis"
    return _greedy(begin, near, ranks), "greedy"  # METIS leaves parts of tiny graphs empty


def routes_of(graph: NodeGraph, owner: np.ndarray, ranks: int) -> tuple[Route, ...]:
    """List the rows that ranks need of each other."""
    source, target = graph.edges
    cut = owner[source] != owner[target]
    keys = np.unique((owner[source[cut]] * ranks + owner[target[cut]]) * graph.num_nodes + source[cut])
    pairs, begins = np.unique(keys // graph.num_nodes, return_index=True)
    rows = np.split(keys % graph.num_nodes, begins[1:])
    return tuple(
        Route(int(pair) // ranks, int(pair) % ranks, tuple(those.tolist()))
        for pair, those in zip(pairs, rows, strict=bool(len(pairs)))
    )


def parts_of(graph: NodeGraph, owner: np.ndarray, routes: tuple[Route, ...], model: str) -> list[GraphPart]:
    """Give each rank its nodes, edges and lists of rows.

    gcn and gat have an edge from each node to itself; the weights of gcn are 1 / sqrt(d_i d_j), those of the
    others 1 / d_j, with d = edges into a node.
    """
    num, ranks = graph.num_nodes, int(owner.max()) + 1
    source, target = graph.edges
    if model != "sage":
        other, own = source != target, np.arange(num)
        source, target = np.concatenate([source[other], own]), np.concatenate([target[other], own])
    source, target = np.stack([source, target])[:, np.lexsort((source, target))]
    degree = np.maximum(np.bincount(target, minlength=num), 1).astype(np.float64)
    weight = 1 / np.sqrt(degree[source] * degree[target]) if model == "gcn" else 1 / degree[target]
    weight = weight.astype(np.float32)
    inside = np.ones(num, bool)
    inside[target[owner[source] != owner[target]]] = False
    order = np.lexsort((~inside, owner))  # of each rank: central nodes first
    nodes = np.split(order, np.searchsorted(owner[order], np.arange(1, ranks)))
    place = np.empty(num, np.int64)
    place[order] = np.concatenate([np.arange(len(mine)) for mine in nodes])
    parts = []
    for rank, mine in enumerate(nodes):
        to = {route.target: place[list(route.rows)] for route in routes if route.source == rank}
        of = {route.source: route.rows for route in routes if route.target == rank}
        halo = np.array([row for peer in sorted(of) for row in of[peer]], np.int64)
        row = place.copy()
        row[halo] = len(mine) + np.arange(len(halo))
        into = owner[target] == rank
        far = into & (owner[source] != rank)
        weights = np.bincount(row[source[far]] - len(mine), weight[far] ** 2, minlength=len(halo))
        num_central = int(inside[mine].sum())
        central, marginal = (
            BlockEdges(row[source[k]], place[target[k]] - first, weight[k], first, size, rows)
            for k, first, size, rows in (
                (into & inside[target], 0, num_central, len(mine)),
                (into & ~inside[target], num_central, len(mine) - num_central, len(mine) + len(halo)),
            )
        )
        sends = tuple(to.get(peer, np.zeros(0, np.int64)) for peer in range(ranks))
        receives = tuple(len(of.get(peer, ())) for peer in range(ranks))
        parts.append(GraphPart(rank, mine, central, marginal, sends, receives, weights))
    return parts


def _neighbours(graph: NodeGraph) -> tuple[np.ndarray, np.ndarray]:
    """Give where the neighbours of each node begin, and all of them: once, in both directions."""
    source, target = graph.edges
    apart = source != target
    both = np.concatenate([source[apart], target[apart]]), np.concatenate([target[apart], source[apart]])
    keys = np.unique(both[0] * graph.num_nodes + both[1])
    begin = np.searchsorted(keys, np.arange(graph.num_nodes + 1) * graph.num_nodes)
    return begin, keys % graph.num_nodes


def _greedy(begin: np.ndarray, near: np.ndarray, ranks: int) -> np.ndarray:
    num = len(begin) - 1
    owner, seen, sizes = np.full(num, -1), np.zeros(num, bool), np.zeros(ranks)
    most = max(1.0, np.ceil(num / ranks * _SLACK))
    for start in range(num):
        waiting = deque([] if seen[start] else [start])
        seen[start] = True
        while waiting:
            node = waiting.popleft()
            those = near[begin[node] : begin[node + 1]]
            new = those[~seen[those]]
            seen[new] = True
            waiting.extend(new.tolist())
            placed = owner[those]
            score = (np.bincount(placed[placed >= 0], minlength=ranks) + 1e-3) * (1 - sizes / most)
            if num - int(sizes.sum()) <= int((sizes == 0).sum()):
                score[sizes > 0] = -1.0  # the last nodes are for parts that have none
            owner[node] = int(score.argmax())
            sizes[owner[node]] += 1
    return owner
