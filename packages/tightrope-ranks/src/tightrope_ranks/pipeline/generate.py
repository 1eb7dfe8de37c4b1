"""Published orders of a pipeline: what each rank computes, by rank, stages per rank and micro-batches.

Idea        An order is a row of forwards and backwards per rank. `looped` places stage s on rank s mod P;
            `folded` turns back at the last rank, so that the first and the last stage share rank 0.
Source      GPipe (Huang et al. 2019); 1F1B (Narayanan et al. 2019); interleaved 1F1B (Narayanan et al.
            2021); breadth-first (Lamy-Poirier 2023, arXiv 2211.05953).
Guarantee   Every order runs to its end with sends that do not wait for their receivers.
Complexity  Linear in the actions.
Gaps        Zero-bubble orders come from `tightrope_ranks.pipeline.listing`, which fills idle time with
            halves of backwards.
"""

from collections.abc import Sequence
from itertools import chain, pairwise

from tightrope_ranks.pipeline.language import Action, Orders


def looped(num_ranks: int, per_rank: int) -> tuple[int, ...]:
    """Place stage s on rank s mod P.

    >>> looped(2, 2)
    (0, 1, 0, 1)
    """
    return tuple(stage % num_ranks for stage in range(num_ranks * per_rank))


def folded(num_ranks: int, per_rank: int = 2) -> tuple[int, ...]:
    """Place stages to and fro over the ranks.

    >>> folded(2)
    (0, 1, 1, 0)
    """
    there = tuple(range(num_ranks))
    return tuple(chain.from_iterable(there[:: 1 if turn % 2 == 0 else -1] for turn in range(per_rank)))


def gpipe(num_ranks: int, num_micro: int) -> Orders:
    """All forwards, then all backwards, one stage per rank."""
    return tuple(
        tuple(Action(rank, kind, m) for kind in "FB" for m in range(num_micro)) for rank in range(num_ranks)
    )


def one_f_one_b(num_ranks: int, num_micro: int) -> Orders:
    """One forward, one backward in turns after P - r forwards, one stage per rank."""
    return interleaved(num_ranks, 1, num_micro)


def breadth_first(num_ranks: int, per_rank: int, num_micro: int, *, mirrored: bool = False) -> Orders:
    """All micro-batches through one stage of a rank, then all through its next one.

    Args:
        num_ranks: P.
        per_rank: stages of each rank.
        num_micro: micro-batches.
        mirrored: whether the backward takes micro-batches in descending order, as torch's does. Ascending
            order adds gradients up as one process does, to the bit.
    """
    back = range(num_micro)[:: -1 if mirrored else 1]
    return tuple(
        tuple(Action(v * num_ranks + rank, "F", m) for v in range(per_rank) for m in range(num_micro))
        + tuple(Action(v * num_ranks + rank, "B", m) for v in reversed(range(per_rank)) for m in back)
        for rank in range(num_ranks)
    )


def interleaved(num_ranks: int, per_rank: int, num_micro: int, *, group: int = 0) -> Orders:
    """Groups of micro-batches through all stages of a rank, forwards and backwards in turns.

    Args:
        num_ranks: P.
        per_rank: stages of each rank.
        num_micro: any number of micro-batches.
        group: micro-batches that take a stage together; 0 = P. ``num_micro`` or more gives the order of
            breadth-first forwards; what lies between is the hybrid of both.
    """
    group = min(max(group or num_ranks, num_ranks), num_micro)
    # groups of at least P and about equal size: a smaller one would leave the last ranks waiting
    num_groups = max(1, num_micro // group)
    cuts = [round(k * num_micro / num_groups) for k in range(num_groups + 1)]
    groups = [range(a, b) for a, b in pairwise(cuts)]
    first = max(map(len, groups))
    rows = []
    for rank in range(num_ranks):
        stages = [v * num_ranks + rank for v in range(per_rank)]
        forwards = [Action(s, "F", m) for some in groups for s in stages for m in some]
        backwards = [Action(s, "B", m) for some in groups for s in reversed(stages) for m in some]
        ahead = num_ranks - 1 - rank if per_rank == 1 else (per_rank - 1) * first + 2 * (num_ranks - 1 - rank)
        rows.append(_in_turns(forwards, backwards, min(ahead, len(forwards))))
    return tuple(rows)


def _in_turns(forwards: Sequence[Action], backwards: Sequence[Action], ahead: int) -> tuple[Action, ...]:
    turns = chain.from_iterable(zip(forwards[ahead:], backwards, strict=False))
    return (*forwards[:ahead], *turns, *backwards[len(forwards) - ahead :])
