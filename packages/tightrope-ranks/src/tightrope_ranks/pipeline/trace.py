"""The forecast of a plan of all ranks as a trace: what every rank computes and sends when, and its bytes.

Idea        The actions are read from the executables that were judged, and simulated once more. Every rank is
            a module below the root; computing is one thread of it, each peer it sends to another, and the
            exchange with its replicas a third kind. Bytes over time are a counter per rank.
Guarantee   The last event ends with the forecast of the plan, and the largest value of a counter is the
            forecast peak of its rank. What runs again is an event of its own before its backward.
Complexity  Linear in the actions.
Gaps        No buffers: what a rank holds is one figure over time, not a picture of allocations.
"""

from collections.abc import Iterator
from typing import Final

from tightrope.core import Counter, Event, EventPhase, Module, Summary, Trace
from tightrope.core.units import Nanoseconds
from tightrope_ranks.pipeline.emit import emitted
from tightrope_ranks.pipeline.language import Action
from tightrope_ranks.pipeline.simulate import COMPUTES, Timeline, simulate
from tightrope_ranks.values.ranks import JointPlan

_PHASES: Final = {"F": EventPhase.FORWARD, "B": EventPhase.BACKWARD, "I": EventPhase.BACKWARD}


def ranks_trace(plan: JointPlan, *, name: str = "") -> Trace:
    """Write the forecast of all ranks as one trace.

    Args:
        plan: see `tightrope_ranks.plan`.
        name: of the model, for people.

    Returns:
        A forecast: events by start, module 1 + r is rank r, and counter r is its bytes.

    Example:
        >>> from tightrope.core import DeviceLink, Machine
        >>> from tightrope_ranks.pipeline import gpipe, lower, with_wires
        >>> from tightrope_ranks.values.ranks import StageCost, StageWork
        >>> work = StageWork((StageCost(1, 1, output=8), StageCost(1, 1, input=8)), (0, 1), 2)
        >>> made = lower(work, Machine("m", (), links=(DeviceLink("l"),)), with_wires(work, gpipe(2, 2)))
        >>> [counter.name for counter in ranks_trace(made).counters]
        ['rank 0', 'rank 1']
    """
    told = [emitted(plan.work, rank) for rank in plan.ranks]
    orders = tuple(one.actions for one in told)
    again = frozenset(pair for one in told for pair in one.again)
    timeline = simulate(plan.work, plan.machine, orders, again=again)
    threads: dict[tuple[int, int], int] = {(rank, rank): rank for rank in range(len(orders))}
    events = [
        event
        for rank, row in enumerate(orders)
        for action, span in zip(row, timeline.spans[rank], strict=True)
        for event in _events(plan, rank, action, span, again, threads)
    ]
    events.sort(key=lambda event: (event.start, -event.end))
    return Trace(
        "forecast",
        (),
        tuple(events),
        modules=(Module(""), *(Module(f"rank {rank}", "rank", 0) for rank in range(len(orders)))),
        counters=tuple(_counter(rank, row, timeline) for rank, row in enumerate(orders)),
        summary=Summary(
            name=name,
            fingerprint=plan.work.fingerprint,
            budget=max((rank.limit for rank in plan.ranks), default=0),
            ns=plan.ns,
            planner=plan.method,
            ns_bound=plan.ns_bound,
        ),
    )


def _events(
    plan: JointPlan,
    rank: int,
    action: Action,
    span: tuple[Nanoseconds, Nanoseconds],
    again: frozenset[tuple[int, int]],
    threads: dict[tuple[int, int], int],
) -> Iterator[Event]:
    stage, kind, micro = action
    begin, end = span
    if kind in COMPUTES:
        if kind != "F" and (stage, micro) in again:
            middle = begin + plan.work.stages[stage].forward
            yield Event(begin, middle, -1, f"{stage}F{micro}", 1 + rank, EventPhase.RECOMPUTE, rank)
            begin = middle
        phase = _PHASES.get(kind, EventPhase.BACKWARD)
        yield Event(begin, end, -1, str(action), 1 + rank, phase, rank)
    elif kind.startswith("SEND"):
        peer = plan.work.owners[stage + (1 if kind == "SEND_F" else -1)]
        thread = threads.setdefault((rank, peer), len(threads))
        yield Event(begin, end, -1, str(action), 1 + rank, EventPhase.COPY, thread)
    elif kind in ("UNSHARD", "REDUCE_GRAD") and end > begin:
        thread = threads.setdefault((rank, -1), len(threads))
        yield Event(begin, end, -1, str(action), 1 + rank, EventPhase.COPY, thread)


def _counter(rank: int, row: tuple[Action, ...], timeline: Timeline) -> Counter:
    """Bytes of a rank: the most while it computes, and what is left behind."""
    times, values, now = [0], [timeline.held[rank]], 0
    for at, action in enumerate(row):
        if action.kind in COMPUTES:
            begin, now = timeline.spans[rank][at]
            times.append(begin)
            values.append(timeline.tops[rank][at])
        times.append(now)
        values.append(timeline.curves[rank][at])
    return Counter(f"rank {rank}", "bytes", tuple(times), tuple(values))
