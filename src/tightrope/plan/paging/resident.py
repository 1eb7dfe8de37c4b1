"""A schedule that pages whatever it must, weights included, so that every op fits a number of bytes.

Idea        Run the ops in the given order. What an op reads is paged in before it. Where the bytes do not
            do, what is used farthest in the future leaves: it is paged out if its slower copy is not of its
            version, and dropped if it is. What the caller holds in a slower tier (`Storage.home`) begins
            there, and goes back there after its last change.
Source      Belady 1966 (farthest next use); POET (ICML 2022) for what may be paged
Guarantee   Every op runs once, in the order given. Live bytes never exceed the limit. A limit below
            `floor_bytes` is refused with the op that needs more: no schedule of that order does with fewer.
Complexity  Ops times what is live at once.
Gaps        Nothing is computed again instead. Farthest next use is best for pages of equal size and cost,
            which these are not. Copies are waited for at once, as where the tier has no engine.

    tier 0 ^   +-w-+      +--w'--+           w is paged in, read, dropped; paged in again, changed, paged out
           |   |   |      |      |
    tier 1 |---+---+------+------+---w'---
           +---+---+------+------+-------> ops
"""

from dataclasses import dataclass, field
from typing import Final, NoReturn

from msgspec.structs import replace

from tightrope.core import (
    Bytes,
    Compute,
    Free,
    Graph,
    InfeasibleError,
    Op,
    PageIn,
    PageOut,
    Plan,
    Schedule,
    Step,
    StepIndex,
    StorageId,
    Wait,
    fitted,
    format_bytes,
)
from tightrope.core.machine import Machine
from tightrope.plan.assemble import assemble
from tightrope.plan.reasons import reasons

_NEVER: Final = 2**62
_TRIES: Final = 24
"""Limits on live bytes that are tried, each smaller by what the placement before was too large."""


def plan_resident(graph: Graph, *, budget: Bytes, machine: Machine, seed: int = 0) -> Plan:
    """Plan a step under a number of bytes in tier 0, with as many pages as that takes.

    Args:
        graph: one training step, in one part.
        budget: bytes of the arena.
        machine: with a slower tier.
        seed: of the placer.

    Raises:
        InfeasibleError: an op needs more bytes, or no placement within them was found.
    """
    graph = fitted(graph, machine.tiers[0].alignment)
    need, witness = floor_bytes(graph)
    limit, best = max(budget, need), None
    for left in reversed(range(_TRIES)):
        try:
            schedule = resident_schedule(graph, limit)
        except InfeasibleError:
            break
        plan = assemble(graph, schedule, budget=budget, machine=machine, planner="resident", seed=seed)
        if best is None or plan.forecast.total < best.forecast.total:
            best = plan
        if plan.forecast.total <= budget:
            return replace(plan, reasons=reasons(graph, plan, machine))
        if limit == need:
            break
        smaller = limit - max(plan.forecast.total - max(budget, need), graph.alignment)
        limit = max(need, smaller) if left > 1 else need
    _refuse(graph, budget, need, witness, best.forecast.total if best else None)


def floor_bytes(graph: Graph) -> tuple[Bytes, StepIndex]:
    """Find the bytes that one op needs at once, and the op: no schedule of this order does with fewer."""
    last = _last_uses(graph)
    kept = sum(s.size for s in graph.storages if s.external and not s.home)
    needs = []
    for op in graph.ops:
        needs.append(kept + _reads(graph, op) + _makes(graph, op, last))
        kept += sum(graph.storages[s].size for s in op.creates if graph.storages[s].resident_at_end)
    most = max(needs, default=kept)
    return most, needs.index(most) if needs else -1


def resident_schedule(graph: Graph, limit: Bytes) -> Schedule:
    """Page in what ops read, and page out or drop what is used farthest in the future.

    Args:
        graph: one training step, in one part, fitted to the machine's alignment.
        limit: on live bytes.

    Raises:
        InfeasibleError: an op needs more.

    Example:
        >>> from tightrope.core import Storage
        >>> weight = Storage(0, 64, external=True, home=1)
        >>> graph = Graph((Op(0, "a", "a", (0,), (1,)), Op(1, "b", "b", (1,))), (weight, Storage(1, 64)))
        >>> [type(step).__name__ for step in resident_schedule(graph, 128).steps]
        ['PageIn', 'Wait', 'Compute', 'Free', 'Compute', 'Free']
    """
    state = _Residency(graph, limit)
    for op in graph.ops:
        state.run(op)
    return Schedule(tuple(state.steps))


def _last_uses(graph: Graph) -> dict[StorageId, StepIndex]:
    last: dict[StorageId, StepIndex] = {}
    for op in graph.ops:
        last.update(dict.fromkeys((*op.reads, *op.creates), op.id))
    last.update((s.id, _NEVER) for s in graph.storages if s.resident_at_end)
    return last


def _reads(graph: Graph, op: Op) -> Bytes:
    """Bytes that an op reads, without what is counted already: it stays from when it is made."""
    reads = (graph.storages[s] for s in op.reads)
    return sum(s.size for s in reads if s.home or not (s.external or s.resident_at_end))


def _makes(graph: Graph, op: Op, last: dict[StorageId, StepIndex]) -> Bytes:
    """Bytes that an op allocates: not its first result where it writes that over what ends at it."""
    written = op.over >= 0 and last[op.over] == op.id
    return sum(graph.storages[s].size for s in (op.creates[1:] if written else op.creates))


def _refuse(graph: Graph, budget: Bytes, need: Bytes, witness: StepIndex, found: Bytes | None) -> NoReturn:
    op = graph.ops[witness]
    parts = [
        f"{format_bytes(graph.storages[s].bytes)} {graph.storages[s].module or graph.storages[s].label}"
        for s in sorted({*op.reads, *op.creates}, key=lambda s: -graph.storages[s].bytes)[:4]
    ]
    placed = f"; smallest found with addresses {found} B" if found is not None else ""
    raise InfeasibleError(
        f"asked {budget} B for the arena; {op.describe()} alone needs {need} B at once "
        f"({', '.join(parts)}){placed}. Ask for more RAM, take a smaller layer or a smaller batch.",
        asked=budget, smallest_found=found, lower_bound=need, op=op.describe(),
    )  # fmt: skip


@dataclass
class _Residency:
    """What is live in tier 0, and of which version the slower copies are.

    Attributes:
        live: storage -> whether its slower copy is of the same version.
        slow: storages with a copy in the slower tier.
        uses: positions of the ops that use a storage, last first.
    """

    graph: Graph
    limit: Bytes
    live: dict[StorageId, bool] = field(default_factory=dict)
    slow: set[StorageId] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)
    used: Bytes = 0

    def __post_init__(self) -> None:
        self.last = _last_uses(self.graph)
        self.uses: dict[StorageId, list[StepIndex]] = {}
        for op in reversed(self.graph.ops):
            for storage in {*op.reads, *op.creates}:
                self.uses.setdefault(storage, []).append(op.id)
        self.used = sum(s.size for s in self.graph.storages if s.external and not s.home)

    def run(self, op: Op) -> None:
        """Make room, page in what the op reads, run it, and let go of what ends."""
        sizes = self.graph.storages
        reads = [s for s in op.reads if not sizes[s].external or sizes[s].home]
        missing = [s for s in reads if s not in self.live]
        room = sum(sizes[s].size for s in missing) + _makes(self.graph, op, self.last)
        while self.used + room > self.limit:
            self.evict(self.victim(op))
        for storage in missing:
            self.steps += [PageIn(storage), Wait(storage)]
            self.live[storage] = True
            self.used += sizes[storage].size
        self.steps.append(Compute(op.id))
        for storage in op.creates:
            self.live[storage] = False
            self.used += sizes[storage].size
        self.live.update(dict.fromkeys((s for s in op.mutates if s in self.live), False))
        for storage in {*op.reads, *op.creates}:
            self.uses[storage].pop()
        for storage in sorted({*reads, *op.creates}):
            if not self.uses[storage] and not sizes[storage].resident_at_end:
                self.finish(storage)

    def victim(self, op: Op) -> StorageId:
        """Choose what leaves: used farthest in the future, then unchanged, then large."""
        free = [s for s in self.live if s not in op.reads and not self.graph.storages[s].resident_at_end]
        if not free:
            need = self.used + _makes(self.graph, op, self.last)
            _refuse(self.graph, self.limit, need, op.id, None)
        sizes = self.graph.storages
        return max(
            free, key=lambda s: (self.uses[s][-1] if self.uses[s] else _NEVER, self.live[s], sizes[s].size, s)
        )

    def evict(self, storage: StorageId) -> None:
        """Let the fast copy go; its slower copy has its bytes then."""
        if not self.live.pop(storage):
            self.steps += [PageOut(storage), Wait(storage)]
            self.slow.add(storage)
        else:
            self.steps.append(Free(storage))
        self.used -= self.graph.storages[storage].size

    def finish(self, storage: StorageId) -> None:
        """Let go of what no op uses again; what the caller holds goes back changed."""
        if self.graph.storages[storage].home:
            self.evict(storage)
            return
        del self.live[storage]
        self.used -= self.graph.storages[storage].size
        self.steps.append(Free(storage))
        if storage in self.slow:
            self.slow.remove(storage)
            self.steps.append(Free(storage, 1))
