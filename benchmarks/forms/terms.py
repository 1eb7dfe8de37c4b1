"""Random terms over matrices: e-graphs of up to 500 nodes, on which rules meet each other."""

import random

import torch

from tightrope_forms.rewrite.egraph import ClassId, EGraph, Spec, aten, saturate
from tightrope_forms.rewrite.extract import CostWeights, FormCosts
from tightrope_forms.rewrite.rules import RULES


def random_term(seed: int, size: int) -> FormCosts:
    """Make a term of so many ops of a drawn sharing, and every form of it."""
    draw, graph = random.Random(seed), EGraph()
    spec = Spec((64, 64), (64, 1), torch.float32, True)
    leaves = [graph.leaf(spec, held=k > 0) for k in range(4)]
    pool = list(leaves[:1])
    for _ in range(size):
        pool.append(_op(graph, draw, pool, leaves[1:]))
    roots = [graph.make(aten.cat.default, pool[-4:], 1)]
    saturate(graph, RULES, most_nodes=500)
    return FormCosts(graph, roots, [], CostWeights(1.0, 1.0))


def _op(graph: EGraph, draw: random.Random, pool: list[ClassId], weights: list[ClassId]) -> ClassId:
    one, two = draw.choice(pool[-3:]), draw.choice(pool[-3:])
    kind = draw.choice(("linear", "linear", "sum", "add", "relu", "swish", "scale", "matmul"))
    if kind == "linear":
        return graph.make(aten.linear.default, one, draw.choice(weights))
    if kind == "sum":
        parts = [graph.make(aten.linear.default, one, weight) for weight in draw.sample(weights, 2)]
        return graph.make(aten.add.Tensor, *parts)
    if kind == "scale":
        return graph.make(aten.mul.Tensor, one, 0.5)
    if kind == "swish":
        return graph.make(aten.mul.Tensor, one, graph.make(aten.sigmoid.default, one))
    if kind == "matmul":
        return graph.make(aten.matmul.default, one, draw.choice(weights))
    if kind == "add":
        return graph.make(aten.add.Tensor, one, two)
    return graph.make(aten.relu.default, one)
