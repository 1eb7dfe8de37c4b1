"""The benchmark of streams runs, and its bars hold on two captured steps."""

import pytest
from rich.console import Console

from benchmarks.placement.safety import draw_small, heaviest_clique, orders_of, run
from tightrope_planners.place.streams import live_bound, reuse_relation


def test_its_brute_force_agrees_on_small_graphs() -> None:
    for seed in range(30):
        graph = draw_small(seed)
        assert heaviest_clique(graph) == live_bound(reuse_relation(graph)).bytes
        assert all(a != b for a, b in orders_of(graph))


@pytest.mark.slow
def test_bars_hold_on_two_nets() -> None:
    console = Console(quiet=True)
    assert run(["--quick", "--strict", "--only", "F8,F9,F10"], console) == 0
