"""Walk a schedule and refuse the first step that breaks a rule.

Idea        Keep the set of storages that are live, their versions, and the first op of the base
            order that has not run. Every step either keeps the rules or names itself in an error.
Guarantee   A schedule that passes gives every op the values that the base order gives it, leaves
            exactly the resident storages behind, and holds at every tick the bytes returned.
Complexity  Linear in the steps and what they read and create.
Gaps        Page-out, page-in and wait steps are refused: this judge does not know them yet.
"""

from dataclasses import dataclass
from typing import NoReturn

from tightrope.core import (
    Bytes,
    Compute,
    Free,
    Graph,
    JudgeError,
    Nanoseconds,
    Op,
    OpId,
    Schedule,
    Step,
    StorageId,
)
from tightrope.judge.ledger import Interval, Ledger
from tightrope.judge.versions import base_versions, runs_once


@dataclass(frozen=True, slots=True)
class Replay:
    """What a schedule does to memory and time.

    Attributes:
        intervals: every allocation, in the order in which they begin.
        profile: live bytes after every tick (allocation or release), above what the caller holds.
        peak: largest of them.
        outside_peak: largest number of live bytes outside the arena.
        ns: time of all runs.
        copies: how many times each storage is allocated.
    """

    intervals: tuple[Interval, ...]
    profile: tuple[Bytes, ...]
    peak: Bytes
    outside_peak: Bytes
    ns: Nanoseconds
    copies: tuple[int, ...]


def replay_schedule(graph: Graph, schedule: Schedule) -> Replay:
    """Walk a schedule of a well-formed graph, step by step.

    Returns:
        The memory that it takes and its time.

    Raises:
        JudgeError: names the step, the op and the storage of the first broken rule.
    """
    walk = _Walk(graph)
    for position, step in enumerate(schedule.steps):
        walk.take(position, step)
    walk.finish()
    intervals = walk.ledger.intervals()
    copies = [0] * len(graph.storages)
    for interval in intervals:
        if interval.storage >= 0:
            copies[interval.storage] += 1
    profile = tuple(walk.ledger.profile)
    return Replay(
        intervals, profile, max(profile, default=0), walk.ledger.outside_peak, walk.ns, tuple(copies)
    )


class _Walk:
    """State of one walk."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.ledger, self.versions = graph, Ledger(graph), base_versions(graph)
        self.live: dict[StorageId, int] = {}
        self.version = [0] * len(graph.storages)
        self.next_base = 0
        self.ns: Nanoseconds = 0
        self.base_of = {op.replay: op for op in graph.ops if op.replay >= 0}
        self.at = "start"

    def take(self, position: int, step: Step) -> None:
        self.at = f"step {position}"
        match step:
            case Compute(op, drop):
                self._compute(self._known_op(op), drop)
            case Free(storage):
                self._free(storage)
            case _:
                self._fail(
                    f"{type(step).__name__} of storage {step.storage} is not supported by this judge yet"
                )

    def finish(self) -> None:
        self.at = "end"
        if self.next_base < len(self.graph.ops):
            self._fail(f"{self._title(self.graph.ops[self.next_base])} never ran")
        for storage in self.graph.storages:
            if storage.external:
                continue
            present = storage.id in self.live
            if present and not storage.resident_at_end:
                self._fail(f"{self._name(storage.id)} is left over: it is not resident at the end")
            if storage.resident_at_end and not present:
                self._fail(f"{self._name(storage.id)} is missing: it must be resident at the end")
            if present and self.version[storage.id] != self.versions.final[storage.id]:
                self._fail(f"{self._name(storage.id)} was made again after it had been changed in place")

    def _compute(self, op: Op, drop: tuple[StorageId, ...]) -> None:
        self.at += f", {self._title(op)}"
        first = op.id == self.next_base < len(self.graph.ops)
        if not first:
            self._check_again(op)
        elif op.id == self.graph.boundary:
            self._check_boundary()
        for storage in op.reads:
            self._check_read(op, storage)
        self._check_creates(op, drop, first=first)
        created = self.ledger.run(op)
        for storage in drop:
            self.ledger.release(created.pop(storage))
        for storage, position in created.items():
            self.live[storage] = position
            self.version[storage] = 0
        for storage in op.mutates:
            self.version[storage] += 1
        self.next_base += first
        self.ns += op.ns

    def _check_again(self, op: Op) -> None:
        if op.id >= len(self.graph.ops):
            base = self.base_of.get(op.id)
            if base is None:
                self._fail("no op names it as its replay")
            if base.id >= self.next_base:
                self._fail(f"a replay of {self._title(base)}, which has not run yet")
            if op.mutates or not set(op.creates) <= set(base.creates):
                self._fail(f"a replay that changes or makes more than {self._title(base)}")
        elif op.id > self.next_base:
            self._fail(f"out of the base order: {self._title(self.graph.ops[self.next_base])} comes first")
        elif runs_once(op):
            instead = f"; its replay is op {op.replay}" if op.replay >= 0 else ""
            self._fail(f"must not run twice{instead}")

    def _check_read(self, op: Op, storage: StorageId) -> None:
        if not self.graph.storages[storage].external and storage not in self.live:
            self._fail(f"reads {self._name(storage)}, which is not live")
        have, need = self.version[storage], self.versions.reads[op.id][storage]
        if have != need:
            self._fail(
                f"reads {self._name(storage)} after {have} changes in place; in the base order it has {need}"
            )

    def _check_creates(self, op: Op, drop: tuple[StorageId, ...], *, first: bool) -> None:
        for position, storage in enumerate(drop):
            if storage not in op.creates or storage in drop[:position]:
                self._fail(f"drops storage {storage}, which it does not create or drops twice")
            if first and self.graph.storages[storage].resident_at_end:
                self._fail(f"drops the only copy of {self._name(storage)}, which must stay to the end")
        for storage in op.creates:
            if self.graph.storages[storage].external:
                self._fail(f"creates {self._name(storage)}, which belongs to the caller")
            if first and self.graph.storages[storage].outside and op.id >= self.graph.boundary:
                self._fail(f"creates {self._name(storage)}, which the user was to receive before this op")
            if storage in self.live and storage not in drop:
                self._fail(f"creates a second live copy of {self._name(storage)}")

    def _check_boundary(self) -> None:
        for op in self.graph.ops[: self.graph.boundary]:
            for storage in op.creates:
                if self.graph.storages[storage].outside and storage not in self.live:
                    self._fail(f"{self._name(storage)} is not live when the user receives it, before this op")

    def _free(self, storage: StorageId) -> None:
        if not 0 <= storage < len(self.graph.storages):
            self._fail(f"frees storage {storage}; the graph has {len(self.graph.storages)} storages")
        if self.graph.storages[storage].external:
            self._fail(f"frees {self._name(storage)}, which belongs to the caller")
        if self.graph.storages[storage].resident_at_end:
            self._fail(f"frees {self._name(storage)}, which must stay to the end")
        if storage not in self.live:
            self._fail(f"frees {self._name(storage)}, which is not live")
        self.ledger.release(self.live.pop(storage))

    def _known_op(self, op: OpId) -> Op:
        known = len(self.graph.ops) + len(self.graph.replays)
        if not 0 <= op < known:
            self._fail(f"runs op {op}; the graph has {known} ops and replays")
        return self.graph.op(op)

    def _title(self, op: Op) -> str:
        return f"op {op.id} {op.describe()}"

    def _name(self, storage: StorageId) -> str:
        label = self.graph.storages[storage].label
        return f"storage {storage}" + (f" ({label})" if label else "")

    def _fail(self, what: str) -> NoReturn:
        raise JudgeError(f"schedule, {self.at}: {what}.")
