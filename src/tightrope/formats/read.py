"""Read a graph file of any format that is known.

A format of another distribution is an entry point of the group ``tightrope.formats``. Its value names a
`Reader`. Files of ours are read without a look at what is installed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from tightrope.core import Graph, OpId, PlanFileError
from tightrope.core.codec import load_graph, read_file
from tightrope.core.files import naming
from tightrope.core.json_text import parse_json
from tightrope.core.plugins import absent, installed, loaded
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


GROUP: Final = "tightrope.formats"
KNOWN: Final = {"dtr-log": "a log of the DTR simulator", "node-link": "a graph in node-link JSON"}
"""Formats of the distribution tightrope-planners, installed or not, in words."""
_MAX_LINE: Final = 100_000
_MARK: Final = b'"INSTRUCTION"'

Reader: TypeAlias = Callable[..., Source | None]
"""Takes the bytes of a file, and by ``name`` what to call the graph; None = it is of another format."""


def is_dtr_log(data: bytes) -> bool:
    """Tell whether the first line of a file is an instruction of a log."""
    line = data.lstrip()[:_MAX_LINE].split(b"\n", 1)[0].strip()
    return line.startswith(b"{") and line.endswith(b"}") and _MARK in line


def is_node_link(tree: object) -> bool:
    """Tell whether a parsed file looks like a node-link graph."""
    return isinstance(tree, dict) and "nodes" in tree and ("links" in tree or "edges" in tree)


def load_source(data: bytes, *, name: str = "") -> Source:
    """Read a graph, telling the format from the content.

    Nothing in the data is executed, and its size is limited.

    Args:
        data: a graph of this package, or of a format that a plug-in reads.
        name: of the graph, where the file gives none.

    Raises:
        PlanFileError: it is none of them, or not well formed; says where.
        TightropeError: the plug-in that reads it is not installed.
    """
    if is_dtr_log(data) and (found := _read("dtr-log", data, name)) is not None:
        return found
    if b'"nodes"' in data and (found := _read("node-link", data, name)) is not None:
        return found
    try:
        graph = load_graph(data)
    except PlanFileError:
        for form in installed(GROUP):
            if form not in KNOWN and (found := _read(form, data, name)) is not None:
                return found
        raise
    return Source(graph, tuple(range(len(graph.ops))), "tightrope")


def _read(form: str, data: bytes, name: str) -> Source | None:
    """Ask the plug-in that reads a format; without it, refuse what certainly has that format."""
    others = installed(GROUP)
    if form in others:
        reader: Reader = loaded(f"the format {form}", others[form])
        return reader(data, name=name)
    if form != "node-link" or is_node_link(parse_json(data, "graph")):
        raise absent(f"reading {KNOWN[form]}", "planners")
    return None


def read_source(path: str | Path) -> Source:
    """Read a graph file, see `load_source`.

    Raises:
        PlanFileError: there is no such file, or it is not a graph.
        TightropeError: the plug-in that reads it is not installed.
    """
    data = read_file(path)
    with naming(path):
        return load_source(data, name=Path(path).stem)
