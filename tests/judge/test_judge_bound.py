"""The lower bound holds against every schedule tried, and is exact on hand-made graphs."""

import random

import pytest
from families import FAMILIES, build_schedule, naive_bound, peak_of, possible_pairs, simulate

from tightrope.core import Flag, Graph, JudgeError, Op, Storage
from tightrope.judge import check_bound, lower_bound


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(10))
def test_no_schedule_beats_the_bound(family: str, seed: int) -> None:
    graph = FAMILIES[family](seed)
    bound, witness = lower_bound(graph)
    assert bound >= naive_bound(graph)[0]
    assert 0 <= witness < len(graph.ops)
    rng = random.Random(seed)
    pairs = possible_pairs(graph)
    for _ in range(10):
        chosen = rng.sample(pairs, rng.randrange(min(len(pairs), 30) + 1))
        schedule = build_schedule(graph, chosen, rng)
        assert graph.persistent + peak_of(simulate(graph, schedule)) >= bound


def test_the_bound_counts_reads_need_residents_and_what_runs_once() -> None:
    graph = Graph(
        (
            Op(0, "draw", "aten.draw", (0,), (1,), flags=Flag.RANDOM),
            Op(1, "grad", "aten.grad", (0,), (2,)),
            Op(2, "wide", "aten.wide", (0,), (3,)),
            Op(3, "peak", "aten.peak", (3,), (4,)),
            Op(4, "use", "aten.use", (1, 4), ()),
        ),
        (
            Storage(0, 64, external=True),
            Storage(1, 128),
            Storage(2, 256, resident_at_end=True),
            Storage(3, 512),
            Storage(4, 1024),
        ),
    )
    assert lower_bound(graph) == (64 + 128 + 256 + 512 + 1024, 3)
    check_bound(graph, 64 + 128 + 256 + 512 + 1024, 3)
    check_bound(graph, 64, -1)
    with pytest.raises(JudgeError, match="lower bound 1985 bytes; only 1984 can be shown"):
        check_bound(graph, 1985, 3)
    with pytest.raises(JudgeError, match=r"op 2 aten.wide needs 960 bytes, not the 1984 claimed"):
        check_bound(graph, 1984, 2)
    with pytest.raises(JudgeError, match="witness 5 is not an op"):
        check_bound(graph, 1984, 5)


def test_a_replay_unpins_only_what_it_makes() -> None:
    def graph(replays: tuple[Op, ...]) -> Graph:
        drawn = Op(0, "drawn", "aten.drawn", (), (0, 1), flags=Flag.RANDOM, variant=3 if replays else -1)
        ops = (drawn, Op(1, "wide", "aten.wide", (), (2,)), Op(2, "use", "aten.use", (0, 1), ()))
        return Graph(ops, (Storage(0, 640), Storage(1, 64), Storage(2, 1024)), replays)

    assert lower_bound(graph(()))[0] == 640 + 64 + 1024
    assert lower_bound(graph((Op(3, "again", "tightrope.mask", (1,), (0,)),)))[0] == 64 + 1024


def test_a_graph_without_ops_needs_what_the_caller_holds() -> None:
    assert lower_bound(Graph((), (Storage(0, 65, external=True),))) == (128, -1)
