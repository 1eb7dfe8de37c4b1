"""A graph as it was read: the graph, and what its file calls the nodes."""

from dataclasses import dataclass
from typing import TypeAlias

from tightrope.core import Graph, OpId
from tightrope.core.provenance import Provenance

NodeId: TypeAlias = int | str


@dataclass(frozen=True, slots=True)
class Source:
    """A graph and where it comes from.

    Attributes:
        graph: in base order.
        nodes: for every op, its node in the file; for a log, the number of its call.
        format: of the file: ``tightrope``, or as its plug-in calls it.
        provenance: the code that it was captured from, where it was captured just before.
    """

    graph: Graph
    nodes: tuple[NodeId, ...]
    format: str
    provenance: Provenance | None = None

    @property
    def placed(self) -> bool:
        """Whether a budget for it counts planned addresses; the others' rule counts live bytes."""
        return self.format == "tightrope"

    def node(self, op: OpId) -> NodeId:
        """Name an op, or the op that a replay belongs to, as the file does."""
        if op < len(self.nodes):
            return self.nodes[op]
        return next(self.nodes[base.id] for base in self.graph.ops if base.variant == op)
