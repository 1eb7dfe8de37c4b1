"""Prove rules by numbers: random sizes, float64, results and gradients."""

import random
from typing import Any, Final

import torch
from torch import Tensor

from tightrope.core import TightropeError
from tightrope_forms.rewrite.egraph import ClassId, EGraph, ENode, call, spec_of
from tightrope_forms.rewrite.rules import RewriteRule

CLOSE: Final = 1e-10
Choice = dict[ClassId, ENode]


def evaluate(graph: EGraph, root: ClassId, choice: Choice, leaves: dict[ClassId, Any]) -> Any:
    """Compute a class with the nodes that are chosen; the first node of a class stands for what is not."""
    known = {graph.find(one): value for one, value in leaves.items()}

    def value_of(one: ClassId) -> Any:
        one = graph.find(one)
        if one not in known:
            node = choice.get(one) or next(iter(graph.nodes[one]))
            known[one] = call(node.op, node.args, [value_of(child) for child in node.children])
        return known[one]

    return value_of(root)


def prove(name: str, rule: RewriteRule, *, times: int, seed: int = 0) -> float:
    """Apply a rule to random examples, and compare every form that it finds with the example.

    Args:
        name: of the rule, for messages.
        rule: with its example.
        times: examples.
        seed: of sizes, options and numbers.

    Returns:
        The largest difference, relative to the largest number of a result or gradient.

    Raises:
        TightropeError: a form differs by more than `CLOSE`, or the rule does not apply to an example.
    """
    draw, worst = random.Random(seed), 0.0
    torch_draw = torch.Generator().manual_seed(seed)
    for number in range(times):
        graph, leaves = EGraph(), {}

        def leaf(*shape: int, grad: bool = True) -> ClassId:
            made = torch.randn(shape, dtype=torch.float64, generator=torch_draw).requires_grad_(grad)
            one = graph.leaf(spec_of(made))  # noqa: B023 called in this round
            leaves[one] = made  # noqa: B023
            return one

        root = rule.example(graph, leaf, draw)
        right = _results(graph, root, {}, leaves)
        news = [graph.unite(pairs, name) for pairs in rule.apply(graph)]
        graph.rebuild()
        forms = [dict(moves) for moves in graph.applied]
        if graph.find(root) in {graph.find(one) for one in leaves}:  # equal to something that came in
            forms = [{}]
        if not any(news) or not forms:
            raise TightropeError(f"The rule {name!r} does not apply to its example {number} (seed {seed}).")
        for form in forms:
            found = _results(graph, graph.find(root), form, leaves)
            far = max(_far(one, other) for one, other in zip(found, right, strict=True))
            worst = max(worst, far)
            if not far <= CLOSE:
                raise TightropeError(
                    f"The rule {name!r} is wrong by {far:.1e} on example {number} (seed {seed})."
                )
    return worst


def _results(graph: EGraph, root: ClassId, choice: Choice, leaves: dict[ClassId, Tensor]) -> list[Tensor]:
    made = evaluate(graph, root, choice, leaves)
    wanted = [one for one in leaves.values() if one.requires_grad]
    back = torch.linspace(-1, 1, made.numel(), dtype=made.dtype).view_as(made)
    grads = torch.autograd.grad(made, wanted, back, allow_unused=True)
    return [
        made,
        *(torch.zeros_like(x) if one is None else one for one, x in zip(grads, wanted, strict=True)),
    ]


def _far(found: Tensor, right: Tensor) -> float:
    if found.shape != right.shape or not bool(found.isfinite().all()):
        return float("inf")
    found, right = found.detach(), right.detach()
    return float((found - right).abs().max() / right.abs().max().clamp(min=1e-3))
