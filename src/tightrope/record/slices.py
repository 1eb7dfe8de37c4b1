"""Slices of a profile: what ran on which thread and inside what, from torch's Chrome JSON."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from tightrope.core import Nanoseconds, PlanFileError
from tightrope.core.codec import read_file
from tightrope.core.json_text import quote
from tightrope.record.tables import clip

MAX_SLICES: Final = 5_000_000
_LONGEST_NS: Final = 2**53
_KINDS: Final = frozenset({"cpu_op", "user_annotation", "Operator"})
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
    """

    name: str
    start: Nanoseconds
    end: Nanoseconds
    thread: int = 0
    parent: int = -1
    sequence: int = -1
    backward: bool = False
    annotation: bool = False


class _Row(msgspec.Struct, gc=False):
    """One entry of ``traceEvents``; only what is used."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    tid: int | str = 0
    pid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] | None = None


class _File(msgspec.Struct):
    traceEvents: list[_Row]


def read_profile(path: str | Path, *, limit: int = 2**30) -> tuple[Slice, ...]:
    """Read a Chrome trace as ``torch.profiler`` exports it, of at most ``limit`` bytes.

    Raises:
        PlanFileError: the file cannot be read, or `parse_profile` refuses it.
    """
    return parse_profile(read_file(path, limit=limit), str(path))


def parse_profile(data: bytes, name: str = "profile") -> tuple[Slice, ...]:
    """Parse a Chrome trace as ``torch.profiler`` exports it, JSON or gzipped JSON.

    Returns:
        Ops and annotations by start, the outer one first.

    Raises:
        PlanFileError: not such a file: says what is wrong.

    Example:
        >>> text = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "dur": 2}]}'
        >>> [(one.name, one.start, one.end) for one in parse_profile(text)]
        [('aten::mm', 0, 2000)]
    """
    try:
        rows = msgspec.json.decode(data, type=_File).traceEvents
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise PlanFileError(f"{name}: not a Chrome trace of torch.profiler: {quote(str(error))}.") from error
    kept = [row for row in rows if row.ph == "X" and row.cat in _KINDS]
    if len(kept) > MAX_SLICES:
        raise PlanFileError(f"{name}: {len(kept)} slices; the most that is read is {MAX_SLICES}.")
    base = min((row.ts for row in kept), default=0.0)
    threads: dict[Any, int] = {}
    found = []
    for row in kept:
        start, duration = round((row.ts - base) * 1000), round(row.dur * 1000)
        if not 0 <= start <= _LONGEST_NS or not 0 <= duration <= _LONGEST_NS:
            raise PlanFileError(f"{name}: slice {quote(row.name)} has time {row.ts} and duration {row.dur}.")
        sequence = _whole(row.args, "Sequence number")
        found.append(
            Slice(
                clip(row.name),
                start,
                start + duration,
                threads.setdefault((row.pid, row.tid), len(threads)),
                sequence=sequence,
                backward=_whole(row.args, "Fwd thread id") > 0,
                annotation=row.cat == "user_annotation",
            )
        )
    return nested(found)


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
            )
        )
        stack.append((position, end))
    return tuple(found)


def without_annotations(slices: tuple[Slice, ...]) -> tuple[Slice, ...]:
    """Drop all annotations but those that torch itself makes; sequence numbers too."""
    return nested(
        [
            Slice(one.name, one.start, one.end, one.thread, annotation=one.annotation)
            for one in slices
            if not one.annotation or one.name.startswith(STANDARD)
        ]
    )
