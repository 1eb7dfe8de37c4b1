"""Read a graph file of any format that is known."""

from pathlib import Path

from tightrope.core.codec import load_graph, read_file
from tightrope.core.files import naming
from tightrope.core.json_text import parse_json
from tightrope.formats.dtr import is_dtr_log, read_dtr_log
from tightrope.formats.node_link import is_node_link, read_node_link
from tightrope.formats.source import Source


def load_source(data: bytes, *, name: str = "") -> Source:
    """Read a graph, telling the format from the content.

    Nothing in the data is executed, and its size is limited.

    Args:
        data: a graph of this package, node-link JSON, or a log of the DTR simulator.
        name: of the graph, where the file gives none.

    Raises:
        PlanFileError: it is none of them, or not well formed; says where.
    """
    if is_dtr_log(data):
        return read_dtr_log(data, name=name)
    if b'"nodes"' in data:
        tree = parse_json(data, "graph")
        if is_node_link(tree):
            return read_node_link(tree)
    graph = load_graph(data)
    return Source(graph, tuple(range(len(graph.ops))), "tightrope")


def read_source(path: str | Path) -> Source:
    """Read a graph file, see `load_source`.

    Raises:
        PlanFileError: there is no such file, or it is not a graph.
    """
    data = read_file(path)
    with naming(path):
        return load_source(data, name=Path(path).stem)
