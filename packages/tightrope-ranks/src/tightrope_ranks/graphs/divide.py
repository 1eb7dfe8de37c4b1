"""Divide a graph over ranks: who owns which node, which rows travel, and what each rank computes.

Idea        METIS finds parts that few edges join. A node is central if all its edges come from its own rank.
Source      Karypis & Kumar, SIAM J. Sci. Comput. 1998.
Guarantee   Every node has one owner and no part is empty.
Complexity  Linear in edges.
Gaps        METIS counts edges, and not the rows that travel.
"""

from typing import Any

import numpy as np

from tightrope.core import TightropeError
from tightrope.core.units import is_whole, shown
from tightrope_ranks.values.graphs import BlockEdges, GraphPart, NodeGraph, Route

MOST_RANKS = 256


def divide(graph: NodeGraph, ranks: int, parts: Any = None) -> tuple[np.ndarray, str]:
    """Give each node's owner, (N,), and what chose them; ``parts`` are owners that were chosen elsewhere.

    Raises:
        TightropeError: there are too few nodes, pymetis is not installed, or a part that was given is empty
            or unknown.
    """
    num = graph.num_nodes
    most = min(MOST_RANKS, num)
    if not is_whole(ranks) or not 1 <= ranks <= most:
        raise TightropeError(f"{num} nodes cannot be divided over {shown(ranks)} ranks; from 1 to {most}.")
    if parts is None and ranks > 1:
        owner, name = _metis(graph, ranks), "metis"
    else:
        owner, name = np.asarray(np.zeros(num, np.int64) if parts is None else parts), "given"
        if owner.shape != (num,) or owner.dtype.kind not in "iu" or owner.min() < 0 or owner.max() >= ranks:
            raise TightropeError(f"parts must be {num} integers from 0 to {ranks - 1}, one for each node.")
    counts = np.bincount(owner, minlength=ranks)
    if not counts.all():
        raise TightropeError(f"part {int(counts.argmin())} of {ranks} has no node. Use fewer ranks.")
    return owner.astype(np.int64), name


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
    rows, weights = ([dict[int, np.ndarray]() for _ in nodes] for _ in range(2))
    parts = []
    for rank, mine in enumerate(nodes):
        row, begin, into = place.copy(), len(mine), owner[target] == rank
        far = into & (owner[source] != rank)
        squares = np.bincount(source[far], weight[far] ** 2, minlength=num)
        for number, route in enumerate(routes):
            if route.target == rank:
                which = np.array(route.rows)
                row[which] = begin + np.arange(len(which))
                rows[rank][number], rows[route.source][number] = row[which] - len(mine), place[which]
                weights[route.source][number] = squares[which]
                begin += len(which)
        central = int(inside[mine].sum())
        near, mixed = (
            BlockEdges(row[source[k]], place[target[k]] - first, weight[k], first, last - first, end)
            for k, first, last, end in (
                (into & inside[target], 0, central, len(mine)),
                (into & ~inside[target], central, len(mine), begin),
            )
        )
        parts.append(GraphPart(rank, mine, near, mixed, begin - len(mine), rows[rank], weights[rank]))
    return parts


def _metis(graph: NodeGraph, ranks: int) -> np.ndarray:
    try:
        import pymetis  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise TightropeError(
            "dividing a graph needs pymetis. Run pip install 'tightrope-ranks[graphs]', or give parts."
        ) from error
    num, (source, target) = graph.num_nodes, graph.edges[:, graph.edges[0] != graph.edges[1]]
    keys = np.unique(np.concatenate([source * num + target, target * num + source]))
    begin = np.searchsorted(keys, np.arange(num + 1) * num)
    near = pymetis.CSRAdjacency(begin.tolist(), (keys % num).tolist())
    owner = np.asarray(pymetis.part_graph(ranks, near)[1])
    for part in range(ranks):  # of tiny graphs METIS leaves parts empty
        if not (owner == part).any():
            owner[np.flatnonzero(owner == np.bincount(owner).argmax())[0]] = part
    return owner
