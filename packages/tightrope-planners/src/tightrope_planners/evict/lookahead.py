"""What to evict and what to make again when, for a training step that is known op by op.

Idea       A recorded step is a graph: who reads what is known to its end. The planner of whole steps
           (`plan/`) says which op runs again before which, and so where every copy is read last. A block
           that repeats the step evicts each storage right there and makes it again right where the plan
           does, instead of finding out when nothing fits.
Source     Sets of recomputations: Moccasin (ICML 2023), as in `tightrope.plan`.
Guarantee  A plan changes who is evicted and when, never what is computed. Its live bytes fit the limit that
           it was made for; that they find addresses is for a rehearsal to tell.
Complexity That of the planner: seconds for some thousand ops, once per step that repeats.
Gaps       Storages that outlive the step stay in it. An op in place on what cannot be made again is a wall.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from msgspec.structs import replace

from tightrope.core import Allocation, Bytes, Compute, Flag, Free, Graph, Op, Storage, StorageId, round_up
from tightrope.plan.anneal import anneal_pairs
from tightrope.plan.engine import open_solver
from tightrope.plan.model import build
from tightrope.plan.options import Options
from tightrope.plan.schedule import expand, useful
from tightrope_planners.evict.log import EvictionLog, LoggedOp, Released

Slot: TypeAlias = tuple[int, int]
"""A version of a storage: number of the op that makes it, and which of what that creates, then changes."""

_MOST_OPS: Final = 6_000
"""Longer steps are not planned: one search would take minutes."""
_EFFORT_OPS: Final = 60
"""So many ops get the planner's usual effort, which grows with them; all others get as much, about 0.3 s."""


@dataclass(frozen=True, slots=True)
class Rerun:
    """One op that runs again: the versions that it makes, those whose bytes go right after it."""

    makes: tuple[Slot, ...]
    drops: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Directives:
    """What to do before and after which op of a step.

    Attributes:
        before: what runs again before the first run of an op, by number.
        after: whose bytes go after it.
        keeps: what runs again reads these: their bytes stay when the step lets go of them.
        ns: of all that runs again.
    """

    before: dict[int, tuple[Rerun, ...]] = field(default_factory=dict)
    after: dict[int, tuple[Slot, ...]] = field(default_factory=dict)
    keeps: frozenset[Slot] = frozenset()
    ns: int = 0


class _StepReader:
    """Reads the events of a step into ops over versions of storages."""

    def __init__(self, step: EvictionLog) -> None:
        self.step = step
        self.storages: list[Storage] = []
        self.slots: dict[StorageId, Slot] = {}
        self.now: dict[StorageId, StorageId] = {}
        self.again: dict[StorageId, bool] = {}
        self.roots: dict[StorageId, int] = {}  # as bits: what cannot be made again and went into a version
        self.root_bits: dict[StorageId, int] = {}
        self.stays: set[StorageId] = set()
        self.ops: list[Op] = []
        self.variants: list[Op] = []
        self.extra: dict[int, set[StorageId]] = {}
        self.first = 0

    def graph(self) -> Graph:
        step = self.step
        made: set[StorageId] = {one for e in step.events if isinstance(e, LoggedOp) for one in e.creates}
        carried = [one for one in range(len(step.sizes)) if one not in made and not step.outside[one]]
        for one, outside in enumerate(step.outside):
            if outside:
                self._version(one, external=True)
        if carried:
            self.first = 1
            found = tuple(self._version(one) for one in carried)
            self.again.update(dict.fromkeys(found, False))
            self.ops.append(Op(0, "held", "held", creates=found, flags=Flag.NEVER_RECOMPUTE))
        for event in step.events:
            if isinstance(event, LoggedOp):
                self._op(event)
            elif isinstance(event, Released) and not step.outside[event.storage]:
                last = self.now.pop(event.storage)
                if (last in self.stays or not self.again[last]) and self.ops:
                    self.extra.setdefault(len(self.ops) - 1, set()).add(last)
        for one, last in self.now.items():
            if not step.outside[one]:
                self.storages[last] = replace(self.storages[last], resident_at_end=True)
        ops = [
            replace(
                op,
                reads=tuple(
                    sorted({*op.reads, *(e for e in self.extra.get(op.id, ()) if e not in op.creates)})
                ),
            )
            for op in self.ops
        ]
        count = len(ops)
        variants = tuple(replace(op, id=count + at) for at, op in enumerate(self.variants))
        ops = [replace(op, variant=count + op.variant) if op.variant >= 0 else op for op in ops]
        return Graph(tuple(ops), tuple(self.storages), variants, name=step.name)

    def _version(self, one: StorageId, *, external: bool = False) -> StorageId:
        new = len(self.storages)
        self.storages.append(Storage(new, round_up(max(1, self.step.sizes[one])), external=external))
        self.now[one] = new
        self.again[new] = False
        self._root(new)
        return new

    def _root(self, one: StorageId) -> None:
        self.roots[one] = self.root_bits[one] = 1 << len(self.root_bits)

    def _lose(self, wall: StorageId) -> None:
        """What is held and was made from a version that changes now stays: it cannot be made again."""
        bit = self.root_bits[wall]
        self.stays.update(one for one in self.now.values() if one != wall and self.roots[one] & bit)

    def _op(self, event: LoggedOp) -> None:
        number = len(self.ops)
        reads = tuple(self.now[one] for one in event.reads)
        inside = [one for one in event.mutates if not self.step.outside[one]]
        versioned = [one for one in inside if self.again[self.now[one]] and event.recomputable]
        walls = tuple(self.now[one] for one in event.mutates if one not in versioned)
        old = [self.now[one] for one in versioned]
        made = [self._version(one) for one in (*event.creates, *versioned)]
        again = event.recomputable and not (versioned and (event.creates or walls))
        for at, one in enumerate(made):
            self.slots[one] = (number - self.first, at)
            self.again[one] = again
        if again:
            into = 0
            for one in reads:
                into |= 0 if one in walls else self.roots[one]
            self.roots.update(dict.fromkeys(made, into))
        for one in walls:
            self._lose(one)
        held = len(made) + 1
        rows = [Allocation(event.temporary, -1, 0, held)] if event.temporary else []
        rows += [Allocation(self.storages[one].bytes, one, 1 + at) for at, one in enumerate(made)]
        variant = -1
        if again and walls and event.creates:
            variant = len(self.variants)
            left = tuple(sorted(one for one in reads if one not in walls))
            self.variants.append(
                Op(0, f"again{number}", event.target, left, tuple(made), (), event.ns, tuple(rows))
            )
        self.ops.append(
            Op(
                *(number, f"op{number}", event.target, tuple(sorted(reads)), tuple(made), walls, event.ns),
                tuple(rows),
                Flag.NONE if again else Flag.NEVER_RECOMPUTE,
                variant=variant,
                over=old[0] if len(old) == 1 and not event.creates else -1,
            )
        )


def look_ahead(step: EvictionLog, limits: tuple[Bytes, ...], *, effort: float = 1.0) -> Iterator[Directives]:
    """Plan a step under several limits of live bytes.

    Args:
        step: one step; what it reads and does not make is outside, or held since before.
        limits: of the live bytes.
        effort: of the search, in units of the planner's usual one.

    Yields:
        One per limit for which a plan was found.
    """
    reader = _StepReader(step)
    graph = reader.graph()
    if not graph.ops or len(graph.ops) > _MOST_OPS:
        return
    model = build(graph)
    solver = open_solver(model)
    share = effort * min(1.0, _EFFORT_OPS / len(graph.ops))
    for limit in limits:
        pairs = anneal_pairs(solver, model, limit, Options(effort=share, restarts=1))
        pairs = useful(graph, pairs)
        solver.load(pairs)
        if solver.state(limit).excess == 0:
            yield _directives(graph, reader, pairs)


def _directives(graph: Graph, reader: _StepReader, pairs: tuple[tuple[int, int], ...]) -> Directives:
    base_of = {op.variant: op.id for op in graph.ops if op.variant >= 0}
    before: dict[int, list[Rerun]] = {}
    after: dict[int, list[Slot]] = {}
    waiting: list[tuple[list[Slot], list[Slot]]] = []
    drops: list[Slot] = []
    seen, ns = 0, 0
    keeps: set[Slot] = set()
    for step in expand(graph, pairs).steps:
        if isinstance(step, Free):
            if step.storage in reader.slots:
                drops.append(reader.slots[step.storage])
        elif isinstance(step, Compute):
            op = graph.op(step.op)
            if step.op == seen:
                drops = after.setdefault(seen - reader.first, [])
                if waiting:
                    before[seen - reader.first] = [Rerun(tuple(a), tuple(b)) for a, b in waiting]
                waiting, seen = [], seen + 1
                continue
            base = graph.ops[base_of.get(step.op, step.op)]
            makes = [reader.slots[one] for one in base.creates if one not in step.drop]
            drops = [reader.slots[one] for one in step.drop]
            waiting.append((makes, drops))
            ns += op.ns
            keeps.update(reader.slots[one] for one in op.reads if one in reader.slots)
    return Directives(
        {at: tuple(rows) for at, rows in before.items()},
        {at: tuple(rows) for at, rows in after.items() if rows},
        frozenset(keeps),
        ns,
    )
