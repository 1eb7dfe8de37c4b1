"""The schedules that torch ships, as places where the search for a better one begins.

Idea        Every order of torch's that exists for a placement is given as torch wires it, with its messages
            and gathers, and as bare computations, which the planner wires and changes itself.
Source      `torch.distributed.pipelining`; among them zero bubble (Qi et al. 2024) and DualPipeV.
Guarantee   With these as starts, no schedule of torch's that fits is faster than the plan.
Complexity  That of torch's own generators, linear to quadratic in the actions.
Gaps        Left out above `MOST` computations, where torch takes long to write them down.
"""

from collections.abc import Iterator
from typing import Final

from tightrope.core import TightropeError
from tightrope_ranks.pipeline.generate import folded, looped
from tightrope_ranks.pipeline.language import COMPUTE, Action, Orders
from tightrope_ranks.values.ranks import StageWork

MOST: Final = 8192
"""Stages times micro-batches up to which torch is asked."""
_ONE: Final = ("GPipe", "1F1B")
_LOOPED: Final = ("InterleavedZeroBubble", "Interleaved1F1B", "LoopedBFS")
_FOLDED: Final = ("ZBVZeroBubble", "DualPipeV")


def shipped(work: StageWork) -> Iterator[tuple[str, Orders]]:
    """List torch's schedules for a placement, each with its messages.

    >>> from tightrope_ranks.values.ranks import StageCost
    >>> [name for name, _ in shipped(StageWork((StageCost(1, 1),) * 2, (0, 1), 4))]
    ['GPipe', '1F1B']
    """
    from tightrope_ranks.pipeline._torch import torch_orders

    ranks, count = work.num_ranks, len(work.stages)
    per_rank = count // ranks
    if count * work.num_micro_batches > MOST or count % ranks:
        return
    names: tuple[str, ...] = ()
    if work.owners == looped(ranks, per_rank):
        names = _ONE if per_rank == 1 else _LOOPED
    elif per_rank == 2 and work.owners == folded(ranks):
        names = _FOLDED
    for name in names:
        try:
            orders = torch_orders(name, ranks, per_rank, work.num_micro_batches, sharded=work.sharded)
        except TightropeError:
            continue  # torch has no such schedule for these numbers
        yield name, tuple(tuple(action for action in row if _moves(work, action)) for row in orders)


def _moves(work: StageWork, action: Action) -> bool:
    """Tell whether an action is anything: there are no gradients between frozen stages."""
    stage, kind, _ = action
    return work.hands_back(stage + (kind == "RECV_B")) if kind in ("SEND_B", "RECV_B") else True


def bare(orders: Orders) -> Orders:
    r"""Leave only computations.

    >>> from tightrope_ranks.pipeline.language import read_csv, write_csv
    >>> write_csv(bare(read_csv("0F0,0SEND_F0,0RECV_B0,0B0")))
    '0F0,0B0\n'
    """
    return tuple(tuple(action for action in row if action.kind in COMPUTE) for row in orders)
