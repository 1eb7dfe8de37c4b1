"""The benchmark of eviction: nets drawn from seeds, and what is counted on them."""

import pytest

from benchmarks.evict.drawn import drawn_log, times_lower
from benchmarks.evict.shapes import SHAPES, drawn_nodes
from benchmarks.evict.simulated import Point
from tightrope_planners.evict.log import LoggedOp


@pytest.mark.parametrize("name", SHAPES)
def test_a_seed_draws_one_net_and_another_seed_another(name: str) -> None:
    assert drawn_nodes(name, 1) == drawn_nodes(name, 1)
    assert len({str(drawn_nodes(name, seed)) for seed in range(5)}) > 1
    for at, (parents, size, _) in enumerate(drawn_nodes(name, 1)):
        assert size > 0
        assert all(-1 <= parent < at for parent in parents)


def test_a_drawn_net_becomes_two_equal_steps() -> None:
    ops = [event.target for event in drawn_log("chain", 3).events if isinstance(event, LoggedOp)]
    steps = [one for one in ops if "constant" not in one]
    assert steps[: len(steps) // 2] == steps[len(steps) // 2 :]


def test_the_better_peer_counts_and_what_never_finishes_is_the_whole() -> None:
    def points(**lowest: int | None) -> list[Point]:
        return [
            Point("net", policy, ratio, least is not None and ratio >= least)
            for policy, least in lowest.items()
            for ratio in (80, 40, 20)
        ]

    assert times_lower(points(coop=20, dtr=80, dte=40), "net") == 2.0
    assert times_lower(points(coop=40, dtr=None, dte=20), "net") == 0.5
    assert times_lower(points(coop=40, dtr=None, dte=None), "net") == 2.5
