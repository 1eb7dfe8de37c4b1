"""Slices written as events of a trace."""

from collections.abc import Sequence

from tightrope.core import Doubt, Event, EventPhase, Module, Summary, Trace
from tightrope_trace.slices import Slice


def inherit(slices: Sequence[Slice], owners: list[int], settled: frozenset[int]) -> None:
    """Give slices the owner of the slice around them, unless they are settled."""
    for position, one in enumerate(slices):
        if one.parent >= 0 and position not in settled:
            owners[position] = owners[one.parent]


def to_trace(
    slices: Sequence[Slice],
    phases: Sequence[EventPhase],
    owners: Sequence[int],
    modules: Sequence[Module],
    summary: Summary,
    doubts: Sequence[Doubt] | None = None,
) -> Trace:
    """Write slices as events; annotations are left out."""
    doubted = doubts if doubts is not None else [Doubt.NONE] * len(slices)
    events = tuple(
        Event(one.start, one.end, -1, one.name, owner, phase, one.thread, doubt=doubt)
        for one, owner, phase, doubt in zip(slices, owners, phases, doubted, strict=True)
        if not one.annotation
    )
    return Trace("observed", (), events, modules=tuple(modules), summary=summary)
