"""Check that the ranks of a group meet: every collective is called by all of them, at the same point.

Idea        Read each rank's collectives off what runs: what is called, on which group, with tensors of which
            look. Let the ranks go on together: a collective takes place when it is next on every rank of its
            group. When none can and some rank is not at its end, the ranks wait for ever.
Guarantee   Passes exactly when all ranks get to their ends and no two ranks call one collective with
            different tensors. Which of several collectives goes first does not matter: each rank
            has one next, so the order that is tried finds an end if there is one.
Complexity  Linear in the collectives of all ranks, times the ranks of a group
Gaps        Collectives of `tightrope_ranks.sequence`, which block; not what is sent from rank to rank.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tightrope.core import Executable, JudgeError, Run, View

_PREFIX = "tightrope_ranks."


class Meeting(NamedTuple):
    """One call of a collective, as a rank sees it.

    Attributes:
        kind: ``gather``, ``scatter`` or ``sum``.
        group: its name.
        ranks: number of ranks that it says take part.
        given: dtype and shape of the tensor that it is given.
        made: and of the one that it makes.
        op: of the rank's graph.
    """

    kind: str
    group: str
    ranks: int
    given: tuple[str, tuple[int, ...]]
    made: tuple[str, tuple[int, ...]]
    op: int

    def agrees(self, other: "Meeting") -> bool:
        """Whether two ranks call the same."""
        return self[:5] == other[:5]


def meetings(executable: Executable) -> tuple[Meeting, ...]:
    """List the collectives of a rank in the order in which they run.

    Raises:
        JudgeError: one has no tensor, number of ranks and group, or another shape than it must.
    """
    return tuple(_meeting(run) for run in executable.runs() if run.target.startswith(_PREFIX))


def check_collectives(ranks: Sequence[Executable], groups: Mapping[str, Sequence[int]]) -> int:
    """Refuse ranks that would wait for each other, or call one collective with different tensors.

    Args:
        ranks: what each rank runs.
        groups: by name, the ranks of each group.

    Returns:
        Number of collectives that take place.

    Raises:
        JudgeError: names the rank, the op and what the others do.
    """
    lists = [meetings(executable) for executable in ranks]
    for rank, found in enumerate(lists):
        for meeting in found:
            _check_group(rank, meeting, groups)
    at = [0] * len(lists)
    num = 0
    waiting = list(range(len(lists)))
    while waiting:
        rank = waiting.pop()
        if at[rank] == len(lists[rank]):
            continue
        meeting = lists[rank][at[rank]]
        members = groups[meeting.group]
        heads = [lists[m][at[m]] if at[m] < len(lists[m]) else None for m in members]
        if any(head is None or head.group != meeting.group for head in heads):
            continue
        for member, head in zip(members, heads, strict=True):
            if head is not None and not meeting.agrees(head):
                raise JudgeError(
                    f"collective {num} of group {meeting.group!r}: rank {rank} calls {_text(meeting)}, "
                    f"rank {member} calls {_text(head)}."
                )
            at[member] += 1
        num += 1
        waiting += [m for m in members if m not in waiting]
    stuck = [rank for rank, found in enumerate(lists) if at[rank] < len(found)]
    if stuck:
        texts = (f"rank {rank} in {_text(lists[rank][at[rank]])}" for rank in stuck[:4])
        raise JudgeError(f"ranks wait for ever after {num} collectives: {', '.join(texts)}.")
    return num


def _check_group(rank: int, meeting: Meeting, groups: Mapping[str, Sequence[int]]) -> None:
    members = groups.get(meeting.group)
    if members is None or rank not in members or len(members) != meeting.ranks:
        raise JudgeError(
            f"rank {rank}: {_text(meeting)} is of group {meeting.group!r} with {meeting.ranks} ranks; it "
            f"has {list(members) if members is not None else 'none'}."
        )


def _meeting(run: Run) -> Meeting:
    kind = run.target.removeprefix(_PREFIX).partition(".")[0]
    given = next(iter(_views(run.arguments[:1])), None)
    ranks, group = (*run.arguments[1:3], None, None)[:2]
    if given is None or len(run.results) != 1 or not isinstance(ranks, int) or not isinstance(group, str):
        raise JudgeError(f"op {run.op}: {run.target} without a tensor, a number of ranks and a group.")
    made = run.results[0].view
    rows = {
        "gather": (given.shape[0] * ranks, *given.shape[1:]),
        "scatter": (given.shape[0] // max(ranks, 1), *given.shape[1:]),
        "sum": given.shape,
    }.get(kind)
    if rows != made.shape or given.dtype != made.dtype:
        raise JudgeError(
            f"op {run.op}: {kind} of {given.dtype}{list(given.shape)} on {ranks} ranks cannot give "
            f"{made.dtype}{list(made.shape)}."
        )
    return Meeting(kind, group, ranks, (given.dtype, given.shape), (made.dtype, made.shape), run.op)


def _views(values: Iterable[object]) -> list[View]:
    return [value for value in values if isinstance(value, View)]


def _text(meeting: Meeting) -> str:
    dtype, shape = meeting.given
    return f"{meeting.kind}({dtype}{list(shape)}) of op {meeting.op}"
