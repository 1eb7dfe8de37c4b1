"""Plan the messages of a graph over ranks: owners, routes, widths and what is held."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from msgspec.structs import replace as changed

from tightrope.core import Bytes, TightropeError, parse_bytes
from tightrope.core.units import shown
from tightrope_ranks.compress.queue import Link
from tightrope_ranks.compress.rows import WIDTHS
from tightrope_ranks.graphs.data import read_graph
from tightrope_ranks.graphs.divide import divide, routes_of
from tightrope_ranks.graphs.layers import MODELS, READS_HALO
from tightrope_ranks.graphs.traffic import Keyed, RowTraffic, choose_holds, peak, sums_of, uniform
from tightrope_ranks.graphs.widths import choose_widths
from tightrope_ranks.values.graphs import GraphPlan, NodeGraph, RowMessage, WidthProblem

WARM: Final = 8
"""Bits of all rows until ranges are known."""


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """How a graph is trained on.

    Attributes:
        model: gcn, sage or gat.
        hidden: columns between layers.
        layers: how many, at most 8.
        epochs: over the whole graph.
        rate: of Adam.
        bits: 2, 4, 8 or 32 (float) for all rows; None = chosen for groups of rows.
        weight: of the error against time where bits are chosen, in (0, 1).
        group: rows that share a choice.
        every: epochs between choices; the first is after five.
        limit: of the bytes that messages and halos of a rank take, such as "64MiB"; None = any.
        link: holds messages to a rate in user space; None = as fast as they go.
        seed: of parameters and rounding.
        overlap: whether central nodes are computed while messages are on the way.
        silence: seconds that a rank waits for a message before it ends with an error.
    """

    model: str = "gcn"
    hidden: int = 64
    layers: int = 3
    epochs: int = 50
    rate: float = 0.01
    bits: int | None = None
    weight: float = 0.5
    group: int = 100
    every: int = 50
    limit: Bytes | str | None = None
    link: Link | None = None
    seed: int = 0
    overlap: bool = True
    silence: float = 60.0


def check_options(options: GraphOptions) -> None:
    """Refuse options that mean nothing."""
    if options.model not in tuple(MODELS):
        raise TightropeError(f"there is no model {shown(options.model)}; there are {', '.join(MODELS)}.")
    if options.bits not in (None, *WIDTHS):
        raise TightropeError(f"bits is {shown(options.bits)}; rows have 2, 4, 8 or 32 bits; None = chosen.")
    counts = {"hidden": 65536, "layers": 8, "epochs": 10**6, "group": 10**9, "every": 10**6, "seed": 2**31}
    for name, most in counts.items():
        value = getattr(options, name)
        if type(value) is not int or not (name != "seed") <= value <= most:
            raise TightropeError(f"{name} is {shown(value)}; it must be a whole number, at most {most}.")
    for name, below in (("weight", 1.0), ("rate", float("inf")), ("silence", 3600.0)):
        value = getattr(options, name)
        if not isinstance(value, float | int) or not 0 < value < below:
            raise TightropeError(f"{name} is {shown(value)}; it must be above 0 and below {below}.")


def plan(graph: Any, ranks: int, options: GraphOptions | None = None, *, parts: Any = None) -> GraphPlan:
    """Plan which rows travel between ranks, in how many bits, and what each rank holds.

    Args:
        graph: as `tightrope_ranks.graphs.train` takes it.
        ranks: how many.
        options: of the training; where bits are chosen, the plan is that of the first epochs.
        parts: rank of each node, (N,); None = by METIS, which needs ``pymetis``.

    Returns:
        The plan, which `tightrope_ranks.judge.graphs.check_graph_plan` accepts.

    Raises:
        TightropeError: something is wrong with the graph or the options.
        InfeasibleError: the limit cannot be held; names the smallest that works.

    Example:
        >>> from types import SimpleNamespace
        >>> ring = np.stack([np.arange(8), (np.arange(8) + 1) % 8])
        >>> graph = SimpleNamespace(
        ...     edge_index=ring, x=np.eye(8), y=np.arange(8) % 2, train_mask=np.ones(8, bool)
        ... )
        >>> made = plan(graph, 2, GraphOptions(bits=4, hidden=16, layers=2), parts=np.arange(8) // 4)
        >>> made.routes
        (Route(source=0, target=1, rows=(3,)), Route(source=1, target=0, rows=(7,)))
        >>> made.sent  # one row of 16 numbers in 4 bits forward, and one backward
        (28, 28)
    """
    options = options or GraphOptions()
    check_options(options)
    graph = read_graph(graph)
    owner, divided_by = divide(graph, ranks, parts)
    columns, reads = columns_of(graph, options)[:-1], options.model in READS_HALO
    limit = None if options.limit is None else parse_bytes(options.limit, name="limit")
    draft = GraphPlan(
        ranks, divided_by, tuple(owner.tolist()), columns, (reads,) * len(columns),
        routes_of(graph, owner, ranks), (), (), (), (), limit,
    )  # fmt: skip
    traffic = RowTraffic(draft, uniform(draft, options.bits or WARM))
    return complete(changed(draft, holds=choose_holds(traffic)), traffic.widths, options.link)


def columns_of(graph: NodeGraph, options: GraphOptions) -> tuple[int, ...]:
    """List the columns in front of each layer, and the classes."""
    return (graph.features.shape[1], *[options.hidden] * (options.layers - 1), graph.num_classes)


def complete(
    draft: GraphPlan, widths: Keyed, link: Link | None = None, bound: tuple[float, float] = (0, 0)
) -> GraphPlan:
    """Give a plan its messages and what follows from them."""
    traffic = RowTraffic(draft, widths)
    sent, seconds, messages = np.zeros(draft.ranks, np.int64), 0.0, []
    for key, sizes in traffic.sizes.items():
        first, again = (traffic.going(key, again=again) for again in (False, True))
        messages += [RowMessage(*key, k, widths[key][k].tobytes(), int(sizes[k])) for k in first]
        for those in (first, again):
            wire = traffic.by_sender(key, those)
            sent += wire
            seconds += span(link, int(wire.max())) if link is not None and those else 0.0
    peaks = tuple(
        peak(sums_of(traffic, rank, draft.holds), traffic.reads, mine)
        for rank, mine in enumerate(draft.holds)
    )
    return changed(
        draft, messages=tuple(messages), peaks=peaks, sent=tuple(sent.tolist()), seconds=seconds, bound=bound
    )


def span(link: Link, size: Bytes) -> float:
    """Give the seconds of a message."""
    return link.latency + (size / link.rate if link.rate else 0.0)


def rechoose(
    made: GraphPlan, beta: Keyed, link: Link, options: GraphOptions
) -> tuple[Keyed, tuple[float, float]]:
    """Choose bits of rows by their sensitivity ``beta``; give these, and sums of bounds and of objectives."""
    widths: Keyed = {}
    bound = found = 0.0
    for (layer, backward), those in beta.items():
        bits = widths[layer, backward] = [np.empty(len(values), np.uint8) for values in those]
        groups = [
            (number, rows)
            for number, values in enumerate(those)
            for rows in np.array_split(np.argsort(-values, kind="stable"), -(-len(values) // options.group))
        ]
        if not groups:  # no rank needs anything of another
            continue
        senders = [route.target if backward else route.source for route in made.routes]
        problem = WidthProblem(
            beta=np.array([those[number][rows].sum() for number, rows in groups]),
            rows=np.array([len(rows) for _, rows in groups]),
            columns=made.columns[layer],
            link=np.array([senders[number] for number, _ in groups]),
            round=np.zeros(made.ranks, np.int64),
            latency=np.full(made.ranks, link.latency),
            pace=np.full(made.ranks, 1 / link.rate if link.rate else 1e-9),
            weight=options.weight,
        )
        choice = choose_widths(problem)
        bound, found = bound + choice.bound, found + choice.objective
        for (number, rows), width in zip(groups, choice.bits, strict=True):
            bits[number][rows] = width
    return widths, (bound, found)
