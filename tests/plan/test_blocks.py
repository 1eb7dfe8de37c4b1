"""Repeated layers: found where they are, left out exactly, copied to where they belong."""

import msgspec
import pytest

import oracles
from tightrope.core import Flag, Graph, Limits, Op, Storage
from tightrope.lower import problems
from tightrope.plan import PLANNERS, Options, solve
from tightrope.plan.engine import open_solver
from tightrope.plan.layers import KEPT, Layers, copy_pairs, find_layers, share, shorten
from tightrope.plan.model import build, pairs_of


def residual(num_layers: int, *, dropout: bool = False, skip: bool = False) -> Graph:
    """Draw a residual net: normalise, expand, drop, add; the backward pass mirrors it, gradients stay.

    ``skip`` gives the last layers another input, the output of the first one.
    """
    ops: list[Op] = []
    storages: list[Storage] = []
    replays: list[Op] = []

    def make(name: str, reads: tuple[int, ...], size: int, *, stays: bool = False, outputs: int = 1) -> int:
        creates = tuple(range(len(storages), len(storages) + outputs))
        storages.extend(Storage(s, size, resident_at_end=stays) for s in creates)
        ops.append(
            Op(len(ops), f"{name}{len(ops)}", f"aten.{name}", tuple(sorted(set(reads))), creates, ns=9)
        )
        return creates[0]

    x = make("embed", (), 640)
    saved: list[tuple[int, ...]] = []
    for layer in range(num_layers):
        norm = make("norm", (x, saved[0][3]) if skip and layer > num_layers - 4 else (x,), 640)
        wide = make("wide", (norm,), 2560)
        if dropout:
            kept = make("dropout", (wide,), 2560, outputs=2)
            drop = ops[-1]
            replays.append(Op(-1, f"again{layer}", "aten.mul", (wide, kept + 1), (kept,), ns=3))
            ops[-1] = msgspec.structs.replace(drop, flags=Flag.RANDOM, variant=layer)
            wide = kept
        out = make("add", (x, wide), 640)
        saved.append((x, norm, wide, out))
        x = out
    grad = make("loss", (x,), 640)
    for x, norm, wide, _ in reversed(saved):
        inner = make("wide_grad", (wide, grad), 2560)
        make("weight_grad", (norm, inner), 128, stays=True)
        grad = make("norm_grad", (x, inner, grad), 640)
    replays = [msgspec.structs.replace(op, id=len(ops) + i) for i, op in enumerate(replays)]
    final = [
        msgspec.structs.replace(op, variant=len(ops) + op.variant) if op.variant >= 0 else op for op in ops
    ]
    return Graph(tuple(final), tuple(storages), tuple(replays), name="residual")


def found(graph: Graph) -> Layers:
    layers = find_layers(graph)
    assert layers is not None
    return layers


def shape(graph: Graph) -> list[tuple[object, ...]]:
    return [(op.target, op.reads, op.creates, op.variant) for op in graph.all_ops()]


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("num_layers", [24, 25, 40])
def test_layers_are_found_and_left_out_exactly(num_layers: int, dropout: bool) -> None:
    graph = residual(num_layers, dropout=dropout)
    layers = found(graph)
    assert (layers.forward.period, layers.backward.period) == (4 if dropout else 3, 3)
    assert num_layers - 2 <= layers.count <= num_layers
    short = shorten(graph, layers)
    assert shape(short.graph) == shape(residual(num_layers - short.gone, dropout=dropout))
    assert short.graph.storages == residual(num_layers - short.gone, dropout=dropout).storages


@pytest.mark.parametrize("num_layers", [24, 37])
def test_a_pair_of_one_layer_becomes_that_pair_in_every_layer(num_layers: int) -> None:
    graph = residual(num_layers)
    short = shorten(graph, found(graph))
    model, whole = build(short.graph), build(graph)
    of_small = [
        (t, u) for u in range(len(model.need)) for t in range(u + 1, len(model.need)) if model.allowed((t, u))
    ]
    assert of_small
    for pair in of_small:
        copies = copy_pairs(short, (pair,))
        assert copies
        assert all(whole.allowed(copy) for copy in copies)
        for stage, op in copies:
            names = [graph.ops[i].target for i in (stage, op)]
            assert names == [short.graph.ops[i].target for i in pair]
    inside = [p for p in of_small if short.graph.ops[p[1]].target == "aten.wide" and p[0] == p[1] + 1]
    assert len(copy_pairs(short, tuple(inside))) >= num_layers - 2


def test_graphs_without_layers_are_left_alone() -> None:
    assert find_layers(oracles.random_graph(1, num_ops=200)) is None
    assert find_layers(residual(2 * KEPT - 3)) is None
    assert find_layers(Graph((), ())) is None


def test_a_layer_that_reads_from_far_away_is_no_copy() -> None:
    graph = residual(40)
    far = graph.ops[60]
    ops = list(graph.ops)
    ops[60] = msgspec.structs.replace(far, reads=tuple(sorted({ops[5].creates[0], *far.reads[1:]})))
    assert find_layers(msgspec.structs.replace(graph, ops=tuple(ops))) is None


def test_limits_are_scaled_by_bytes_per_layer() -> None:
    graph = residual(40)
    short = shorten(graph, found(graph))
    whole, small = (open_solver(build(g)).state(0).peak for g in (graph, short.graph))
    assert share(whole, small, whole, short) == small
    assert share(whole, small, whole // 2, short) < small * 0.6


@pytest.mark.parametrize("percent", [75, 50])
def test_copied_plans_are_as_fast_as_searched_ones(percent: int) -> None:
    graph = residual(40)
    peak = open_solver(build(graph)).state(0).peak
    limits = Limits(bytes=(peak * percent // 100,))
    times = []
    for blocks in (True, False):
        schedule = PLANNERS["anneal"](graph, None, limits, Options(layers=blocks, restarts=1, effort=0.4))
        solver = open_solver(build(graph))
        solver.load(pairs_of(graph, schedule))
        state = solver.state(limits.bytes[0])
        assert state.excess == 0
        times.append(graph.base_ns + state.ns)
    assert times[0] <= 1.02 * times[1]


def test_plans_of_layered_graphs_pass_the_judge() -> None:
    graph = residual(48, dropout=True)
    plan = solve(graph, budget=solve(graph, budget=2**40).forecast.total * 3 // 4)
    assert problems(graph, plan) == []
