"""Selective activation recomputation: run the core of attention again, keep everything else.

Idea        Scores, softmax, their dropout: many bytes, little time. Each core is dropped after its first
            run and runs again just before the first op of the backward pass that reads from it. As many
            cores as the limit needs are treated so, first layers first.
Source      Korthikanti et al., Reducing activation recomputation in large transformer models (2022)
Guarantee   Every op runs at most twice. `activation_bytes` and `flops_ratio` are the paper's closed forms.
Complexity  Linear in the graph, one evaluation per core
Gaps        A fused attention kernel stores no scores: there is nothing left to drop.
"""

from typing import Final, Literal

from tightrope.core import Graph, Limits, Machine, Schedule, TightropeError
from tightrope.plan.engine import live_limit, open_solver
from tightrope.plan.model import Pair, build
from tightrope.plan.options import Options
from tightrope.plan.schedule import expand
from tightrope_shared.attention import TransformerShape, attention_cores, core_pairs

_FUSED: Final = "scaled_dot_product"


def activation_bytes(shape: TransformerShape, *, recompute: Literal["none", "selective", "full"]) -> float:
    """Bytes of activations that the backward pass of all layers needs, per device (equations 1, 4, 6).

    Example:
        >>> gpt3 = TransformerShape(s=2048, b=1, h=12288, a=96)
        >>> saved = activation_bytes(gpt3, recompute="selective") / activation_bytes(gpt3, recompute="none")
        >>> round(1 - saved, 2)
        0.7
    """
    each = shape.s * shape.b * shape.h / shape.t
    if recompute == "full":
        return shape.layers * 2 * shape.s * shape.b * shape.h
    scores = 5 * shape.a * shape.s / shape.h if recompute == "none" else 0.0
    return shape.layers * each * (34 + scores)


def flops_ratio(shape: TransformerShape) -> float:
    """Operations with selective recomputation over those without (equations 7 and 9).

    Example:
        >>> round(flops_ratio(TransformerShape(s=2048, b=1, h=12288, a=96, layers=96, v=51200)), 3)
        1.027
    """
    s, h = shape.s, shape.h
    head = shape.v / (12 * h * shape.layers)
    return (1 + s / (3 * h) + head) / (1 + s / (6 * h) + head)


def selective(graph: Graph, machine: Machine | None, limits: Limits, options: Options) -> Schedule:
    """Run attention cores again; the fewest that fit, else all.

    Raises:
        TightropeError: the graph has no attention.
    """
    del machine
    model, limit = build(graph), live_limit(graph, limits)
    cores = attention_cores(graph)
    if not cores and not any(_FUSED in op.target for op in graph.ops):
        raise TightropeError(
            f"selective recomputes attention, and none of the {len(graph.ops)} ops is a softmax of the "
            'forward pass. Use planner="auto".'
        )
    solver = open_solver(model)
    pairs: tuple[Pair, ...] = ()
    for number in range(len(cores) + 1):
        pairs = core_pairs(graph, model, cores[:number])
        solver.load(pairs)
        if solver.state(limit).excess == 0:
            break
    return expand(graph, pairs)
