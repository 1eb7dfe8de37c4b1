"""The allocation timeline of an executable.

Time counts allocations and releases in fast memory, one tick each, in the order of the
instructions. What the caller holds and copies in slower tiers are not in it.
"""

from collections.abc import Sequence
from itertools import accumulate

from tightrope.core import Alloc, Buffer, Bytes, Executable, Release, Trace
from tightrope.core.executable import ARENA, HEAP


def timeline(executable: Executable) -> Trace:
    """List every allocation that ops make in fast memory.

    Returns:
        Buffers in allocation order, alive in ``[start, end)`` ticks; those that outlive the step end
        at ``num_events``. ``storage`` is -1 for temporaries, ``offset`` where there is no address.

    Example:
        >>> from tightrope.core import Compute, Free, Graph, Op, Schedule, Storage
        >>> from tightrope.lower import lower
        >>> graph = Graph((Op(0, "a", "a", creates=(0,)),), (Storage(0, 100),))
        >>> timeline(lower(graph, Schedule((Compute(0), Free(0))))).buffers
        (Buffer(bytes=100, start=0, end=1, storage=0),)
    """
    tick = 0
    rows: list[Alloc] = []
    starts: list[int] = []
    row_of: dict[int, int] = {}
    ends: dict[int, int] = {}
    for event in executable.flat():
        if isinstance(event, Alloc) and event.space in (ARENA, HEAP):
            row_of[event.buffer] = len(rows)
            rows.append(event)
            starts.append(tick)
            tick += 1
        elif isinstance(event, Release) and event.buffer in row_of:
            ends[row_of[event.buffer]] = tick
            tick += 1
    return Trace(
        "forecast",
        tuple(
            Buffer(row.bytes, start, ends.get(k, tick), row.offset, row.storage)
            for k, (row, start) in enumerate(zip(rows, starts, strict=True))
        ),
        num_events=tick,
    )


def charged_sizes(executable: Executable) -> tuple[Bytes, ...]:
    """List the bytes charged for each buffer of the timeline."""
    return tuple(executable.charged(row) for row in _rows(executable))


def outside_flags(executable: Executable) -> tuple[bool, ...]:
    """Tell for each buffer of the timeline whether it lies outside the arena."""
    return tuple(row.space == HEAP for row in _rows(executable))


def _rows(executable: Executable) -> list[Alloc]:
    return [e for e in executable.flat() if isinstance(e, Alloc) and e.space in (ARENA, HEAP)]


def largest_sum(trace: Trace, amounts: Sequence[Bytes]) -> Bytes:
    """Find the largest sum at one tick of ``amounts``, one per buffer of a timeline."""
    change = [0] * (trace.num_events + 1)
    for buffer, amount in zip(trace.buffers, amounts, strict=True):
        change[buffer.start] += amount
        change[buffer.end] -= amount
    return max(accumulate(change))


def peak_bytes(executable: Executable) -> Bytes:
    """Find the largest number of bytes that ops hold at once, in the arena and outside."""
    return largest_sum(timeline(executable), charged_sizes(executable))
