"""Selective recomputation: the paper's closed forms, and attention cores found in a graph."""

import pytest

from benchmarks.planners.cases import layer
from tests.oracles import evaluate, random_graph
from tightrope.core import Limits, TightropeError
from tightrope.lower import walked
from tightrope.plan.model import build
from tightrope.plan.options import Options
from tightrope_planners.peers.selective import activation_bytes, flops_ratio, selective
from tightrope_shared.attention import TransformerShape, attention_cores, core_pairs

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
