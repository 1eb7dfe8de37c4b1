"""Files of another kind: the message says what it is and what reads it."""

import gzip
from pathlib import Path

import pytest

from tests.oracles import random_graph
from tightrope import Plan, PlanFileError
from tightrope.core import Graph
from tightrope.core.codec import dump_graph
from tightrope.formats import read_source

TRACE = b"TRTRACE1 and what follows"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (TRACE, "It is a trace: tightrope trace reads it"),
        (gzip.compress(TRACE, mtime=0), "It is a trace, gzipped: unzip it; tightrope trace reads it"),
        (gzip.compress(b"{}", mtime=0), "It is gzipped: unzip it first"),
        (gzip.compress(TRACE, mtime=0)[:12], "It is gzipped: unzip it first"),
        (b"\x1f\x8bno zip", "It is gzipped"),
        (b"tightrope step 1\0\0\xff", "It is a saved step: tightrope run reads it"),
        (b"PK\x03\x04\xff", "It is a zip file, such as torch.save writes"),
        ("{}".encode("utf-16"), "It is text in UTF-16: write it as UTF-8"),
        (b"import torch", "Give a .* as it was written"),
        (b"", "Give a .* as it was written"),
    ],
)
def test_a_plan_or_graph_of_another_kind_is_named(data: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(data)
    for load in (Plan.load, read_source):
        with pytest.raises(PlanFileError, match=says) as caught:
            load(path)
        assert str(caught.value).count(str(path)) == 1


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (dump_graph(Graph((), ())), "It is a graph: tightrope plan makes a plan of it"),
        (b'{"instructions": []}', "It is an executable: nothing here reads it"),
        (b'{"traceEvents": []}', "It is a profile: tightrope trace reads it"),
        (b'{"events": []}', "schema is missing: .* make the plan again"),
    ],
)
def test_another_kind_of_json_is_named_where_a_plan_is_read(data: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(data)
    with pytest.raises(PlanFileError, match=says):
        Plan.load(path)


def test_our_own_graphs_are_read_and_placed(tmp_path: Path) -> None:
    graph = random_graph(4, num_ops=12)
    file = tmp_path / "net.graph.json"
    file.write_bytes(dump_graph(graph))
    found = read_source(file)
    assert (found.graph, found.nodes, found.placed) == (graph, tuple(range(len(graph.ops))), True)
    with pytest.raises(PlanFileError, match=r"absent\.json"):
        read_source(tmp_path / "absent.json")
