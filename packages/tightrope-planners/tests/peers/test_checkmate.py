"""Checkmate's program against brute force, with both forms of its hazards."""

import math

import pytest

from tests.oracles import evaluate, random_graph
from tests.plan.brute import Brute
from tightrope.core import Graph, Limits, TightropeError
from tightrope.lower import walked
from tightrope.plan.model import build
from tightrope.plan.options import Options
from tightrope_planners.peers.checkmate import (
    CheckmateKnobs,
    checkmate,
    checkmate_lp,
    checkmate_pairs,
    rounded_pairs,
)


def small(seed: int) -> Graph:
    return random_graph(seed, num_ops=6 + seed % 2, rich=seed % 5 != 0)


def check(seed: int) -> None:
    graph = small(seed)
    model, brute, plain = build(graph), Brute(graph), evaluate(graph, ())[0]
    least = brute.least_peak()
    for limit in sorted({least - 1, least, (least + plain) // 2}):
        best = brute.least_ns(limit)
        for tight in (True, False):
            answer = checkmate_pairs(model, limit, knobs=CheckmateKnobs(tight=tight))
            assert answer.proved
            if best is None:
                assert answer.pairs == ()
                assert answer.ns_bound == math.inf
                continue
            peak, ns = evaluate(graph, answer.pairs)
            assert peak <= limit
            assert ns == best
            assert answer.ns_bound == pytest.approx(best - graph.base_ns, abs=1e-3)


@pytest.mark.parametrize("seed", range(16))
def test_it_finds_the_least_time_of_all_sets(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 500, 50))
def test_it_finds_the_least_time_of_all_sets_on_500_graphs(start: int) -> None:
    for seed in range(start, start + 50):
        check(seed)


@pytest.mark.parametrize("seed", range(8))
def test_the_planner_keeps_to_total_bytes_and_the_judge_agrees(seed: int) -> None:
    graph = small(seed)
    best = Brute(graph).least_peak()
    outside = walked(graph, checkmate(graph, None, Limits(), Options())).outside_peak
    limits = Limits(bytes=(graph.persistent + outside + best,))
    walk = walked(graph, checkmate(graph, None, limits, Options()))
    assert graph.persistent + walk.peak <= limits.bytes[0]
    assert walk.ns == Brute(graph).least_ns(best)


@pytest.mark.parametrize("seed", range(8))
def test_rounding_gives_a_valid_schedule_that_never_beats_the_optimum(seed: int) -> None:
    graph = small(seed)
    brute, plain = Brute(graph), evaluate(graph, ())[0]
    limit = (brute.least_peak() + plain) // 2
    peak, ns = evaluate(graph, rounded_pairs(build(graph), limit))
    best = brute.least_ns(limit)
    assert best is not None
    assert peak > limit or ns >= best
    limits = Limits(bytes=(graph.persistent + limit,))
    assert walked(graph, checkmate_lp(graph, None, limits, Options())).ns >= graph.base_ns


def test_without_a_limit_nothing_runs_twice() -> None:
    graph = small(1)
    assert checkmate(graph, None, Limits(), Options()).computes() == tuple(range(len(graph.ops)))


def test_a_graph_that_is_too_large_is_refused_with_its_size() -> None:
    with pytest.raises(TightropeError, match=r"about \d+ columns for 7 ops; the limit is 10"):
        checkmate_pairs(build(small(1)), 1000, knobs=CheckmateKnobs(max_columns=10))
