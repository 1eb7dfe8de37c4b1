"""What is live, run by run, where everything that does not fit is paged: the walk of `resident`.

Idea        Run a list of ops, first runs and re-runs. What an op reads is paged in before it. Where the bytes
            do not do, what is used farthest in the future leaves: it is paged out if its slower copy is not
            of its version, and dropped if it is. What a re-run makes again before its next use is dropped
            after its last.
Source      Belady 1966 (farthest next use)
Guarantee   Live bytes never exceed the limit. Equal arguments give equal steps.
Complexity  Runs times what is live at once.
Gaps        Farthest next use is best for pages of equal size and cost, which these are not; the other rule is
            greedy. Copies are waited for at once, as where the tier has no engine.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from tightrope.core import (
    Bytes,
    Compute,
    Free,
    Graph,
    Machine,
    Nanoseconds,
    Op,
    OpId,
    PageIn,
    PageOut,
    Step,
    StepIndex,
    StorageId,
    Wait,
)
from tightrope.plan.model import Pair, again

NEVER: Final = 2**62
"""The next use of what no later run reads."""


class PagedRun(NamedTuple):
    """One run of an op: a first one, or a re-run just before the first run of op ``stage``."""

    op: OpId
    stage: StepIndex

    @property
    def first(self) -> bool:
        """Whether it is the op's first run."""
        return self.op == self.stage

    def runs(self, graph: Graph) -> Op:
        """Look up what runs: the op, or what stands for it in a re-run."""
        return graph.ops[self.op] if self.first else again(graph, self.op)


def runs_of(graph: Graph, pairs: Iterable[Pair] = ()) -> list[PagedRun]:
    """List the runs of a set of re-runs, in order."""
    before: dict[StepIndex, list[OpId]] = {}
    for stage, op in sorted(pairs):
        before.setdefault(stage, []).append(op)
    runs: list[PagedRun] = []
    for op in range(len(graph.ops)):
        runs += [PagedRun(number, op) for number in before.get(op, ())]
        runs.append(PagedRun(op, op))
    return runs


At: TypeAlias = tuple[PagedRun, StorageId]
"""A storage that a run reads."""


@dataclass(frozen=True, slots=True)
class WalkChoice:
    """What a walk is free to decide.

    Attributes:
        pairs: ops that run again.
        held: storages that leave after all others while that run is the next that reads them.
        by_price: whether what leaves is chosen by the price of its copies too, not by distance alone.
        stay: whether what ops make stays until it is read for the last time, and only what the caller holds
            leaves.
    """

    pairs: frozenset[Pair] = frozenset()
    held: frozenset[At] = frozenset()
    by_price: bool = False
    stay: bool = False

    def changed(self, pairs: frozenset[Pair], held: frozenset[At]) -> "WalkChoice":
        """Add what is not there, and take out what is."""
        return WalkChoice(self.pairs ^ pairs, self.held ^ held, self.by_price, self.stay)


@dataclass(frozen=True, slots=True)
class CopyPrices:
    """What copies cost, by storage.

    Attributes:
        out_ns: of one page-out.
        in_ns: of one page-in.
        out_joules: of one page-out.
        in_joules: of one page-in.
        watts: of the processor.
    """

    out_ns: tuple[Nanoseconds, ...]
    in_ns: tuple[Nanoseconds, ...]
    out_joules: tuple[float, ...]
    in_joules: tuple[float, ...]
    watts: float

    @staticmethod
    def of(graph: Graph, machine: Machine) -> "CopyPrices":
        """Read them from a machine with a slower tier."""
        tier, sizes = machine.tiers[1], [storage.bytes for storage in graph.storages]
        return CopyPrices(
            tuple(tier.copy_ns(size, inwards=False) for size in sizes),
            tuple(tier.copy_ns(size, inwards=True) for size in sizes),
            tuple(tier.copy_joules(size, inwards=False) for size in sizes),
            tuple(tier.copy_joules(size, inwards=True) for size in sizes),
            machine.watts,
        )


class TooLargeError(Exception):
    """A run needs more bytes than the limit.

    Attributes:
        run: that does.
        need: bytes.
    """

    def __init__(self, run: PagedRun, need: Bytes) -> None:
        super().__init__(f"op {run.op} needs {need} B")
        self.run, self.need = run, need


@dataclass
class Residency:
    """What is live in tier 0, and of which version the slower copies are.

    Attributes:
        graph: fitted to the machine's alignment.
        choice: what runs again, and what leaves.
        limit: on live bytes.
        prices: of copies; may be None where they decide nothing.
        live: storage -> whether its slower copy is of the same version.
        slow: storages with a copy in the slower tier that a step made.
        steps: of the schedule.
        outs: page-outs.
        ins: page-ins, and the runs that they were for.
    """

    graph: Graph
    choice: WalkChoice
    limit: Bytes
    prices: CopyPrices | None = None
    live: dict[StorageId, bool] = field(default_factory=dict)
    slow: set[StorageId] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)
    outs: list[StorageId] = field(default_factory=list)
    ins: list[At] = field(default_factory=list)
    used: Bytes = 0

    def __post_init__(self) -> None:
        self.size = [storage.size for storage in self.graph.storages]
        self.runs = runs_of(self.graph, self.choice.pairs)
        self.after, self.last = _next_uses(self.graph, self.runs)
        self.next: dict[StorageId, int] = {}
        self.used = sum(s.size for s in self.graph.storages if s.external and not s.home)

    def walk(self) -> "Residency":
        """Run everything.

        Raises:
            TooLargeError: a run needs more than the limit.
        """
        for position, run in enumerate(self.runs):
            self._run(position, run)
        return self

    def cost(self, prices: CopyPrices) -> tuple[Nanoseconds, float]:
        """Sum time and energy of all runs and copies."""
        ns = sum(run.runs(self.graph).ns for run in self.runs)
        joules = ns * 1e-9 * prices.watts
        ns += sum(prices.out_ns[s] for s in self.outs) + sum(prices.in_ns[s] for _, s in self.ins)
        joules += sum(prices.out_joules[s] for s in self.outs) + sum(prices.in_joules[s] for _, s in self.ins)
        return ns, joules

    def _run(self, position: int, run: PagedRun) -> None:
        """Make room, page in what the op reads, run it, and let go of what ends."""
        sizes, op, after = self.graph.storages, run.runs(self.graph), self.after[position]
        reads = [s for s in op.reads if not sizes[s].external or sizes[s].home]
        missing = [s for s in reads if s not in self.live]
        kept, dropped = self._creates(run, op, after)
        over = op.over >= 0 and after[op.over] == NEVER and not sizes[op.over].home
        made = sum(self.size[s] for s in (op.creates[1:] if over else op.creates))
        room = sum(self.size[s] for s in missing) + made
        while self.used + room > self.limit:
            self._evict(self._victim(position, run, op, made))
        for storage in missing:
            self.steps += [PageIn(storage), Wait(storage)]
            self.ins.append((run, storage))
            self.live[storage] = True
            self.used += self.size[storage]
        self.steps.append(Compute(op.id, dropped))
        for storage in kept:
            self.live[storage] = storage in self.slow
            self.used += self.size[storage]
        self.live.update(dict.fromkeys((s for s in op.mutates if s in self.live), False))
        self.next.update(after)
        for storage in sorted({*reads, *kept}):
            if self.next[storage] == NEVER and not sizes[storage].resident_at_end:
                self._finish(position, storage)

    def _creates(
        self, run: PagedRun, op: Op, after: dict[StorageId, int]
    ) -> tuple[list[StorageId], tuple[StorageId, ...]]:
        """Split what a run makes: a re-run drops what nothing reads, and what is there already."""
        if run.first:
            return list(op.creates), ()
        wanted = [s for s in op.creates if after[s] != NEVER and s not in self.live]
        return wanted, tuple(sorted(set(op.creates) - set(wanted)))

    def _victim(self, position: int, run: PagedRun, op: Op, made: Bytes) -> StorageId:
        """Choose what leaves: used farthest in the future, or that by the price of its copies."""
        sizes = self.graph.storages
        free = [s for s in self.live if s not in op.reads and not sizes[s].resident_at_end]
        if self.choice.stay:
            free = [s for s in free if sizes[s].home]
        if not free:
            raise TooLargeError(run, self.used + made)
        held, prices, runs = self.choice.held, self.prices, self.runs
        if held:
            free = [s for s in free if (runs[self.next[s]], s) not in held] or free
        if prices is None or not self.choice.by_price:
            return max(free, key=lambda s: (self.next[s], self.live[s], self.size[s], s))
        return max(free, key=lambda s: (self._worth(s, position, prices), self.size[s], s))

    def _worth(self, storage: StorageId, position: int, prices: CopyPrices) -> float:
        """Bytes times the runs for which they are free, by what it costs to have the storage back."""
        copies = prices.out_ns[storage] * (not self.live[storage]) + prices.in_ns[storage]
        return (self.next[storage] - position) * self.size[storage] / max(copies, 1)

    def _evict(self, storage: StorageId) -> None:
        """Let the fast copy go; its slower copy has its bytes then."""
        if not self.live.pop(storage):
            self.steps += [PageOut(storage), Wait(storage)]
            self.outs.append(storage)
            self.slow.add(storage)
        else:
            self.steps.append(Free(storage))
        self.used -= self.size[storage]

    def _finish(self, position: int, storage: StorageId) -> None:
        """Let go of a copy that no run reads again; what the caller holds goes back changed."""
        if self.graph.storages[storage].home:
            self._evict(storage)
            return
        del self.live[storage]
        self.used -= self.size[storage]
        self.steps.append(Free(storage))
        if storage in self.slow and position >= self.last.get(storage, -1):
            self.slow.remove(storage)
            self.steps.append(Free(storage, 1))


def _next_uses(
    graph: Graph, runs: Sequence[PagedRun]
) -> tuple[list[dict[StorageId, int]], dict[StorageId, int]]:
    """Find, for what each run touches, which run reads that copy next; and the last run that reads each."""
    following: dict[StorageId, int] = {s.id: NEVER for s in graph.storages}
    after: list[dict[StorageId, int]] = []
    last: dict[StorageId, int] = {}
    for position in range(len(runs) - 1, -1, -1):
        op = runs[position].runs(graph)
        after.append({storage: following[storage] for storage in (*op.reads, *op.creates)})
        for storage in op.creates:
            following[storage] = NEVER
        for storage in op.reads:
            following[storage] = position
            last.setdefault(storage, position)
    after.reverse()
    return after, last
