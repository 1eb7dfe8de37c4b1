"""Two passes around a total norm: where ops run again, and that the planner finds it."""

from tightrope.core import Flag, Graph, Op, Storage
from tightrope.core.total_norm import TOTAL_NORM, total_norm_of, used_again
from tightrope.lower import walked
from tightrope.plan import smallest
from tightrope.plan.model import build
from tightrope.plan.second_pass import first_pass, played_twice

WIDE, NARROW, SCALAR = 6400, 1280, 64


def clipped_chain(layers: int) -> Graph:
    """A chain of narrow values, each of which makes a wide gradient, and a norm in between.

    Weight k is read to make value k + 1, and is updated behind the scaling of gradient k + 1.
    """
    storages = [Storage(k, WIDE, external=True) for k in range(layers)]
    ops: list[Op] = []

    def make(target: str, reads: tuple[int, ...], size: int) -> int:
        storages.append(Storage(len(storages), size))
        ops.append(Op(len(ops), target, target, tuple(sorted(reads)), (storages[-1].id,), ns=100))
        return storages[-1].id

    def update(weight: int, gradient: int) -> None:
        flags = Flag.IN_PLACE | Flag.NEVER_RECOMPUTE
        ops.append(Op(len(ops), "u", "u", tuple(sorted((weight, gradient))), mutates=(weight,), flags=flags))

    value, gradients, norms = make("start", (), NARROW), [], []
    for weight in range(layers):
        gradients.append(make("gradient", (value,), WIDE))
        norms.append(make("norm", (gradients[-1],), SCALAR))
        value = make("value", (value, weight), NARROW)
    total = make(TOTAL_NORM, tuple(norms), SCALAR)
    clipped = []
    for weight in range(layers):
        clipped.append(make("scale", (gradients[weight], total), WIDE))
        if weight:
            update(weight - 1, clipped[weight - 1])
    update(layers - 1, clipped[-1])
    return Graph(tuple(ops), tuple(storages))


def test_every_op_of_the_first_pass_runs_again_before_the_gradient_that_comes_of_it() -> None:
    graph = clipped_chain(3)
    targets = [op.target for op in graph.ops]
    scales = [op.id for op in graph.ops if op.target == "scale"]
    behind = used_again(graph)
    assert {graph.ops[op].target for op in behind} == {"start", "gradient", "value"}
    assert behind[targets.index("start")] == scales[0]
    assert [stage for op, stage in behind.items() if targets[op] == "gradient"] == scales[::-1]
    assert [stage for op, stage in behind.items() if targets[op] == "value"] == scales[:0:-1]


def test_the_first_pass_is_a_graph_and_its_plan_is_played_twice() -> None:
    graph = clipped_chain(3)
    first = first_pass(graph)
    assert first is not None
    assert len(first.ops) == total_norm_of(graph)
    assert total_norm_of(first) == -1
    build(first)
    pairs = played_twice(graph, build(graph), ((4, 0),))
    assert (4, 0) in pairs
    assert {(stage, op) for op, stage in used_again(graph).items()} <= set(pairs)
    assert (used_again(graph)[4], 0) in pairs


def test_pairs_that_read_a_new_weight_are_left_out() -> None:
    graph = clipped_chain(3)
    late = graph.ops[-1].id
    model = build(graph)
    reader = next(op.id for op in graph.ops if op.target == "value")
    assert not model.allowed((late, reader))
    assert all(model.allowed(pair) for pair in played_twice(graph, model, ()))


def test_the_smallest_plan_holds_two_gradients_and_not_all() -> None:
    graph = clipped_chain(12)
    plan = smallest(graph)
    assert plan.forecast.arena < 5 * WIDE < 12 * WIDE
    walked(graph, plan.schedule)


def test_a_graph_without_a_total_norm_has_one_pass() -> None:
    graph = Graph((Op(0, "a", "a", creates=(0,)),), (Storage(0, 64),))
    assert first_pass(graph) is None
    assert used_again(graph) == {}
