"""Where all gradients are needed before any is used: play the first pass a second time.

Idea        Clipping by norm reads every gradient twice, on both sides of the total norm. The ops in front
            of it are a graph of their own, in which every gradient dies at its norm. A plan for that graph
            is played twice: as it is, and again behind the total norm, where every op runs just before the
            first scaled gradient that comes of it, with what the plan runs again there. Search goes on
            from that set: dropping one gradient at a time may never pay, all of them together does.
Source      two passes as in LOMO (ACL 2024), here over any plan of the first
Guarantee   The set is valid: a pair that is not allowed is left out. What it holds is measured.
Complexity  that of planning the first pass, beside linear work
Gaps        Both passes follow one plan, though the second may need less.

    ops    | first pass | total norm | scale, update ...      pairs  | plan | | first pass and plan, again |
"""

from tightrope.core import Graph
from tightrope.core.total_norm import total_norm_of, used_again
from tightrope.plan.layers import renumbered
from tightrope.plan.model import Model, Pair


def first_pass(graph: Graph) -> Graph | None:
    """The ops in front of the total norm as a graph of their own; None where there is none.

    Example:
        >>> first_pass(Graph((), ())) is None
        True
    """
    total = total_norm_of(graph)
    if total < 0:
        return None
    ops = list(graph.ops[:total])
    return renumbered(graph, ops, {op.variant: graph.op(op.variant) for op in ops if op.variant >= 0})


def played_twice(graph: Graph, model: Model, pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
    """Turn pairs for the first pass into pairs for both.

    Args:
        graph: with a total norm.
        model: of the graph.
        pairs: for `first_pass` of it.
    """
    behind = used_again(graph)
    second = {(stage, op) for op, stage in behind.items()}
    second |= {(behind[stage], op) for stage, op in pairs if stage in behind}
    return tuple(sorted({*pairs, *filter(model.allowed, second)}))
