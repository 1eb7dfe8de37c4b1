"""Re-runs of which nothing is read are left out, and no others."""

import random

import pytest

from tests.judge.families import FAMILIES, possible_pairs
from tests.oracles import Pair
from tightrope.core import Graph, Op
from tightrope.plan.schedule import useful


def unread(graph: Graph, pairs: list[Pair]) -> list[Pair]:
    """List re-runs that make no copy which a run reads before the storage is made again."""
    runs: list[tuple[Op, Pair | None]] = []
    for base in graph.ops:
        for pair in pairs:
            if pair[0] == base.id:
                op = graph.ops[pair[1]]
                runs.append((graph.op(op.variant) if op.variant >= 0 else op, pair))
        runs.append((base, None))
    found = []
    for at, (op, pair) in enumerate(runs):
        if pair is not None and not any(_is_read(graph, runs, at, storage) for storage in op.creates):
            found.append(pair)
    return found


def _is_read(graph: Graph, runs: list[tuple[Op, Pair | None]], at: int, storage: int) -> bool:
    if graph.storages[storage].resident_at_end or graph.storages[storage].outside:
        return False  # its first copy stays
    for op, _ in runs[at + 1 :]:
        if storage in op.reads:
            return True
        if storage in op.creates:
            return False
    return False


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_what_is_left_is_what_leaving_out_one_at_a_time_leaves(family: str) -> None:
    num_left = 0
    for seed in range(40):
        graph, rng = FAMILIES[family](seed), random.Random(seed)
        pairs = sorted(pair for pair in possible_pairs(graph) if rng.random() < 0.3)
        found = useful(graph, pairs)
        while gone := unread(graph, pairs):
            pairs.remove(rng.choice(gone))
        assert found == tuple(pairs)
        num_left += len(pairs)
    assert num_left
