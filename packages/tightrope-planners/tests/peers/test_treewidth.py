"""Separators, the recursion's bound on bytes, the post-pass, and what no set of pairs can give."""

from random import Random

import pytest

from tests.oracles import allowed_pairs, evaluate, random_graph
from tests.plan.brute import Brute
from tests.plan.sequences import chain, measure, partial_ktree
from tightrope.core import Graph, Limits
from tightrope.lower import walked
from tightrope.plan.model import build
from tightrope.plan.options import Options
from tightrope_planners.bound.runs import Runs
from tightrope_planners.peers.separators import Separators, decompose, separators
from tightrope_planners.peers.treewidth import (
    Recursion,
    TreewidthKnobs,
    smallest_runs,
    smallest_seed,
    treewidth,
)

SWITCHES = [
    TreewidthKnobs(linger=linger, generous=generous) for linger in (True, False) for generous in (True, False)
]


def neighbours_of(graph: Graph) -> list[set[int]]:
    around: list[set[int]] = [set() for _ in graph.ops]
    for op in graph.ops:
        for storage in op.reads:
            around[op.id].add(storage)
            around[storage].add(op.id)
    return around


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_a_tree_decomposition_covers_vertices_edges_and_is_connected(width: int) -> None:
    graph = partial_ktree(80, width, seed=width)
    around = neighbours_of(graph)
    bags = decompose(around)
    assert bags.width == width
    for v, others in enumerate(around):
        homes = {b for b, bag in enumerate(bags.bags) if v in bag}
        assert v in homes
        assert all(any(u in bags.bags[b] for b in homes) for u in others)
        assert sum(bags.up[b] not in homes for b in homes) == 1


@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_separators_split_in_halves_and_no_edge_passes_them(width: int, near: bool) -> None:
    graph = partial_ktree(200, width, seed=width, near=near, drop=0.2)
    around = neighbours_of(graph)
    tree = separators(around)
    assert sorted(v for members in tree.members for v in members) == list(range(200))
    assert max(tree.level) <= (200).bit_length() - 1
    for v, others in enumerate(around):
        for u in others:
            low, high = sorted((tree.of[u], tree.of[v]), key=lambda n: -tree.level[n])
            assert high in ancestors(tree, low)


def ancestors(tree: Separators, number: int) -> list[int]:
    found = [number]
    while tree.parent[found[-1]] >= 0:
        found.append(tree.parent[found[-1]])
    return found


def check_bound(graph: Graph, knobs: TreewidthKnobs) -> None:
    """Within its bound the recursion succeeds, and the bound is the one in the module text."""
    model = build(graph)
    recursion = Recursion(model, knobs)
    levels = 1 + max(recursion.separators.level)
    inputs = max(len(op.reads) for op in graph.ops)
    assert levels <= len(graph.ops).bit_length()
    assert recursion.bytes_bound <= (recursion.separators.width + 1 + inputs) * levels + inputs + 1
    runs = recursion.within(recursion.bytes_bound)
    assert runs is not None
    assert Runs(model, runs).peak <= recursion.bytes_bound


@pytest.mark.parametrize("knobs", SWITCHES)
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_unit_graphs_take_at_most_the_bound_with_switches_on_and_off(
    width: int, knobs: TreewidthKnobs
) -> None:
    for seed in range(4):
        check_bound(partial_ktree(60, width, seed=seed, drop=0.3 * (seed % 2)), knobs)


@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_a_thousand_ops_take_at_most_the_bound(width: int, near: bool) -> None:
    check_bound(partial_ktree(1000, width, seed=1, near=near, drop=0.2), TreewidthKnobs())


@pytest.mark.slow
@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_ten_thousand_ops_take_at_most_the_bound(width: int, near: bool) -> None:
    check_bound(partial_ktree(10_000, width, seed=2, near=near, drop=0.2), TreewidthKnobs())


def check(seed: int) -> bool:
    graph = random_graph(seed, num_ops=6 + seed % 3, rich=seed % 4 != 0)
    model, plain = build(graph), evaluate(graph, ())[0]
    brute = Brute(graph, any_order=True)
    pairs, peak = smallest_runs(model)
    assert (peak, graph.base_ns + model.cost(pairs)) == measure(graph, pairs)
    assert brute.least_peak() <= peak <= plain
    for limit in {peak, (peak + plain) // 2}:
        for knobs in SWITCHES:
            runs = Recursion(model, knobs).within(limit)
            found = None if runs is None else measure(graph, runs)
            best = brute.least_ns(limit)
            assert found is None or (found[0] <= limit and best is not None and found[1] >= best)
    return peak == brute.least_peak()


def test_it_never_beats_brute_force_and_often_equals_its_peak() -> None:
    assert sum(check(seed) for seed in range(20)) >= 12


@pytest.mark.slow
def test_it_never_beats_brute_force_and_often_equals_its_peak_on_500_graphs() -> None:
    assert sum(check(seed) for seed in range(500)) >= 300


@pytest.mark.parametrize("seed", range(20))
def test_the_post_pass_keeps_the_limit_and_never_costs_more(seed: int) -> None:
    graph, rng = random_graph(seed, num_ops=8), Random(seed)
    pairs = allowed_pairs(graph)
    drawn = sorted(rng.choices(pairs, k=min(9, 3 * len(pairs))), key=lambda pair: pair[0]) if pairs else []
    runs = Runs(build(graph), drawn)
    before = measure(graph, drawn)
    assert runs.peak == before[0]
    limit = before[0] + rng.randrange(3) * 200
    runs.skip(limit)
    after = measure(graph, runs.pairs())
    assert after[0] == runs.peak <= limit
    assert after[1] <= before[1]


def test_the_post_pass_skips_everything_when_bytes_do_not_matter() -> None:
    graph = chain(1, 6)
    runs = Runs(build(graph), sorted(allowed_pairs(graph)))
    runs.skip(2**40)
    assert runs.pairs() == ()


@pytest.mark.parametrize("seed", range(12))
def test_the_judge_accepts_its_schedules_and_they_fit_or_are_the_smallest(seed: int) -> None:
    graph = random_graph(seed, num_ops=9)
    seedling = walked(graph, smallest_seed(graph))
    plain = evaluate(graph, ())[0]
    for percent in (100, 80, 60, 1):
        limits = Limits(bytes=(graph.persistent + seedling.outside_peak + plain * percent // 100,))
        walk = walked(graph, treewidth(graph, None, limits, Options()))
        assert walk.peak - walk.outside_peak <= max(plain * percent // 100, seedling.peak)


def test_it_fits_where_no_set_of_pairs_does() -> None:
    found = 0
    for seed in range(60):
        graph = partial_ktree(9, 2, seed=seed, drop=0.2)
        peak = smallest_runs(build(graph))[1]
        found += peak < Brute(graph).least_peak()
    assert found > 0
