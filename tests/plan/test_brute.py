"""The brute-force oracle against the plain enumeration of sets."""

import pytest

from tests.oracles import best_time, evaluate, every_set, random_graph
from tests.plan.brute import Brute


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(12))
def test_brute_force_agrees_with_listing_every_set(seed: int) -> None:
    graph = random_graph(seed, num_ops=5)
    brute = Brute(graph)
    peaks = sorted({evaluate(graph, pairs)[0] for pairs in every_set(graph, 10)})
    assert brute.least_peak() == peaks[0]
    for peak in peaks[:4]:
        assert brute.least_ns(peak) == best_time(graph, peak, size=10)
    assert brute.least_ns(peaks[0] - 64) is None


@pytest.mark.parametrize("seed", range(6))
def test_a_limit_on_runs_is_kept(seed: int) -> None:
    graph = random_graph(seed, num_ops=5)
    for limit in (1, 2):
        brute = Brute(graph, max_runs=limit)
        sets = [s for s in every_set(graph, 10) if all(sum(o == p for _, p in s) < limit for _, o in s)]
        figures = [evaluate(graph, pairs) for pairs in sets]
        capacity = min(peak for peak, _ in figures)
        assert brute.least_peak() == capacity
        assert brute.least_ns(capacity) == min(ns for peak, ns in figures if peak <= capacity)
