"""Messages of a graph that is divided over ranks: which rows travel, in how many bits, and what is held.

A node's row lives on its owner. A rank that has an edge from a node of another rank needs that row in front
of each layer; the gradient of the row goes back the same way. Rows that a rank got are its halo.
"""

from dataclasses import dataclass

import msgspec
import numpy as np

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
        divided_by: what chose the owners: metis or given.
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


@dataclass(frozen=True, slots=True)
class NodeGraph:
    """A graph whose nodes are to be classified.

    Attributes:
        edges: (2, E), from a node and to a node, int64.
        features: (N, D), float32.
        labels: (N,), int64; of nodes in no mask they are not read.
        train: (N,), bool: nodes of the loss.
        validate: likewise, for an accuracy.
        test: likewise.
    """

    edges: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    validate: np.ndarray
    test: np.ndarray

    @property
    def num_nodes(self) -> int:
        """Count the nodes."""
        return len(self.features)

    @property
    def num_classes(self) -> int:
        """Count the classes."""
        return int(self.labels[self.train | self.validate | self.test].max()) + 1


@dataclass(frozen=True, slots=True)
class BlockEdges:
    """Edges into the nodes of one block, with weights.

    Attributes:
        source: row of each edge's start.
        target: place in the block of each edge's end.
        weight: of the sum over neighbours, float32.
        first: row of the block's first node; its nodes are rows ``first`` to ``first + num - 1``.
        num: nodes of the block.
        rows: in front of the layer.
    """

    source: np.ndarray
    target: np.ndarray
    weight: np.ndarray
    first: int
    num: int
    rows: int


@dataclass(frozen=True, slots=True)
class GraphPart:
    """What one rank has.

    Attributes:
        rank: of it.
        nodes: its nodes, central ones first; their places are their rows.
        central: edges into central nodes; rows are its nodes.
        marginal: edges into the others; rows are its nodes and then its halo.
        halo: how many rows come from others.
        rows: per number of a route from it or to it, the rows that are sent, or their places in the halo.
        weights: per number of a route from it, of each row the sum of the squares of its edges' weights.
    """

    rank: int
    nodes: np.ndarray
    central: BlockEdges
    marginal: BlockEdges
    halo: int
    rows: dict[int, np.ndarray]
    weights: dict[int, np.ndarray]


@dataclass(frozen=True, slots=True)
class WidthProblem:
    """What is chosen.

    Attributes:
        beta: (G,) variance of each group at b bits, times (2^b - 1)^2; floats have none.
        rows: (G,) in each group.
        columns: numbers in a row.
        link: (G,) number of each group's link.
        round: (L,) number of each link's round; rounds are one behind another.
        latency: (L,) seconds of a message.
        pace: (L,) seconds per byte.
        weight: of the variance, in (0, 1); the time has the rest. Each counts in parts of its whole span.
        widths: bits to choose from.
    """

    beta: np.ndarray
    rows: np.ndarray
    columns: int
    link: np.ndarray
    round: np.ndarray
    latency: np.ndarray
    pace: np.ndarray
    weight: float = 0.5
    widths: tuple[int, ...] = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class WidthChoice:
    """What was chosen.

    Attributes:
        bits: (G,) uint8.
        objective: of the problem.
        bound: of every choice's objective.
        variance: of all groups.
        seconds: of all rounds.
    """

    bits: np.ndarray
    objective: float
    bound: float
    variance: float
    seconds: float

    @property
    def gap(self) -> float:
        """By how much a better choice could be below, as a part of the bound."""
        return self.objective / self.bound - 1 if self.bound > 0 else 0.0
