"""From a set of pairs to a schedule with exact frees.

Idea        Write down every run (re-runs of a stage in base order, then the first run), find the
            last reader of every copy, and free each copy right after it.
Source      Kumar et al. 2019 and Moccasin (ICML 2023) use the same rule: a reader reads the latest copy.
Guarantee   Every set of allowed pairs gives a valid schedule that leaves exactly the storages that
            must be resident at the end.
Complexity  Linear in the runs and what they read and create.
Gaps        Frees happen between ops only, never inside one.

    bytes ^   +--s--+           +-s-+      u ... last reader of the first copy ... (t, u) ... t
          |   |     |           |   |
          +---+-----+-----------+---+--> runs
"""

from collections.abc import Iterable, Sequence

from tightrope.core import Compute, Free, Graph, Op, OpId, Schedule, Step, StepIndex, StorageId
from tightrope.plan.model import Pair, again


def base_schedule(graph: Graph) -> Schedule:
    """Run every op once, in base order, with exact frees.

    A storage is freed right after its last reader, at once when nothing reads it, and never when it
    must be resident at the end.

    Example:
        >>> from tightrope.core import Op, Storage
        >>> graph = Graph((Op(0, "a", "a", creates=(0,)), Op(1, "b", "b", reads=(0,), creates=(1,))),
        ...               (Storage(0, 64), Storage(1, 64, resident_at_end=True)))
        >>> base_schedule(graph).steps
        (Compute(op=0, drop=()), Compute(op=1, drop=()), Free(storage=0))
    """
    return expand(graph, ())


def expand(graph: Graph, pairs: Iterable[Pair]) -> Schedule:
    """Turn allowed pairs into a schedule; see the module text."""
    return expand_in_order(graph, sorted(pairs))


def expand_in_order(graph: Graph, pairs: Iterable[Pair]) -> Schedule:
    """Turn allowed pairs into a schedule that runs those of one stage in the order given.

    A pair may stand several times. `pairs_of` does not give such a schedule back: it sorts the pairs.
    """
    runs, first_runs = _runs(graph, pairs)
    return Schedule(tuple(_steps(graph, runs, _last_readers(graph, runs, first_runs))))


def useful(graph: Graph, pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    """Leave out re-runs of which nothing is read: they cost time and bytes for nothing.

    One walk from the last run to the first: whoever reads a copy comes after it, so it is known by then
    whether that one stays. What is left out was read by nobody, so everyone reads the same copies as before.
    """
    given = sorted(pairs)
    runs, first_runs = _runs(graph, given)
    made: dict[StorageId, int] = {}
    for position, op in enumerate(runs):
        for storage in op.creates:
            made.setdefault(storage, position)
    pinned = [storage.resident_at_end or storage.outside for storage in graph.storages]
    first, kept, left = set(first_runs), [], len(given)
    wanted: set[StorageId] = set()
    for position in range(len(runs) - 1, -1, -1):
        op = runs[position]
        copies = [s for s in op.creates if not pinned[s] or made[s] == position]
        left -= position not in first
        if position in first or not wanted.isdisjoint(copies):
            kept += [] if position in first else [given[left]]
            wanted.difference_update(copies)
            wanted.update(op.reads)
    return tuple(reversed(kept))


def _last_readers(graph: Graph, runs: list[Op], first_runs: list[int]) -> dict[tuple[StorageId, int], int]:
    """Find, for every copy (storage, where it was made), the last run that needs it."""
    pinned = [storage.resident_at_end or storage.outside for storage in graph.storages]
    copy: dict[StorageId, int] = {}
    last: dict[tuple[StorageId, int], int] = {}
    for position, op in enumerate(runs):
        for storage in op.reads:
            if storage in copy:
                last[storage, copy[storage]] = position
        for storage in op.creates:
            if storage not in copy or not pinned[storage]:
                copy[storage] = position
                last[storage, position] = position
    for op in graph.ops if graph.boundaries else ():
        after = graph.handover(op.id)
        for storage in op.creates if after < len(graph.ops) else ():
            if graph.storages[storage].outside:
                made = (storage, first_runs[op.id])
                last[made] = max(last[made], first_runs[after])
    return last


def _runs(graph: Graph, pairs: Iterable[Pair]) -> tuple[list[Op], list[int]]:
    """List what runs in order, and where each op runs first; re-runs of a stage keep their order."""
    runs: list[Op] = []
    first_runs: list[int] = []
    stages: dict[StepIndex, list[OpId]] = {}
    for stage, op in pairs:
        stages.setdefault(stage, []).append(op)
    for base in graph.ops:
        runs.extend(again(graph, op) for op in stages.get(base.id, ()))
        first_runs.append(len(runs))
        runs.append(base)
    return runs, first_runs


def _steps(graph: Graph, runs: list[Op], last: dict[tuple[StorageId, int], int]) -> list[Step]:
    ends: dict[int, list[StorageId]] = {}
    for (storage, made), until in last.items():
        if until > made and not graph.storages[storage].resident_at_end:
            ends.setdefault(until, []).append(storage)
    steps: list[Step] = []
    seen = 0
    for position, op in enumerate(runs):
        first = op.id == seen
        seen += first
        unread = [storage for storage in op.creates if last.get((storage, position), position) == position]
        gone = sorted(ends.get(position, ()))
        if first:
            steps.append(Compute(op.id))
            gone += sorted(s for s in unread if not graph.storages[s].resident_at_end)
        else:
            steps.append(Compute(op.id, tuple(unread)))
        steps.extend(Free(storage) for storage in gone)
    return steps


def restore(schedule: Schedule, order: Sequence[OpId]) -> Schedule:
    """Name the ops of a schedule for a graph whose ops stand in another order as that graph does.

    Args:
        schedule: of the reordered graph.
        order: op of the graph at each position.
    """
    steps = tuple(
        Compute(order[step.op], step.drop) if isinstance(step, Compute) and step.op < len(order) else step
        for step in schedule.steps
    )
    return Schedule(steps)
