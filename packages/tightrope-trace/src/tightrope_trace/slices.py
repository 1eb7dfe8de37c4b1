"""Slices of a profile: what ran on which thread and inside what, from torch's Chrome JSON."""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tightrope.core import Nanoseconds, PlanFileError
from tightrope.core.json_text import quote
from tightrope.record.tables import clip
from tightrope_trace.chrome import KINDS, ChromeEvent, open_events, read_events

MAX_SLICES: Final = 5_000_000
_LONGEST_NS: Final = 2**53
_USED: Final = ("Sequence number", "Fwd thread id")
STANDARD: Final = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)")
"""Annotations that torch itself makes; all others are somebody's own."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One stretch of time.

    Attributes:
        name: as recorded.
        start: nanoseconds since the first slice.
        end: likewise.
        thread: 0 is the one that has the first slice.
        parent: position of the slice around it, on the same thread, or -1.
        sequence: number that a forward op and its backward share, or -1.
        backward: whether the autograd engine ran it, as far as the sequence numbers tell.
        annotation: made by ``record_function``, not by an op.
        moves: a driver copied bytes inside.
    """

    name: str
    start: Nanoseconds
    end: Nanoseconds
    thread: int = 0
    parent: int = -1
    sequence: int = -1
    backward: bool = False
    annotation: bool = False
    moves: bool = False


def read_profile(path: str | Path, *, limit: int = 2**30) -> tuple[Slice, ...]:
    """Read a Chrome trace as ``torch.profiler`` exports it, packed by gzip or not.

    Args:
        path: of the file.
        limit: bytes of the file; what is packed in it may be longer, see `tightrope_trace.chrome`.

    Raises:
        PlanFileError: the file cannot be read, or `parse_profile` refuses it.
    """
    return _slices(open_events(path, limit=limit), str(path))


def parse_profile(data: bytes, name: str = "profile") -> tuple[Slice, ...]:
    """Parse a Chrome trace as ``torch.profiler`` exports it: JSON or gzipped JSON.

    The events are a list, closed or not, or the ``traceEvents`` of an object, wherever in it these stand.

    Returns:
        Ops and annotations by start, the outer one first.

    Raises:
        PlanFileError: not such a file: says what is wrong.

    Example:
        >>> text = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "dur": 2}]}'
        >>> [(one.name, one.start, one.end) for one in parse_profile(text)]
        [('aten::mm', 0, 2000)]
    """
    return _slices(read_events(io.BytesIO(data), name), name)


def _slices(rows: Iterable[ChromeEvent], name: str) -> tuple[Slice, ...]:
    kept = list(_limited(rows, name))
    base = min((row.ts for row in kept if row.cat in KINDS), default=0.0)
    threads: dict[Any, int] = {}
    found = []
    for row in kept:
        copy = row.cat not in KINDS
        start, duration = round((row.ts - base) * 1000), round(row.dur * 1000)
        if copy and start < 0:
            continue
        if not 0 <= start <= _LONGEST_NS or not 0 <= duration <= _LONGEST_NS:
            raise PlanFileError(f"{name}: slice {quote(row.name)} has time {row.ts} and duration {row.dur}.")
        found.append(
            Slice(
                clip(row.name),
                start,
                start + duration,
                threads.setdefault((row.pid, row.tid), len(threads)),
                sequence=_whole(row.args, "Sequence number"),
                backward=_whole(row.args, "Fwd thread id") > 0,
                annotation=row.cat == "user_annotation",
                moves=copy,
            )
        )
    return _with_moves(nested(found))


def _limited(rows: Iterable[ChromeEvent], name: str) -> Iterator[ChromeEvent]:
    """At most as many slices as there may be, with no more of their arguments than is used."""
    for count, row in enumerate(rows):
        if count >= MAX_SLICES:
            raise PlanFileError(f"{name}: more than {MAX_SLICES} slices, the most that is read.")
        row.args = {key: row.args[key] for key in _USED if key in row.args} if row.args else None
        yield row


def _with_moves(slices: tuple[Slice, ...]) -> tuple[Slice, ...]:
    """Leave out the driver's copies, and mark what called them."""
    if not any(one.moves for one in slices):
        return slices
    moving = [one.moves for one in slices]
    for position in range(len(slices) - 1, -1, -1):
        if moving[position] and slices[position].parent >= 0:
            moving[slices[position].parent] = True
    new, found = [-1] * len(slices), list[Slice]()
    for position, one in enumerate(slices):
        if not one.moves:
            new[position] = len(found)
            parent = new[one.parent] if one.parent >= 0 else -1
            found.append(replace(one, parent=parent, moves=moving[position]))
    return tuple(found)


def _whole(args: dict[str, Any] | None, name: str) -> int:
    value = -1 if args is None else args.get(name, -1)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62 else -1


def nested(slices: list[Slice]) -> tuple[Slice, ...]:
    """Order slices by start, the outer one first, and find the parent of each.

    A slice that reaches beyond the one around it by rounding is cut to fit.
    """
    ordered = sorted(slices, key=lambda one: (one.start, -one.end))
    stacks: dict[int, list[tuple[int, Nanoseconds]]] = {}
    found = []
    for position, one in enumerate(ordered):
        stack = stacks.setdefault(one.thread, [])
        while stack and stack[-1][1] <= one.start and stack[-1][1] < max(one.end, one.start + 1):
            stack.pop()
        parent = stack[-1][0] if stack else -1
        end = min(one.end, stack[-1][1]) if stack else one.end
        found.append(
            Slice(
                one.name,
                one.start,
                end,
                one.thread,
                parent,
                one.sequence,
                one.backward,
                one.annotation,
                one.moves,
            )
        )
        stack.append((position, end))
    return tuple(found)


def without_annotations(slices: tuple[Slice, ...]) -> tuple[Slice, ...]:
    """Drop all annotations but those that torch itself makes; sequence numbers too."""
    return nested(
        [
            replace(one, parent=-1, sequence=-1, backward=False)
            for one in slices
            if not one.annotation or one.name.startswith(STANDARD)
        ]
    )
