"""The command ``graphs plan``: which rows travel between ranks, and what each rank holds."""

import io
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Final

import numpy as np
import typer

from tightrope.cli.output import console, emit_json
from tightrope.cli.sound import check_outputs
from tightrope.core import PlanFileError, TightropeError, format_bytes
from tightrope.core.files import read_file
from tightrope.core.units import Bytes, shown
from tightrope.core.writing import write_whole
from tightrope_ranks.values.graphs import GraphPlan, NodeGraph

_EXAMPLES: Final = """\b
Examples:
  tightrope graphs plan edges.csv --ranks 4 --bytes 64MiB
  tightrope graphs plan graph.npz --ranks 4 --model gat --bits 4 -o plan.json --page plan.html
  tightrope graphs plan edges.csv --nodes 100000 --features 128 --ranks 8 --json"""
_ARRAYS: Final = ("edge_index", "x", "y", "train_mask", "val_mask", "test_mask")
_UNPACKED: Final[Bytes] = 2**30
_MOST_NODES: Final = 2**22
_MOST_TALKS: Final = 2000


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    graphs = typer.Typer(
        help="Training of graph networks over ranks: parts, messages, and bytes that ranks hold.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    graphs.callback()(lambda: None)  # a group, though it has one command
    graphs.command("plan", short_help="Plan messages and halos of a graph.", epilog=_EXAMPLES)(plan_command)
    app.add_typer(graphs, name="graphs", short_help="Plan training on a graph over ranks.")


def plan_command(
    graph: Annotated[
        Path,
        typer.Argument(metavar="GRAPH", help="Edges as CSV, a line each: from, to. Or arrays in an .npz."),
    ],
    ranks: Annotated[int, typer.Option(min=1, max=256, help="Processes that divide the graph.")],
    bytes_limit: Annotated[
        str | None, typer.Option("--bytes", help="Of messages and halos of a rank; default: no limit.")
    ] = None,
    model: Annotated[str, typer.Option(help="gcn, sage or gat.")] = "gcn",
    hidden: Annotated[int, typer.Option(min=1, max=65536, help="Columns between layers.")] = 64,
    layers: Annotated[int, typer.Option(min=1, max=8, help="How many.")] = 3,
    bits: Annotated[int, typer.Option(help="Of a number that travels: 2, 4, 8 or 32.")] = 8,
    features: Annotated[
        int, typer.Option(min=1, max=65536, help="Numbers of a node, where the file has no x.")
    ] = 64,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=_MOST_NODES, help="How many; default: those that occur.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the plan here as JSON.")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="Write a page with messages of each rank here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Divide a graph over ranks, plan messages and halos within bytes per rank, and judge the plan.

    An .npz has edge_index (2, E), and perhaps x, y and masks, as torch_geometric names them. Nothing is
    trained. Exit code 0: the plan holds; 3: the bytes cannot be held; 2: error.
    """
    check_outputs([output, page], [graph])
    data = _read(graph, nodes)
    import msgspec

    from tightrope_ranks.graphs import GraphOptions, plan
    from tightrope_ranks.graphs.data import read_graph
    from tightrope_ranks.judge.graphs import check_graph_plan

    try:
        read = read_graph(data)
    except TightropeError as error:
        raise PlanFileError(f"{str(graph)!r}: {error}") from error
    if data.bare:
        read = replace(read, features=np.broadcast_to(np.zeros(1, np.float32), (read.num_nodes, features)))
    options = GraphOptions(model=model, hidden=hidden, layers=layers, bits=bits, limit=bytes_limit)
    made = plan(read, ranks, options)
    check_graph_plan(read.edges.tolist(), made)
    rows, least = rank_rows(read, made), least_sent(made)
    if output is not None:
        write_whole(output, msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")
    if page is not None:
        write_whole(page, graph_page(graph.name, made, rows, bits))
    if json:
        emit_json({"plan": made, "least_sent": least, "ranks": rows})
        return
    lines = [
        f"{read.num_nodes:,} nodes and {read.edges.shape[1]:,} edges on {ranks} ranks, {made.divided_by}: "
        f"{format_bytes(sum(made.sent))} an epoch; with these parts no widths send less than "
        f"{format_bytes(least)}; judged"
    ]
    for row in rows:
        limit = f" of {format_bytes(row['limit'])}" if row["limit"] else ""
        lines.append(
            f"  rank {row['rank']}: {row['nodes']:,} nodes, {row['central']:,} central, {row['halo']:,} rows "
            f"of others; at most {format_bytes(row['bytes'])}{limit}; sends {format_bytes(row['sent'])}; "
            f"halos {', '.join(row['holds'])}"
        )
    for line in lines:
        console().print(line, markup=False, soft_wrap=True)


def _read(path: Path, nodes: int | None) -> Any:
    """Read a graph; every node is trained on where no mask says which.

    Raises:
        TightropeError: the file is no graph; says what and where.
    """
    data = read_file(path)
    found = _unpacked(path, data) if data.startswith(b"PK") else {"edge_index": _edges(path, data, nodes)}
    edges, bare = found["edge_index"], "x" not in found
    if bare:
        num = nodes or (int(edges.max(initial=0)) + 1 if edges.dtype.kind in "iu" else 1)
        if num > _MOST_NODES:
            raise PlanFileError(
                f"{str(path)!r}: node {num - 1} is too far; nodes are 0 to {_MOST_NODES - 1}."
            )
        found["x"] = np.zeros((num, 1), np.float32)
    num = len(found["x"]) if found["x"].ndim else 0
    if nodes not in (None, num):
        raise TightropeError(f"--nodes {nodes}: {str(path)!r} has {num} rows of features. Leave --nodes out.")
    defaults = {"y": np.zeros(num, np.int64), "train_mask": np.ones(num, bool)}
    return SimpleNamespace(**{**defaults, **found}, bare=bare)


def _unpacked(path: Path, data: bytes) -> dict[str, np.ndarray]:
    """Take the arrays that a graph has from an .npz; nothing is unpickled."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            size = sum(one.file_size for one in packed.infolist())
        if size <= _UNPACKED:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                found = {name: np.asarray(arrays[name]) for name in _ARRAYS if name in arrays}
    except Exception as error:  # what a damaged archive raises is numpy's and zipfile's affair
        raise PlanFileError(
            f"{str(path)!r} cannot be read as .npz: {shown(str(error))}. Write it by numpy.savez."
        ) from error
    if size > _UNPACKED:
        raise PlanFileError(f"{str(path)!r} unpacks to {size} bytes; at most {_UNPACKED} are read.")
    if "edge_index" not in found:
        raise PlanFileError(f"{str(path)!r} has no edge_index: give it (2, E), of node numbers.")
    return found


def _edges(path: Path, data: bytes, nodes: int | None) -> np.ndarray:
    """Read two nodes a line; the first line may be a header."""
    pairs: list[list[int]] = []
    most = (nodes or _MOST_NODES) - 1
    for number, line in enumerate(data.splitlines(), 1):
        try:
            pair = [int(text) for text in line.decode("ascii").split(",")]
        except ValueError:
            pair = []
        if len(pair) == 2 and 0 <= min(pair) <= max(pair) <= most:
            pairs.append(pair)
        elif len(pair) == 2:
            raise PlanFileError(
                f"{str(path)!r}, line {number}: the edge goes from {shown(pair[0])} to {shown(pair[1])}; "
                f"nodes are 0 to {most}."
            )
        elif line.strip() and number > 1:
            raise PlanFileError(f"{str(path)!r}, line {number}: {line[:40]!r}. Give two nodes, such as 0,7.")
    if not pairs:
        raise PlanFileError(f"{str(path)!r} has no edges. Give lines such as 0,7: from node 0 to node 7.")
    return np.array(pairs, np.int64).T


def rank_rows(graph: NodeGraph, plan: GraphPlan) -> list[dict[str, Any]]:
    """List what each rank has, holds and sends."""
    owner = np.array(plan.owner)
    source, target = graph.edges
    inside = np.ones(len(owner), bool)
    inside[target[owner[source] != owner[target]]] = False
    return [
        {
            "rank": rank,
            "nodes": int((owner == rank).sum()),
            "central": int((inside & (owner == rank)).sum()),
            "halo": sum(len(route.rows) for route in plan.routes if route.target == rank),
            "holds": plan.holds[rank],
            "bytes": plan.peaks[rank],
            "limit": plan.limit,
            "sent": plan.sent[rank],
        }
        for rank in range(plan.ranks)
    ]


def least_sent(plan: GraphPlan) -> Bytes:
    """Add up the fewest bytes that an epoch sends with these parts: all rows in 2 bits, and none again."""
    from tightrope_ranks.graphs.traffic import RowTraffic, uniform

    sizes = RowTraffic(plan, uniform(plan, 2)).sizes
    return int(sum(size.sum() for (layer, _), size in sizes.items() if layer))


def graph_page(name: str, plan: GraphPlan, rows: list[dict[str, Any]], bits: int) -> str:
    """Draw a page: messages of an epoch, one behind another, then bytes per rank, then who talks to whom."""
    from tightrope_ranks.graphs.traffic import RowTraffic, uniform
    from tightrope_shared.draw import Bar, Lane, draw_lanes, work_page

    traffic, at = RowTraffic(plan, uniform(plan, bits)), 0
    order = [((layer, False), False) for layer in range(len(plan.columns))]
    for layer in reversed(range(len(plan.columns))):
        order += [((layer, False), True), *([((layer, True), False)] if layer else [])]
    bars: list[list[Bar]] = [[] for _ in rows]
    talks: Counter[tuple[int, int]] = Counter()
    for key, again in order:
        routes = traffic.going(key, again=again)
        what = f"{'gradients' if key[1] else 'rows'} of layer {key[0]}{', again' if again else ''}"
        sent = traffic.by_sender(key, routes).tolist()
        for rank, size in enumerate(sent):
            if size:
                tip = f"{what}: {format_bytes(size)}"
                bars[rank].append(Bar(at / 1024, (at + size) / 1024, what, tip))
        for k in routes:
            a, b = plan.routes[k].source, plan.routes[k].target
            talks[(b, a) if key[1] else (a, b)] += int(traffic.sizes[key][k])
        at += max(sent)
    lanes = [Lane(f"rank {rank}", tuple(those)) for rank, those in enumerate(bars)]
    limit = format_bytes(plan.limit) if plan.limit else "-"
    held = [
        [f"rank {row['rank']}", f"{row['nodes']:,}", f"{row['central']:,}", f"{row['halo']:,}",
         ", ".join(row["holds"]), format_bytes(row["bytes"]), limit, format_bytes(row["sent"])]
        for row in rows
    ]  # fmt: skip
    pairs = [
        [f"rank {a}", f"rank {b}", format_bytes(size)] for (a, b), size in talks.most_common(_MOST_TALKS)
    ]
    return work_page(
        f"{name[:80]} on {plan.ranks} ranks",
        [("Messages of an epoch; who sends less waits", draw_lanes(lanes, unit="KiB", title="bytes sent"))],
        [
            (
                "Ranks",
                ("rank", "nodes", "central", "halo rows", "halos", "most bytes", "limit", "sent"),
                held,
            ),
            ("Messages", ("from", "to", "bytes of an epoch"), pairs),
        ],
    )
