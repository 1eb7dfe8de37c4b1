"""A plan that fits its budget wastes no bytes that a moment of placing saves."""

from random import Random

from tightrope.core import Graph, Op, Storage
from tightrope.lower import charged_sizes, lower, timeline
from tightrope.place import Interval, place
from tightrope.plan import base_schedule
from tightrope.plan.assemble import assemble


def drawn(seed: int) -> Graph:
    """Every op makes a storage and reads some that came before."""
    draw = Random(seed)
    ops = [
        Op(n, f"op{n}", "aten.relu", creates=(n,), reads=tuple(sorted({draw.randrange(n) for _ in range(2)})))
        for n in range(1, 24)
    ]
    sizes = [64 * draw.randint(1, 9) for _ in range(24)]
    return Graph((Op(0, "op0", "aten.relu", creates=(0,)), *ops), tuple(map(Storage, range(24), sizes)))


def buffers_of(graph: Graph) -> list[Interval]:
    made = lower(graph, base_schedule(graph))
    rows = zip(charged_sizes(made), timeline(made).buffers, strict=True)
    return [(size, buffer.start, buffer.end) for size, buffer in rows]


def test_a_plan_within_its_budget_is_placed_as_low_as_without_one() -> None:
    saved = 0
    for graph in map(drawn, range(30)):
        buffers = buffers_of(graph)
        plan = assemble(graph, base_schedule(graph), budget=2**20)
        assert plan.forecast.arena == place(buffers).peak
        saved += plan.forecast.arena < place(buffers, capacity=2**20).peak
    assert saved
