"""A graph looks at a storage of the caller through an input that is that storage, and not before it comes."""

import pytest
from msgspec.structs import replace

from tightrope.core import Graph, Op, PlanFileError, Result, Storage, View
from tightrope.core.codec import check_graph
from tightrope.core.graph import RETURN
from tightrope.core.values import Input, Part

X = View(0, "float32", (4,), (1,), input=0)
TANGENT = View(1, "float32", (4,), (1,), input=1)
Y = View(2, "float32", (4,), (1,))
Z = View(3, "float32", (4,), (1,))
GRAPH = Graph(
    (
        Op(0, "a", "aten.neg.default", (0,), (2,), arguments=(X,), results=(Result(-1, Y),)),
        Op(1, "hand over", RETURN, (2,), arguments=(Y,)),
        Op(2, "b", "aten.neg.default", (1,), (3,), arguments=(TANGENT,), results=(Result(-1, Z),)),
    ),
    (Storage(0, 16, external=True), Storage(1, 16, external=True), Storage(2, 16), Storage(3, 16)),
    parts=(Part(2, (Input("x", X),), (Y,)), Part(3, (Input("tangent", TANGENT),), (Z,))),
)


def through(number: int) -> Graph:
    first, *rest = GRAPH.ops
    return replace(GRAPH, ops=(replace(first, arguments=(replace(X, input=number),)), *rest))


def test_the_inputs_of_a_graph_are_well_formed() -> None:
    check_graph(GRAPH)
    check_graph(through(-1))


@pytest.mark.parametrize("number", [1, 2, 10**6, -2])
def test_a_look_through_another_input_is_refused(number: int) -> None:
    with pytest.raises(PlanFileError, match=f"input = {number}: must be -1, or an input so far"):
        check_graph(through(number))


def test_a_read_of_what_a_later_part_is_given_is_refused() -> None:
    first, *rest = GRAPH.ops
    early = replace(first, reads=(1,), arguments=(replace(TANGENT, input=-1),))
    with pytest.raises(PlanFileError, match="reads = 1: must be handed over by then"):
        check_graph(replace(GRAPH, ops=(early, *rest)))
