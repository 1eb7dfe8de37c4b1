"""Checkpointing on chains: Rotor against every persistent schedule, Revolve against the binomial, sqrt."""

from collections.abc import Iterator
from functools import cache
from math import comb
from typing import Any

import pytest

from tests.oracles import evaluate, random_graph
from tests.plan.brute import Brute
from tests.plan.sequences import chain
from tightrope.core import Graph, Limits, Op, Phase, Storage, TightropeError
from tightrope.lower import walked
from tightrope.plan.options import Options
from tightrope_planners.peers.chain import chain_of, joined
from tightrope_planners.peers.revolve import binomial_reruns, num_sweeps, revolve
from tightrope_planners.peers.rotor import RotorKnobs, rotor, rotor_pairs
from tightrope_planners.peers.sqrt import groupings, sqrt

EXACT = RotorKnobs(slots=10**5)
PLANNERS = [rotor, revolve, sqrt]


def persistent(s: int, t: int) -> Iterator[list[tuple[int, int]]]:
    """List the re-runs of every persistent schedule of segments s..t, as (backward of, segment)."""
    if s == t:
        yield [(t, s)]
        return
    for rest in persistent(s + 1, t):
        yield [(t, s), *rest]
    for middle in range(s + 1, t + 1):
        for right in persistent(middle, t):
            for left in persistent(s, middle - 1):
                yield [*((t, k) for k in range(s, middle)), *right, *left]


def check(seed: int) -> None:
    length = 3 + seed % 3
    graph = chain(seed, length)
    found = chain_of(graph, planner="rotor")
    assert len(found.segments) == length
    sets = {frozenset(r for r in tree if r[0] < length - 1) for tree in persistent(0, length - 1)}
    figures = [evaluate(graph, found.pairs(reruns)) for reruns in sets]
    least, most = min(peak for peak, _ in figures), evaluate(graph, ())[0]
    for limit in {least, (least + most) // 2, (least + 2 * most) // 3}:
        best = min(ns for peak, ns in figures if peak <= limit)
        peak, ns = evaluate(graph, rotor_pairs(found, limit, knobs=EXACT))
        assert peak <= limit
        assert ns == best
        optimum = Brute(graph).least_ns(limit) if length < 5 else 0
        assert optimum is not None
        assert ns >= optimum


@pytest.mark.parametrize("seed", range(15))
def test_rotor_equals_the_best_persistent_schedule(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 500, 50))
def test_rotor_equals_the_best_persistent_schedule_on_500_chains(start: int) -> None:
    for seed in range(start, start + 50):
        check(seed)


@cache
def least_sweeps(length: int, slots: int) -> int:
    """Search the first checkpoint of a chain, as the definition says."""
    if length == 1:
        return 0
    if slots == 1:
        return sum(range(length))
    return min(
        step + least_sweeps(length - step, slots - 1) + least_sweeps(step, slots) for step in range(1, length)
    )


@pytest.mark.parametrize("slots", range(1, 9))
def test_revolve_runs_as_often_as_the_binomial_says(slots: int) -> None:
    for length in range(1, 40):
        rounds = next(r for r in range(99) if length <= comb(slots + r, slots))
        formula = rounds * length - (comb(slots + rounds, rounds - 1) if rounds else 0)
        reruns = binomial_reruns(length, slots)
        assert num_sweeps(length, slots) == least_sweeps(length, slots) == formula
        assert len(reruns) == len(set(reruns)) == formula


@pytest.mark.parametrize("slots", [1, 2, 3, 5])
def test_revolve_holds_no_more_values_than_it_has_slots(slots: int) -> None:
    length = 12
    graph = unit_chain(length)
    found = chain_of(graph, planner="revolve")
    peak, ns = evaluate(graph, found.pairs(binomial_reruns(length, slots)))
    assert ns - graph.base_ns <= num_sweeps(length, slots)
    assert peak <= 64 * (slots + 3)


def unit_chain(length: int) -> Graph:
    storages = [Storage(0, 64, external=True), *(Storage(k, 64) for k in range(1, 2 * length + 1))]
    ops = [Op(k, f"f{k}", "f", (k,), (k + 1,), ns=1) for k in range(length)]
    for k in range(length):
        reads = {length - 1 - k, *([length + k] if k else [])}
        number = length + k
        ops.append(Op(number, f"b{k}", "b", tuple(sorted(reads)), (number + 1,), ns=1, phase=Phase.BACKWARD))
    return Graph(tuple(ops), tuple(storages))


def test_sqrt_needs_about_two_square_roots() -> None:
    length = 36
    graph = unit_chain(length)
    peaks = [evaluate(graph, chain_of(graph, planner="sqrt").pairs(g))[0] for g in groupings_of(graph)]
    assert peaks[0] == 64 * length
    assert min(peaks) <= 64 * (2 * 6 + 4)


def groupings_of(graph: Graph) -> list[list[tuple[int, int]]]:
    return list(groupings(chain_of(graph, planner="sqrt")))


@pytest.mark.parametrize("seed", range(10))
def test_sqrt_runs_nothing_more_than_twice(seed: int) -> None:
    graph = chain(seed, 9)
    for reruns in groupings_of(graph):
        ops = [op for _, op in chain_of(graph, planner="sqrt").pairs(reruns)]
        assert len(ops) == len(set(ops))


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("seed", range(4))
def test_schedules_are_valid_fit_where_they_can_and_cost_no_less_than_the_optimum(
    planner: Any, seed: int
) -> None:
    graph = chain(seed, 4)
    peak = walked(graph, planner(graph, None, Limits(), Options())).peak
    assert peak == evaluate(graph, ())[0]
    for percent in (90, 70, 50):
        limit = peak * percent // 100
        walk = walked(graph, planner(graph, None, Limits(bytes=(64 + limit,)), Options()))
        best = Brute(graph).least_ns(limit)
        assert walk.peak > limit or (best is not None and walk.ns >= best)


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_graph_that_is_no_chain_is_refused(planner: Any) -> None:
    with pytest.raises(
        TightropeError, match="whose forward pass is a chain; this graph of 8 ops has no backward"
    ):
        planner(random_graph(0, num_ops=8), None, Limits(), Options())


def test_neighbours_are_joined_to_the_number_asked_for() -> None:
    graph = chain(3, 9)
    whole = chain_of(graph, planner="rotor")
    fewer = joined(whole, 4)
    assert len(fewer.segments) == 4
    assert [op for s in fewer.segments for op in s.ops] == [op for s in whole.segments for op in s.ops]
    limit = evaluate(graph, ())[0] * 8 // 10
    assert evaluate(graph, rotor_pairs(whole, limit, knobs=RotorKnobs(max_segments=4)))[0] <= limit
