"""The minimum cut against brute force, its plans against the judge."""

import random

import pytest

from benchmarks.planners.cases import best_of_all, phased, two_parts
from tests.judge.families import FAMILIES
from tests.plan.test_paging_search import between, small
from tightrope.core import Flag, Graph, Limits, Op, Phase, Storage, TightropeError
from tightrope.lower import walked
from tightrope.plan.engine import open_solver
from tightrope.plan.model import build
from tightrope.plan.options import Options
from tightrope.plan.schedule import base_schedule, expand
from tightrope_planners.peers.mincut import (
    MincutKnobs,
    backward_begin,
    cheapest_cut,
    mincut,
    mincut_pairs,
    pairs_of_cut,
    stage_bytes,
)
from tightrope_planners.peers.mincut_prices import (
    FusedRates,
    Prices,
    fused_prices,
    measured_prices,
    pointwise_class,
)
from tightrope_planners.solvers.mincut import max_flow, min_cut


@pytest.mark.parametrize("native", [True, False])
def test_the_cut_is_the_best_of_all_choices(native: bool) -> None:
    for seed in range(40):
        graph = two_parts(seed)
        model, begin, rng = build(graph), backward_begin(graph), random.Random(seed)
        prices = Prices(
            tuple(float(rng.choice((0, rng.randrange(100)))) for _ in graph.storages),
            tuple(float(rng.randrange(100)) for _ in graph.ops),
        )
        cut = cheapest_cut(model, begin, prices, [0.0] * len(graph.storages), native=native)
        assert cut.price == pytest.approx(best_of_all(model, begin, prices), abs=1e-6)
        for anew in (False, True):
            walked(graph, expand(graph, pairs_of_cut(model, begin, cut, anew=anew)))


def test_both_flows_give_equal_cuts() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        edges = [
            (a, b, rng.choice((0, 1, rng.randrange(50), 2**60)))
            for a, b in (rng.sample(range(12), 2) for _ in range(rng.randrange(60)))
        ]
        edges = [edge for edge in edges if edge[2] < 2**60 or (edge[0] != 0 and edge[1] != 1)]
        found = [min_cut(12, edges, source=0, sink=1, native=native) for native in (True, False)]
        assert found[0] == found[1]
        capacity, side = found[0]
        assert side[0]
        assert not side[1]
        assert capacity == sum(c for a, b, c in edges if side[a] and not side[b])
        for native in (True, False):
            total, flows = max_flow(12, edges, source=0, sink=1, native=native)
            assert total == capacity
            assert all(0 <= flow <= c for (_, _, c), flow in zip(edges, flows, strict=True))
            out = [0] * 12
            for (a, b, _), flow in zip(edges, flows, strict=True):
                out[a] += flow
                out[b] -= flow
            assert out == [total, -total, *[0] * 10]


@pytest.mark.slow
def test_random_ops_run_again_only_as_their_replay_and_never_without_one() -> None:
    drawn = 0
    for seed in range(24):
        graph = two_parts(seed)
        randoms = {op.id for op in graph.ops if op.flags & Flag.RANDOM}
        limit = int(0.7 * _peak(graph))
        pairs = mincut_pairs(graph, limit, knobs=MincutKnobs(rounds=15))
        schedule = expand(graph, pairs)
        walked(graph, schedule)
        drawn += sum(op in randoms for _, op in pairs)
        assert all(schedule.computes().count(op) == 1 for op in randoms)
    assert drawn > 0
    bare = Graph(
        (
            Op(0, "draw", "aten.rand", (), (0,), ns=1, flags=Flag.RANDOM),
            Op(1, "use", "aten.mul", (0,), (1,), ns=1),
            Op(2, "back", "aten.mul", (0, 1), (), ns=1, phase=Phase.BACKWARD),
        ),
        (Storage(0, 640), Storage(1, 640)),
    )
    cut = cheapest_cut(build(bare), 2, Prices((1e9, 1e9), (1.0, 1.0, 1.0)), [0.0, 0.0])
    assert (cut.kept, cut.again) == (frozenset({0}), frozenset({1}))


def _peak(graph: Graph) -> int:
    return walked(graph, base_schedule(graph)).peak


def training_like(seed: int) -> Graph:
    graph = small(seed, 14)
    return phased(graph, len(graph.ops) // 2)


@pytest.mark.slow
def test_plans_fit_and_prices_on_time_points_help() -> None:
    fits, cheaper = 0, 0
    for seed in range(8):
        graph = training_like(seed)
        for share in (0.75, 0.5):
            limit = between(graph, share) - graph.persistent
            ns = {}
            for timed in (True, False):
                pairs = mincut_pairs(graph, limit, knobs=MincutKnobs(timed=timed))
                walk = walked(graph, expand(graph, pairs))
                ns[timed] = walk.ns if walk.peak <= limit else 2**60
            fits += ns[True] < 2**60
            cheaper += ns[True] < ns[False]
            assert ns[True] <= ns[False]
    assert fits >= 14
    assert cheaper >= 3


def test_an_ample_limit_runs_nothing_again_and_a_tight_one_does() -> None:
    graph = training_like(3)
    assert mincut_pairs(graph, 2**40) == ()
    limit = between(graph, 0.5) - graph.persistent
    schedule = mincut(graph, None, Limits((graph.persistent + limit,)), Options())
    assert len(schedule.computes()) > len(graph.ops)


def test_a_graph_without_a_backward_is_refused() -> None:
    with pytest.raises(TightropeError, match="needs a graph with a forward and a backward part"):
        mincut_pairs(FAMILIES["plain"](0), 1000)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_bytes_per_stage_are_those_of_the_search(family: str) -> None:
    rng = random.Random(family)
    for seed in range(10):
        graph = FAMILIES[family](seed)
        model = build(graph)
        pairs = [
            (t, op)
            for op in range(len(graph.ops))
            for t in range(model.window[op][0], model.window[op][1] + 1)
            if rng.random() < 0.1
        ]
        solver = open_solver(model)
        solver.load(sorted(pairs))
        assert max(stage_bytes(model, pairs)) == solver.state(0).peak


def test_fusion_makes_a_pointwise_chain_free_to_run_again_and_a_product_dear() -> None:
    def op(number: int, target: str, reads: tuple[int, ...], **options: object) -> Op:
        return Op(number, target, target, reads, (number + 1,), ns=10_000, **options)  # type: ignore[arg-type]

    graph = Graph(
        (
            op(0, "aten.mm.default", (0,)),
            op(1, "aten.add.Tensor", (1,)),
            op(2, "aten.relu.default", (2,)),
            op(3, "aten.threshold_backward.default", (1, 2, 3), phase=Phase.BACKWARD),
        ),
        tuple(Storage(i, 4000, label="float32[1000]", external=i == 0) for i in range(5)),
    )
    model = build(graph)
    fused = cheapest_cut(model, 3, fused_prices(graph), [0.0] * 5)
    assert (fused.kept, fused.again) == (frozenset({1}), frozenset({1, 2}))
    plain = cheapest_cut(model, 3, measured_prices(graph), [0.0] * 5)
    assert plain.kept == {1, 2, 3}
    slow = FusedRates(element_ns={"cheap": 1e3})
    assert cheapest_cut(model, 3, fused_prices(graph, slow), [0.0] * 5).kept == {1, 2, 3}


def test_pointwise_ops_are_told_by_name() -> None:
    def of(target: str) -> str | None:
        return pointwise_class(Op(0, "x", target))

    assert of("aten.exp.default") == "exp"
    assert of("aten.tanh_backward.default") == "tanh"
    assert of("aten.relu.default") == "cheap"
    assert of("aten.mm.default") is None
    assert of("aten.native_dropout.default") is None
