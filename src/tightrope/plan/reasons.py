"""Say of every storage why it was kept, recomputed or paged."""

from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from tightrope.core import (
    Alloc,
    Copy,
    Executable,
    Graph,
    Instruction,
    Machine,
    OpId,
    Plan,
    Reason,
    Release,
    Return,
    Run,
    StepIndex,
    StorageId,
    format_bytes,
)
from tightrope.core.executable import ARENA, HEAP
from tightrope.core.units import format_price
from tightrope.lower import lower
from tightrope.plan.model import again, producers


@dataclass(frozen=True, slots=True)
class _StorageFacts:
    """What the schedule does to each storage: copies, page-ins, first runs without it, live at the peak."""

    copies: list[int]
    pages: list[int]
    absent: list[int]
    at_peak: frozenset[StorageId]
    peak_op: OpId


def reasons(graph: Graph, plan: Plan, machine: Machine | None = None) -> tuple[Reason, ...]:
    """Explain every storage made by an op, in storage order."""
    facts = _facts(graph, lower(graph, plan.schedule, machine))
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


def _kept(graph: Graph, storage: StorageId, op: OpId, facts: _StorageFacts, slack: int) -> str:
    made, producer = graph.storages[storage], graph.ops[op]
    if made.resident_at_end:
        return ": it must be there when the step ends"
    if made.outside:
        return ": it is handed out of the step and takes no address in the arena"
    if not producer.recomputable or storage not in again(graph, op).creates:
        return f": {producer.target} cannot run twice with the same result"
    price = f": recomputing {producer.target} takes {format_price(again(graph, op).ns)} by itself and would "
    price += f"free {format_bytes(made.size)}"
    if storage not in facts.at_peak:
        return f"{price}, but it is not alive at the peak"
    at_peak = graph.op(facts.peak_op)
    if facts.peak_op in (op, producer.variant):
        return f"{price}, but it is the output of {at_peak.target} itself, which runs at the peak"
    if storage in at_peak.reads:
        return f"{price}, but {at_peak.target}, which runs at the peak, reads it"
    return f"{price} at the peak, which the budget does not need ({format_bytes(slack)} to spare)"


def _recomputed(graph: Graph, storage: StorageId, op: OpId, facts: _StorageFacts) -> str:
    times = facts.copies[storage] - 1
    often = f" {times} time{'s' * (times > 1)}: {format_price(again(graph, op).ns)} each"
    if facts.absent[storage] == 0:
        return f"{often}, as a by-product of {graph.ops[op].target}; the new copy is released at once"
    made = graph.storages[storage]
    place = "at the peak" if storage not in facts.at_peak else "in between"
    return f"{often} buys {format_bytes(made.size)} {place}, for {facts.absent[storage]} ops"


def _paged(graph: Graph, storage: StorageId, facts: _StorageFacts) -> str:
    pages = facts.pages[storage]
    runs = facts.copies[storage] - 1 - pages
    also = f", and recomputed {runs} time{'s' * (runs > 1)}" if runs else ""
    often = f" out and brought back {pages} time{'s' * (pages > 1)}{also}"
    size = format_bytes(graph.storages[storage].size)
    return f"{often}: buys {size} in between, for {facts.absent[storage]} ops"


class _Observer:
    """Facts while the instructions go by."""

    def __init__(self, graph: Graph, executable: Executable) -> None:
        self.graph, self.executable = graph, executable
        count = len(graph.storages)
        self.copies, self.pages, self.absent = [0] * count, [0] * count, [0] * count
        self.live: dict[int, Alloc] = {}
        self.held: dict[StorageId, int] = {}
        self.gone_at: dict[StorageId, StepIndex] = {}
        self.bytes = self.highest = self.seen = self.begun = self.begun_at_peak = 0
        self.since: dict[StorageId, int] = {}
        self.left: set[StorageId] = set()
        self.peak_op = self.op = -1

    @property
    def at_peak(self) -> frozenset[StorageId]:
        """Storages held at the peak: those that left since then, and those still there from before it."""
        return frozenset(self.left).union(
            s for s, count in self.held.items() if count and self.since[s] <= self.begun_at_peak
        )

    def take(self, event: Instruction) -> None:
        match event:
            case Run(op=op) | Return(op=op):
                self.op = op if op >= 0 else self.op
                self.seen += op == self.seen
                if isinstance(event, Run):
                    self._written(event)
            case Alloc() if event.space in (ARENA, HEAP):
                self._alloc(event)
            case Release(buffer) if buffer in self.live:
                self._release(self.live.pop(buffer))
            case _:
                pass

    def _alloc(self, alloc: Alloc) -> None:
        self.live[alloc.buffer] = alloc
        self.bytes += self.executable.charged(alloc)
        self._begin(alloc.storage)
        if self.bytes > self.highest:
            self.highest, self.peak_op, self.begun_at_peak = self.bytes, self.op, self.begun
            self.left.clear()

    def _release(self, alloc: Alloc) -> None:
        self.bytes -= self.executable.charged(alloc)
        self._end(alloc.storage)

    def _written(self, run: Run) -> None:
        """A result in a buffer that was there before is written over what the buffer held."""
        for mine, made in zip(run.results, self.graph.op(run.op).results, strict=True):
            if (alloc := self.live.get(mine.view.base)) is not None:
                self._end(alloc.storage)
                self._begin(made.view.base)
                self.live[alloc.buffer] = replace(alloc, storage=made.view.base)

    def _begin(self, storage: StorageId) -> None:
        if storage >= 0:
            self.copies[storage] += 1
            self.begun += 1
            if not self.held.get(storage, 0):
                self.since[storage] = self.begun
            self.held[storage] = self.held.get(storage, 0) + 1
            self.absent[storage] += self.seen - self.gone_at.pop(storage, self.seen)

    def _end(self, storage: StorageId) -> None:
        if storage >= 0:
            self.held[storage] -= 1
            if not self.held[storage]:
                self.gone_at[storage] = self.seen
                if self.since[storage] <= self.begun_at_peak:
                    self.left.add(storage)


def _facts(graph: Graph, executable: Executable) -> _StorageFacts:
    seen = _Observer(graph, executable)
    for event in executable.flat():
        seen.take(event)
    page_ins = {i.target for i in executable.instructions if isinstance(i, Copy)}
    for event in executable.instructions:
        if isinstance(event, Alloc) and event.space == ARENA and event.buffer in page_ins:
            seen.pages[event.storage] += 1
    return _StorageFacts(seen.copies, seen.pages, seen.absent, seen.at_peak, seen.peak_op)
