"""Graphs of Moccasin and Checkmate in networkx node-link JSON.

Two dialects are read. Training graphs have nodes with ``id``, ``cost_ram`` (bytes), ``cost_cpu`` and
``backward``, in topological order, and links with ``source`` and ``target``. Random graphs have nodes
with ``name``, ``out_cost`` and ``duration``, links with the keys ``"0"`` and ``"1"``, and their order in
the graph's attribute ``order``.

Their memory rule, which the result follows: a node's output is charged to the byte from its own event
to the last event that reads it; outputs that nothing reads are gone after their own event; parameters
are not in the graph.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from tightrope.core import Graph, Kind, Op, OpId, Phase, PlanFileError, Storage
from tightrope.core.json_text import MAX_INT, check_values, parse_json, quote
from tightrope.formats.read import NodeId, Source, is_node_link

MAX_NODES: Final = 200_000
MAX_LINKS: Final = 5_000_000
_IDS: Final = ("id", "name")
_SIZES: Final = ("cost_ram", "out_cost")
_TIMES: Final = ("cost_cpu", "duration")
_ENDS: Final = (("source", "target"), ("0", "1"))


def load_node_link(data: bytes, *, name: str = "") -> Source | None:
    """Read a file; None where it is not a node-link graph.

    Args:
        data: JSON.
        name: not used: the file has one.

    Raises:
        PlanFileError: it is not JSON, or a graph with something missing or wrong.
    """
    del name
    tree = parse_json(data, "graph")
    return read_node_link(tree) if is_node_link(tree) else None


def read_node_link(tree: Mapping[str, Any]) -> Source:
    """Turn a parsed node-link file into a graph.

    Args:
        tree: the parsed file, see `tightrope.core.json_text.parse_json`.

    Returns:
        One op and one storage per node, in the file's order of computation; times in the file's unit,
        read as nanoseconds.

    Raises:
        PlanFileError: names what is missing or wrong, with its place in the file.

    Example:
        >>> nodes = [{"id": 7, "cost_ram": 64, "cost_cpu": 3}, {"id": 9, "cost_ram": 32, "cost_cpu": 1}]
        >>> found = read_node_link({"nodes": nodes, "links": [{"source": 7, "target": 9}]})
        >>> found.nodes, found.graph.ops[1].reads
        ((7, 9), (0,))
    """
    check_values(tree, "graph")
    attributes = tree.get("graph", {})
    nodes = _rows(tree, "nodes", MAX_NODES)
    links = _rows(tree, "links" if "links" in tree else "edges", MAX_LINKS)
    if not isinstance(attributes, dict) or not nodes:
        _refuse("$.graph" if nodes else "$.nodes", attributes if nodes else nodes, "an object with nodes")
    if tree.get("directed", True) is not True or tree.get("multigraph", False) is not False:
        _refuse("$.directed, $.multigraph", tree.get("directed"), "a directed graph without parallel edges")
    ids = [_identity(node, position) for position, node in enumerate(nodes)]
    by_id = dict(zip(ids, nodes, strict=True))
    if len(by_id) != len(nodes):
        _refuse("$.nodes", _twice(ids), "the identity of one node alone")
    order, place = _order(attributes, ids), {node: number for number, node in enumerate(ids)}
    reads = _reads(links, {node: op for op, node in enumerate(order)})
    storages, ops = [], []
    for op, node in enumerate(order):
        backward = by_id[node].get("backward", False) is True
        label, where = by_id[node].get("name", node), f"$.nodes[{place[node]}]"
        storages.append(
            Storage(op, _number(by_id[node], _SIZES, where), _kind(backward), alignment=1, label=str(label))
        )
        phase = Phase.BACKWARD if backward else Phase.FORWARD
        time = _number(by_id[node], _TIMES, where)
        title = label if isinstance(label, str) else f"node {label}"
        ops.append(Op(op, str(label), title, tuple(sorted(reads[op])), (op,), ns=time, phase=phase))
    if sum(storage.bytes for storage in storages) > MAX_INT or sum(op.ns for op in ops) > MAX_INT:
        _refuse("$.nodes", nodes, "at most 2^62 bytes and 2^62 units of time in all")
    name = attributes.get("name", "")
    graph = Graph(tuple(ops), tuple(storages), name=name if isinstance(name, str) else "", alignment=1)
    return Source(graph, tuple(order), "node-link")


def _kind(backward: bool) -> Kind:
    return Kind.GRADIENT if backward else Kind.ACTIVATION


def _rows(tree: Mapping[str, Any], field: str, most: int) -> list[dict[str, Any]]:
    rows = tree.get(field)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        _refuse(f"$.{field}", rows, "an array of objects")
    if len(rows) > most:
        _refuse(f"$.{field}", rows, f"an array of at most {most} items")
    return rows


def _identity(node: Mapping[str, Any], position: int) -> NodeId:
    for key in _IDS:
        if key in node:
            found = node[key]
            if isinstance(found, bool) or not isinstance(found, int | str):
                _refuse(f"$.nodes[{position}].{key}", found, "an integer or a text")
            return found
    _refuse(f"$.nodes[{position}]", node, "a node with an id or a name")


def _number(node: Mapping[str, Any], keys: Sequence[str], where: str) -> int:
    for key in keys:
        if key in node:
            value = node[key]
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_INT:
                _refuse(f"{where}.{key}", value, "a whole number from 0 to 2^62 (scale fractions up)")
            return value
    _refuse(where, node, f"a node with {' or '.join(keys)}")


def _order(attributes: Mapping[str, Any], ids: list[NodeId]) -> list[NodeId]:
    order = attributes.get("order", ids)
    if not isinstance(order, list) or any(isinstance(n, bool) or not isinstance(n, int | str) for n in order):
        _refuse("$.graph.order", order, "an array of nodes")
    if len(order) != len(ids) or set(order) != set(ids):
        _refuse("$.graph.order", order, f"each of the {len(ids)} nodes once")
    return order


def _reads(links: list[dict[str, Any]], position: Mapping[NodeId, OpId]) -> list[set[OpId]]:
    reads: list[set[OpId]] = [set() for _ in position]
    for number, link in enumerate(links):
        where = f"$.links[{number}]"
        ends = next((pair for pair in _ENDS if all(key in link for key in pair)), None)
        if ends is None:
            _refuse(where, link, "an object with source and target")
        for key in ends:
            node = link[key]
            if isinstance(node, bool) or not isinstance(node, int | str) or node not in position:
                _refuse(f"{where}.{key}", node, "one of the nodes")
        source, target = link[ends[0]], link[ends[1]]
        if position[source] >= position[target]:
            _refuse(where, [source, target], f"an edge along the order; node {target!r} comes first")
        if position[source] in reads[position[target]]:
            _refuse(where, [source, target], "the only edge between its nodes")
        reads[position[target]].add(position[source])
    return reads


def _twice(ids: list[NodeId]) -> NodeId:
    seen: set[NodeId] = set()
    return next(node for node in ids if node in seen or seen.add(node))  # type: ignore[func-returns-value]


def _refuse(where: str, value: object, must: str) -> NoReturn:
    raise PlanFileError(f"graph: {where} = {quote(value)}: must be {must}.")
