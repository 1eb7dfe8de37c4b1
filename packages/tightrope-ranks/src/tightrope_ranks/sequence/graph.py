"""The graph of one rank: its collectives may run again, and its gradients have memory of their own.

Idea        A gather, a scatter or a sum gives equal results for equal inputs, so it is a variant of itself:
            the planner may run it again like any op, at the price of what it sends. That is right only
            where every rank of the group runs it at the same point, so ranks of a group have one plan.
Guarantee   The captured graph but for variants and for where gradients live. Nothing is run or allocated, and
            no process group is needed: one process captures a rank of any number.
Complexity  One capture.
Gaps        Ranks whose graphs differ need plans that agree on collectives, see
            `tightrope_ranks.judge.collectives`.
"""

from typing import Final

import torch
from msgspec.structs import replace

from tightrope.capture import capture
from tightrope.core import Flag, Graph, Kind, Op
from tightrope.lower import with_writes
from tightrope_ranks.sequence.collectives import NAMESPACE
from tightrope_ranks.sequence.layers import Division, Stack
from tightrope_shared.attention import TransformerShape

COLLECTIVES: Final = tuple(f"{NAMESPACE}.{kind}.default" for kind in ("gather", "scatter", "sum"))


def is_collective(op: Op) -> bool:
    """Whether an op is one of `tightrope_ranks.sequence.collectives`.

    >>> is_collective(Op(0, "g", "tightrope_ranks.gather.default"))
    True
    """
    return op.target in COLLECTIVES


def collectives_again(graph: Graph) -> Graph:
    """Let every collective run again, by a variant that calls the same.

    Use it where all ranks of a group run one plan; without it no planner runs a collective again.
    """
    ops, variants = list(graph.ops), list(graph.variants)
    for op in graph.ops:
        if is_collective(op) and op.variant < 0:
            number = len(ops) + len(variants)
            variants.append(
                replace(op, id=number, name=f"{op.name}_again", flags=Flag.COLLECTIVE, variant=-1)
            )
            ops[op.id] = replace(op, variant=number)
    return replace(graph, ops=tuple(ops), variants=tuple(variants))


def gradients_outside(graph: Graph) -> Graph:
    """Let gradients of parameters live outside the arena, as where they are added to buffers that stay.

    What is left in the arena is activations and what passes between ops: the paper's subject.
    """
    storages = tuple(
        replace(storage, outside=True) if storage.kind is Kind.GRADIENT else storage
        for storage in graph.storages
    )
    return replace(graph, storages=storages)


def capture_rank(
    shape: TransformerShape,
    division: Division,
    *,
    dropout: float = 0.1,
    dtype: torch.dtype = torch.bfloat16,
    again: bool = True,
) -> Graph:
    """Capture the layers of one rank, forward and backward, from sizes alone.

    Args:
        shape: in the paper's letters; ``layers`` of them; ``t`` is not read, ``division.ranks`` is.
        division: how the layers are divided.
        dropout: probability.
        dtype: of values and parameters.
        again: whether collectives may run again.

    Returns:
        A graph without prices, see `tightrope_ranks.sequence.priced`.

    Raises:
        TightropeError: sizes that do not divide.

    Example:
        >>> graph = capture_rank(TransformerShape(s=64, b=1, h=64, a=8), Division(mode="sequence", ranks=8))
        >>> sum(is_collective(op) for op in graph.ops)
        8
    """
    model = Stack(
        shape.layers, shape.h, shape.a, shape.s, division, dropout=dropout, dtype=dtype, device="meta"
    )
    rows = torch.empty(
        shape.s // division.rows, shape.b, shape.h, dtype=dtype, device="meta", requires_grad=True
    )
    graph = with_writes(gradients_outside(capture(model, rows)))
    return collectives_again(graph) if again else graph
