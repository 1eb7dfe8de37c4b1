"""Say of every storage why it was kept, recomputed or paged."""

from dataclasses import dataclass
from typing import Literal

from tightrope.core import (
    Compute,
    Free,
    Graph,
    OpId,
    PageIn,
    PageOut,
    Plan,
    Reason,
    Schedule,
    StepIndex,
    StorageId,
    Wait,
    format_bytes,
    format_time,
)
from tightrope.plan.model import again, producers
from tightrope.plan.timeline import buffer_sizes, timeline


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the schedule does to each storage: copies, page-ins, first runs without it, live at the peak."""

    copies: list[int]
    pages: list[int]
    absent: list[int]
    at_peak: frozenset[StorageId]
    peak_op: OpId


def reasons(graph: Graph, plan: Plan) -> tuple[Reason, ...]:
    """Explain every storage made by an op, in storage order."""
    facts = _facts(graph, plan.schedule)
    slack = plan.budget - plan.forecast.total
    result: list[Reason] = []
    for storage, op in enumerate(producers(graph)):
        if op < 0:
            continue
        copies, pages = facts.copies[storage], facts.pages[storage]
        decision: Literal["kept", "recomputed", "paged"] = "kept"
        if pages:
            decision, text = "paged", _paged(graph, storage, facts)
        elif copies == 1:
            text = _kept(graph, storage, op, facts, slack)
        else:
            decision, text = "recomputed", _recomputed(graph, storage, op, facts)
        size, ns = graph.storages[storage].size, again(graph, op).ns
        result.append(Reason(storage, decision, size, ns, copies, f"{decision}{text}"))
    return tuple(result)


def _kept(graph: Graph, storage: StorageId, op: OpId, facts: _Facts, slack: int) -> str:
    made, producer = graph.storages[storage], graph.ops[op]
    if made.resident_at_end:
        return ": it must be there when the step ends"
    if made.outside:
        return ": it is handed out of the step and takes no address in the arena"
    if not producer.recomputable or storage not in again(graph, op).creates:
        return f": {producer.target} cannot run twice with the same result"
    price = f": recomputing {producer.target} costs {format_time(again(graph, op).ns)} and would free "
    price += format_bytes(made.size)
    if storage not in facts.at_peak:
        return f"{price}, but it is not alive at the peak"
    at_peak = graph.op(facts.peak_op)
    if facts.peak_op in (op, producer.replay):
        return f"{price}, but it is the output of {at_peak.target} itself, which runs at the peak"
    if storage in at_peak.reads:
        return f"{price}, but {at_peak.target}, which runs at the peak, reads it"
    return f"{price} at the peak, which the budget does not need ({format_bytes(slack)} to spare)"


def _recomputed(graph: Graph, storage: StorageId, op: OpId, facts: _Facts) -> str:
    times = facts.copies[storage] - 1
    often = f" {times} time{'s' * (times > 1)}: {format_time(again(graph, op).ns)} each"
    if facts.absent[storage] == 0:
        return f"{often}, as a by-product of {graph.ops[op].target}; the new copy is released at once"
    made = graph.storages[storage]
    place = "at the peak" if storage not in facts.at_peak else "in between"
    return f"{often} buys {format_bytes(made.size)} {place}, for {facts.absent[storage]} ops"


def _paged(graph: Graph, storage: StorageId, facts: _Facts) -> str:
    pages = facts.pages[storage]
    runs = facts.copies[storage] - 1 - pages
    also = f", and recomputed {runs} time{'s' * (runs > 1)}" if runs else ""
    often = f" out and brought back {pages} time{'s' * (pages > 1)}{also}"
    size = format_bytes(graph.storages[storage].size)
    return f"{often}: buys {size} in between, for {facts.absent[storage]} ops"


def _facts(graph: Graph, schedule: Schedule) -> _Facts:
    trace = timeline(graph, schedule)
    sizes = buffer_sizes(graph, trace)
    change = [0] * (trace.num_events + 1)
    copies = [0] * len(graph.storages)
    for buffer, size in zip(trace.buffers, sizes, strict=True):
        change[buffer.start] += size
        change[buffer.end] -= size
        if buffer.storage >= 0:
            copies[buffer.storage] += 1
    live = highest = peak = 0
    for tick, delta in enumerate(change):
        live += delta
        if live > highest:
            highest, peak = live, tick
    alive = frozenset(b.storage for b in trace.buffers if b.storage >= 0 and b.start <= peak < b.end)
    pages = [0] * len(graph.storages)
    for step in schedule.steps:
        if isinstance(step, PageIn):
            pages[step.storage] += 1
    return _Facts(copies, pages, _absences(graph, schedule), alive, _op_at(graph, schedule, peak))


def _absences(graph: Graph, schedule: Schedule) -> list[int]:
    """Count, per storage, the first runs between a release and the next creation."""
    absent = [0] * len(graph.storages)
    gone_at: dict[StorageId, StepIndex] = {}
    leaving: set[StorageId] = set()
    seen = 0
    for step in schedule.steps:
        if isinstance(step, PageOut):
            leaving.add(step.storage)
        elif isinstance(step, PageIn):
            absent[step.storage] += seen - gone_at.pop(step.storage, seen)
        elif isinstance(step, Free | Wait):
            if not (step.tier if isinstance(step, Free) else step.storage not in leaving):
                gone_at[step.storage] = seen
                leaving.discard(step.storage)
        elif isinstance(step, Compute):
            op = graph.op(step.op)
            for storage in set(op.creates).difference(step.drop):
                absent[storage] += seen - gone_at.pop(storage, seen)
            for storage in step.drop:
                gone_at.setdefault(storage, seen)
            seen += step.op == seen
    return absent


def _op_at(graph: Graph, schedule: Schedule, peak: int) -> OpId:
    """Find the op that runs at a tick of the timeline."""
    tick, last = 0, -1
    leaving: set[StorageId] = set()
    for step in schedule.steps:
        if isinstance(step, Compute):
            last = step.op
            allocations = graph.allocations(graph.op(step.op))
            tick += len(allocations) + sum(a.end >= 0 for a in allocations) + len(step.drop)
        elif isinstance(step, PageOut):
            leaving.add(step.storage)
        elif isinstance(step, PageIn) or (isinstance(step, Free) and step.tier == 0):
            tick += 1
        elif isinstance(step, Wait) and step.storage in leaving:
            leaving.discard(step.storage)
            tick += 1
        if tick > peak:
            break
    return last
