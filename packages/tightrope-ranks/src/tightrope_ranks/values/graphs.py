"""Messages of a graph that is divided over ranks: which rows travel, in how many bits, and what is held.

A node's row lives on its owner. A rank that has an edge from a node of another rank needs that row in front of each
layer; the gradient of the row goes back the same way. Rows that a rank got are its halo.
"""

import msgspec

from tightrope.core.units import Bytes

GRAPH_SCHEMA = 1
HOLDS = ("none", "kept", "packed", "fetched")
"""What becomes of a layer's halo until its backward: not needed; as floats; as it arrived; sent again."""


class Route(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows that one rank needs of another.

    Attributes:
        source: rank that owns them.
        target: rank that needs them.
        rows: numbers of the nodes, ascending.
    """

    source: int
    target: int
    rows: tuple[int, ...]


class RowMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What travels on a route, for one layer, forward or backward.

    Attributes:
        layer: number.
        backward: whether these are gradients, which go from the target of the route to its source.
        route: number.
        widths: bits per number, one byte for each row.
        sent: bytes.
    """

    layer: int
    backward: bool
    route: int
    widths: bytes
    sent: Bytes


class GraphPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All messages of one epoch, and what they take.

    Attributes:
        ranks: how many.
        divided_by: what chose the owners: metis, greedy or given.
        owner: rank of each node.
        columns: numbers in a row, in front of each layer.
        held: whether the backward of a layer reads its halo; False where sums of rows suffice.
        routes: sorted by source and target; none is empty.
        messages: of one epoch.
        holds: per rank and layer, one of `HOLDS`.
        peaks: most bytes that messages and halos of a rank take at once.
        sent: bytes that a rank sends in an epoch; the rows of the input that are kept are sent before.
        limit: of the bytes of ``peaks``; None = any.
        seconds: that an epoch's messages take on the links, forecast; 0 where the links are not known.
        bound: below which no choice of widths has its objective, and the objective itself.
        schema: version of the layout.
    """

    ranks: int
    divided_by: str
    owner: tuple[int, ...]
    columns: tuple[int, ...]
    held: tuple[bool, ...]
    routes: tuple[Route, ...]
    messages: tuple[RowMessage, ...]
    holds: tuple[tuple[str, ...], ...]
    peaks: tuple[Bytes, ...]
    sent: tuple[Bytes, ...]
    limit: Bytes | None = None
    seconds: float = 0.0
    bound: tuple[float, float] = (0.0, 0.0)
    schema: int = GRAPH_SCHEMA
