"""The comparisons with the literature: figures come from the judge, and wrong planners are noticed."""

import pytest

from benchmarks.planners import QUESTIONS, brute, literature, question
from tests.plan.sequences import chain
from tightrope.core import Graph
from tightrope.plan import base_schedule
from tightrope.plan.model import Model, Pair
from tightrope.plan.schedule import expand


@pytest.mark.parametrize("name", ["literature", "treewidth", "brute"])
def test_each_question_decides_the_bars_that_it_is_listed_with(name: str) -> None:
    assert question(name).bars == QUESTIONS[name]


def test_a_schedule_over_the_budget_has_no_figure() -> None:
    graph = chain(1, 5)
    peak = literature.peak_of(graph)
    assert literature.theirs(graph, peak, base_schedule(graph)) == 0.0
    assert literature.theirs(graph, peak - 64, base_schedule(graph)) is None
    again = expand(graph, [(9, 0)])
    assert literature.theirs(graph, 2 * peak, again) == pytest.approx(100 * graph.ops[0].ns / graph.base_ns)


def test_the_peers_are_run_and_a_refusal_is_said() -> None:
    graph = chain(1, 5)
    assert literature.peer(graph, literature.peak_of(graph), "rotor")[0] == 0.0
    assert literature.peer(graph, literature.peak_of(graph), "selective")[0] == "refuses"


def test_a_planner_that_misses_the_optimum_or_the_limit_is_counted() -> None:
    def nothing(graph: Graph, model: Model, limit: int) -> tuple[Pair, ...]:
        return ()

    row = brute._optimal("nothing", nothing, 5)
    assert row["equal to optimum"] < row["limits"]
    assert not row["met"]
    assert brute._bounded("nothing", nothing, 5)["wrong"] > 0
