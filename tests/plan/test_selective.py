"""Selective recomputation: the paper's closed forms, and attention cores found in a graph."""

import pytest

from tests.oracles import evaluate, random_graph
from tightrope.core import Flag, Graph, Limits, Op, Phase, Storage, TightropeError
from tightrope.lower import walked
from tightrope.plan.model import build
from tightrope.plan.options import Options
from tightrope.plan.peers.selective import (
    TransformerShape,
    activation_bytes,
    attention_cores,
    core_pairs,
    flops_ratio,
    selective,
)

LAYER_OPS = 10


def layer(shape: TransformerShape, layers: int) -> Graph:
    """Transformer layers in 16 bits, as the paper counts them, and one op of backward for each."""
    storages = [Storage(0, 2 * shape.s * shape.b * shape.h, external=True)]
    ops: list[Op] = []
    unit, scores = shape.s * shape.b * shape.h, shape.a * shape.s * shape.s * shape.b

    def op(target: str, reads: tuple[int, ...], *sizes: int, **more: object) -> tuple[int, ...]:
        made = tuple(range(len(storages), len(storages) + len(sizes)))
        storages.extend(Storage(s, size) for s, size in zip(made, sizes, strict=True))
        ops.append(Op(len(ops), target, target, tuple(sorted(reads)), made, ns=10, **more))  # type: ignore[arg-type]
        return made

    entry, kept, cores = 0, list[list[int]](), list[tuple[int, ...]]()
    for _ in range(layers):
        (normed,) = op("native_layer_norm", (entry,), 2 * unit)
        qkv = op("linear", (normed,), 2 * unit, 2 * unit, 2 * unit)
        first = len(ops)
        (product,) = op("bmm", qkv[:2], 2 * scores)
        (soft,) = op("_softmax", (product,), 2 * scores)
        dropped, mask = op("native_dropout", (soft,), 2 * scores, scores, flags=Flag.RANDOM)
        cores.append(tuple(range(first, len(ops))))
        (context,) = op("bmm", (dropped, qkv[2]), 2 * unit)
        (projected,) = op("linear", (context,), 2 * unit)
        (again,) = op("native_layer_norm", (projected,), 2 * unit)
        wide = op("linear", (again,), 8 * unit)
        (active,) = op("gelu", wide, 8 * unit)
        (entry,) = op("linear", (active,), 2 * unit)
        kept.append([normed, *qkv, soft, dropped, mask, context, projected, again, *wide, active])
    flow: tuple[int, ...] = (entry,)
    for saved in reversed(kept):
        flow = op("backward", (*saved, *flow), 64, phase=Phase.BACKWARD)
    replays: list[Op] = []
    for core in cores:
        dropout = ops[core[-1]]
        number = len(ops) + len(replays)
        replays.append(
            Op(
                number,
                "again",
                "dropout_again",
                (*dropout.reads, dropout.creates[1]),
                dropout.creates[:1],
                ns=5,
            )
        )
        ops[core[-1]] = Op(
            dropout.id,
            "d",
            dropout.target,
            dropout.reads,
            dropout.creates,
            ns=10,
            flags=Flag.RANDOM,
            variant=number,
        )
    return Graph(tuple(ops), tuple(storages), tuple(replays))


SHAPE = TransformerShape(s=512, b=1, h=256, a=16)


def test_the_closed_forms_give_the_figures_of_the_paper() -> None:
    gpt3 = TransformerShape(s=2048, b=1, h=12288, a=96, layers=96, v=51200)
    mt_nlg = TransformerShape(s=2048, b=1, h=20480, a=128, layers=105, v=51200)
    for shape, saved, slower in ((gpt3, 0.70, 0.027), (mt_nlg, 0.65, 0.016)):
        share = activation_bytes(shape, recompute="selective") / activation_bytes(shape, recompute="none")
        assert 1 - share == pytest.approx(saved, abs=0.006)
        assert flops_ratio(shape) - 1 == pytest.approx(slower, abs=0.0011)
    assert activation_bytes(gpt3, recompute="full") == 96 * 2 * 2048 * 12288


def test_a_core_runs_from_the_scores_to_the_dropout() -> None:
    assert attention_cores(layer(SHAPE, 2)) == ((2, 3, 4), (13, 14, 15))


def test_recomputing_a_core_saves_what_the_closed_form_says_but_for_the_mask() -> None:
    """Softmax and its dropped values are 4 of the 5 bytes per score; the mask of the dropout stays."""
    graph, scores = layer(SHAPE, 4), SHAPE.a * SHAPE.s * SHAPE.s * SHAPE.b
    model, cores = build(graph), attention_cores(graph)
    plain = evaluate(graph, ())[0]
    for number in (1, 2, 3):
        peak, ns = evaluate(graph, core_pairs(graph, model, cores[:number]))
        assert plain - peak == number * 4 * scores
        assert ns == graph.base_ns + number * 25
    form = activation_bytes(SHAPE, recompute="none") - activation_bytes(SHAPE, recompute="selective")
    assert form == 5 * scores


def test_it_recomputes_as_few_cores_as_the_limit_needs() -> None:
    graph, scores = layer(SHAPE, 4), SHAPE.a * SHAPE.s * SHAPE.s * SHAPE.b
    plain = walked(graph, selective(graph, None, Limits(), Options()))
    assert plain.ns == graph.base_ns
    for number in (1, 2, 3):
        limit = graph.persistent + plain.peak - (4 * number - 1) * scores
        walk = walked(graph, selective(graph, None, Limits(bytes=(limit,)), Options()))
        assert walk.ns == graph.base_ns + number * 25
        assert graph.persistent + walk.peak <= limit


def test_a_graph_without_attention_is_refused() -> None:
    with pytest.raises(TightropeError, match="none of the 8 ops is a softmax"):
        selective(random_graph(1, num_ops=8), None, Limits(), Options())
