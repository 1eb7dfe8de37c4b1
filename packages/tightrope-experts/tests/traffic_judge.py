"""Check the traffic of all ranks together; shares no code with what plans it.

Idea        Every row is followed by itself, over plain lists: to which ranks it goes, whether together they
            hold its expert once, and what a rank receives and keeps.
Guarantee   Nothing is accepted in which a row is lost, sent twice, sent to a rank that does not hold its
            expert, or in which a rank receives or keeps more than was said.
Complexity  ``O(rows degree)``.
"""

from collections import Counter
from collections.abc import Sequence

from tightrope.core import JudgeError

Sends = Sequence[Sequence[Sequence[Sequence[int]]]]
"""By round, sender and receiver: the sender's rows, by their number among its rows sorted by expert."""


def check_traffic(
    counts: Sequence[Sequence[int]],
    sends: Sends,
    *,
    degree: int,
    most: int,
    keep: int,
    kept: Sequence[Sequence[bool]],
) -> None:
    """Refuse traffic that loses a row or breaks a limit.

    Args:
        counts: rows of each rank by expert.
        sends: see `Sends`.
        degree: ranks that each row goes to; 0 = it stays, and every rank holds all experts.
        most: rows that a rank receives in a round, at most.
        keep: rows that a rank keeps, at most.
        kept: by round and receiver.

    Raises:
        JudgeError: names the round, the row or the rank.
    """
    num_ranks, num_experts = len(counts), len(counts[0])
    experts = [[e for e, number in enumerate(row) for _ in range(number)] for row in counts]
    holders = max(num_ranks // num_experts, 1)
    per_rank = max(num_experts // num_ranks, 1)
    group = holders // max(degree, 1)
    went: Counter[tuple[int, int, int]] = Counter()
    holds = [0] * num_ranks
    for at, froms in enumerate(sends):
        for to in range(num_ranks):
            arrived = sum(len(sender[to]) for sender in froms)
            if arrived > most:
                raise JudgeError(f"Round {at}: rank {to} receives {arrived} rows of at most {most}.")
            holds[to] += arrived * bool(kept[at][to])
            if holds[to] > keep:
                raise JudgeError(f"Round {at}: rank {to} keeps {holds[to]} rows of at most {keep}.")
        for sender, tos in enumerate(froms):
            for to, rows in enumerate(tos):
                for row in rows:
                    if not 0 <= row < len(experts[sender]):
                        raise JudgeError(f"Round {at}: rank {sender} has no row {row}.")
                    expert = experts[sender][row]
                    first = expert * holders if holders > 1 else expert // per_rank
                    if not (first <= to < first + holders if degree else to == sender):
                        raise JudgeError(
                            f"Round {at}: row {row} of rank {sender} goes to rank {to}, which does not hold "
                            f"expert {expert}."
                        )
                    went[sender, row, (to - first) // group if degree else 0] += 1
    for sender, rows_of_it in enumerate(experts):
        for row in range(len(rows_of_it)):
            for part in range(max(degree, 1)):
                if (number := went[sender, row, part]) != 1:
                    raise JudgeError(
                        f"Row {row} of rank {sender} meets part {part} of its expert {number} times."
                    )
