"""Walk a schedule and refuse the first step that breaks a rule.

Idea        Keep the set of storages that are live, their versions, and the first op of the base
            order that has not run. Every step either keeps the rules or names itself in an error.
Guarantee   A schedule that passes gives every op the values that the base order gives it, leaves
            exactly the resident storages behind, and holds at every tick the bytes returned.
Complexity  Linear in the steps and what they read and create.
Gaps        Storages of the caller, and those that the user holds, cannot be paged.
"""

from dataclasses import dataclass
from typing import NoReturn

from tightrope.core import (
    Bytes,
    Compute,
    Free,
    Graph,
    JudgeError,
    Machine,
    Nanoseconds,
    Op,
    OpId,
    PageIn,
    PageOut,
    Schedule,
    Step,
    StorageId,
    Wait,
)
from tightrope.judge.ledger import Interval, Ledger
from tightrope.judge.paging import Tiers, Window
from tightrope.judge.versions import base_versions, runs_once


@dataclass(frozen=True, slots=True)
class Replay:
    """What a schedule does to memory and time.

    Attributes:
        intervals: every allocation, in the order in which they begin.
        profile: live bytes after every tick (allocation or release), above what the caller holds.
        peak: largest of them.
        outside_peak: largest number of live bytes outside the arena.
        ns: time of all runs, and of waiting for copies between tiers.
        copies: how many times each storage is allocated in tier 0.
        windows: every copy between tiers, in the order of issue.
        tiers: largest number of bytes held in each slower tier; empty when nothing is paged.
        joules: energy; 0 without a machine.
    """

    intervals: tuple[Interval, ...]
    profile: tuple[Bytes, ...]
    peak: Bytes
    outside_peak: Bytes
    ns: Nanoseconds
    copies: tuple[int, ...]
    windows: tuple[Window, ...] = ()
    tiers: tuple[Bytes, ...] = ()
    joules: float = 0.0


def replay_schedule(graph: Graph, schedule: Schedule, machine: Machine | None = None) -> Replay:
    """Walk a schedule of a well-formed graph, step by step.

    Args:
        graph: what it runs.
        schedule: any.
        machine: its tiers and copy engines; needed by a schedule that pages.

    Returns:
        The memory that it takes and its time.

    Raises:
        JudgeError: names the step, the op and the storage of the first broken rule.
    """
    walk = _Walk(graph, machine)
    for position, step in enumerate(schedule.steps):
        walk.take(position, step)
    walk.finish()
    intervals = walk.ledger.intervals()
    copies = [0] * len(graph.storages)
    for interval in intervals:
        if interval.storage >= 0:
            copies[interval.storage] += 1
    profile = tuple(walk.ledger.profile)
    paged, moved = walk.tiers, tuple(walk.tiers.windows)
    return Replay(
        intervals, profile, max(profile, default=0), walk.ledger.outside_peak, paged.now, tuple(copies),
        moved, tuple(paged.peak) if moved else (), paged.joules(walk.computing, graph.storages),
    )  # fmt: skip


class _Walk:
    """State of one walk."""

    def __init__(self, graph: Graph, machine: Machine | None) -> None:
        self.tiers = Tiers(machine)
        self.graph, self.ledger, self.versions = graph, Ledger(graph), base_versions(graph)
        self.live: dict[StorageId, int] = {}
        self.version = [0] * len(graph.storages)
        self.next_base = 0
        self.computing: Nanoseconds = 0
        self.base_of = {op.replay: op for op in graph.ops if op.replay >= 0}
        self.at = "start"

    def take(self, position: int, step: Step) -> None:
        self.at = f"step {position}"
        match step:
            case Compute(op, drop):
                self._compute(self._known_op(op), drop)
            case Free(storage, 0):
                self._free(storage)
            case PageOut(storage) | PageIn(storage) | Wait(storage) | Free(storage):
                self._move(step, storage)

    def finish(self) -> None:
        self.at = "end"
        for left in self.tiers.flights:
            self._fail(f"the copy of {self._name(left)} between tiers is still in flight")
        if (behind := self.tiers.left_over()) is not None:
            self._fail(f"a copy of {self._name(behind[0])} is left over in tier {behind[1]}")
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
        self.computing += op.ns
        self.tiers.now += op.ns

    def _move(self, step: Free | PageOut | PageIn | Wait, storage: StorageId) -> None:
        what = {"Free": "frees", "PageOut": "pages out", "PageIn": "pages in", "Wait": "waits for"}
        verb = what[type(step).__name__]
        if not 0 <= storage < len(self.graph.storages):
            self._fail(f"{verb} storage {storage}; the graph has {len(self.graph.storages)} storages")
        verb += f" {self._name(storage)}"
        if isinstance(step, PageOut | PageIn):
            self._check_pageable(storage, verb, live=isinstance(step, PageOut))
        try:
            self._moved(step, storage)
        except JudgeError as error:
            self._fail(f"{verb}, but {error}")

    def _moved(self, step: Free | PageOut | PageIn | Wait, storage: StorageId) -> None:
        match step:
            case PageOut(_, tier):
                self.tiers.begin_out(self.graph.storages[storage], tier)
            case PageIn(_, tier):
                self.tiers.begin_in(self.graph.storages[storage], tier)
                self.live[storage] = self.ledger.allocate(self.graph.storages[storage].bytes, storage)
                self.version[storage] = self.tiers.version(storage, tier)
            case Wait():
                window = self.tiers.wait(storage)
                if not window.inwards:
                    self.tiers.keep(storage, window.tier, self.version[storage])
                    self.ledger.release(self.live.pop(storage))
            case Free(_, tier):
                self.tiers.release(storage, tier)

    def _check_pageable(self, storage: StorageId, verb: str, *, live: bool) -> None:
        if self.graph.storages[storage].external or self.graph.storages[storage].outside:
            self._fail(f"{verb}, which belongs to the caller")
        if storage in self.tiers.flights:
            self._fail(f"{verb}, of which a copy is in flight already")
        if live and storage not in self.live:
            self._fail(f"{verb}, which is not live")
        if not live and storage in self.live:
            self._fail(f"{verb}, a second live copy")

    def _check_moving(self, storage: StorageId, verb: str, *, inwards_only: bool) -> None:
        window = self.tiers.flights.get(storage)
        if window is not None and (window.inwards or not inwards_only):
            way = "in" if window.inwards else "out"
            self._fail(f"{verb} {self._name(storage)} while its page-{way} is in flight: no wait came before")

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
        self._check_moving(storage, "reads", inwards_only=True)
        if storage in op.mutates:
            self._check_moving(storage, "changes", inwards_only=False)
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
        self._check_moving(storage, "frees", inwards_only=False)
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
