"""From recomputations and page-ins to a schedule with exact frees, page-outs and waits.

Idea        A *page* ``(t, s)`` says: bring storage s back from the slower tier in stage t, right before
            the first run there that reads it. It makes a copy as a re-run does, without inputs. The
            copy that was live before the first page of a storage is written out instead of freed;
            the slow copy then serves all its pages.
Source      POET (ICML 2022): paging decisions beside recomputation
Guarantee   Every set of allowed pairs and pages gives a valid schedule that leaves exactly the
            storages that must be resident at the end, and nothing in the slower tier.
Complexity  Linear in the runs and what they read and create.
Gaps        Tier 1 only. What stays to the end, lives outside the arena or is changed in place stays.

    tier 0 ^   +--s--+           +-s-+      last reader of the first copy ... (t, s) ... t
           |   |     |           |   |
    tier 1 |   +---------s-------+          with copy engines, the page-out begins when s is made
           +---+-----+-----------+---+--> runs
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tightrope.core import (
    Compute,
    Free,
    Graph,
    Op,
    OpId,
    PageIn,
    PageOut,
    Schedule,
    Step,
    StepIndex,
    StorageId,
    Wait,
)
from tightrope.plan.model import Pair, again


class Page(NamedTuple):
    """Bring ``storage`` back in ``stage``; its fast copy outlives its last reader by ``lag`` stages.

    The lag hides a page-out behind ops; only that of a storage's first page counts.
    """

    stage: StepIndex
    storage: StorageId
    lag: int = 0


def pageable(graph: Graph) -> tuple[bool, ...]:
    """Tell which storages may be paged; see the gaps above."""
    changed = {storage for op in graph.ops for storage in op.mutates}
    return tuple(
        not (s.external or s.outside or s.resident_at_end or s.id in changed) and s.bytes > 0
        for s in graph.storages
    )


@dataclass(slots=True)
class _ScheduledRun:
    """One op, or one page-in (then ``op`` is None and ``storage`` says of what)."""

    stage: StepIndex
    op: Op | None = None
    first: bool = False
    storage: StorageId = -1
    copies: list["_ScheduledCopy"] = field(default_factory=list)


@dataclass(slots=True)
class _ScheduledCopy:
    """One stay of a storage in tier 0, from run ``made`` to run ``last``, released after run ``end``."""

    storage: StorageId
    made: int
    last: int
    end: int
    paged: bool
    out: bool = False
    after: "_ScheduledCopy | None" = None


def expand_paged(
    graph: Graph, pairs: Iterable[Pair], pages: Iterable[Page], *, beside: bool = False
) -> Schedule:
    """Turn allowed pairs and pages into a schedule; see the module text.

    Args:
        graph: what it runs.
        pairs: re-runs.
        pages: page-ins; each after the first run of what makes the storage, one per storage and stage.
        beside: whether copies run beside the processor (a copy engine): page-outs begin as early
            as they can; else they are made where the fast copy ends.

    Example:
        >>> from tightrope.core import Op, Storage
        >>> first, second = Op(0, "a", "a", creates=(0,)), Op(1, "b", "b", creates=(1,))
        >>> graph = Graph((first, second, Op(2, "c", "c", reads=(0, 1))), (Storage(0, 64), Storage(1, 64)))
        >>> [type(step).__name__ for step in expand_paged(graph, (), (Page(2, 0),)).steps]
        ['Compute', 'PageOut', 'Wait', 'Compute', 'PageIn', 'Wait', 'Free', 'Compute', 'Free', 'Free']
    """
    lags: dict[StorageId, int] = {}
    chosen = sorted(pages)
    for page in chosen:
        lags.setdefault(page.storage, page.lag)
    runs = _runs(graph, pairs, chosen)
    copies = _copies(graph, runs)
    _mark_page_outs(copies, runs, lags)
    return Schedule(tuple(_steps(graph, runs, copies, beside)))


def useful_paged(
    graph: Graph, pairs: Iterable[Pair], pages: Iterable[Page]
) -> tuple[tuple[Pair, ...], tuple[Page, ...]]:
    """Leave out re-runs and pages of which nothing is read, neither by a run nor by a page-out."""
    kept_pairs, kept_pages = sorted(pairs), sorted(pages)
    while True:
        runs = _runs(graph, kept_pairs, kept_pages)
        copies = _copies(graph, runs)
        _mark_page_outs(copies, runs, {page.storage: page.lag for page in kept_pages})
        read = {copy.made for copy in copies if copy.last > copy.made or copy.out}
        idle = [run for k, run in enumerate(runs) if not run.first and k not in read]
        if not idle:
            return tuple(kept_pairs), tuple(kept_pages)
        base = {op.variant: op.id for op in graph.ops if op.variant >= 0}
        gone = {(r.stage, base.get(r.op.id, r.op.id)) for r in idle if r.op is not None}
        lost = {(r.stage, r.storage) for r in idle if r.op is None}
        kept_pairs = [pair for pair in kept_pairs if pair not in gone]
        kept_pages = [page for page in kept_pages if page[:2] not in lost]


def _runs(graph: Graph, pairs: Iterable[Pair], pages: Iterable[Page]) -> list[_ScheduledRun]:
    reruns: dict[StepIndex, list[OpId]] = {}
    for stage, op in sorted(pairs):
        reruns.setdefault(stage, []).append(op)
    arriving: dict[StepIndex, list[StorageId]] = {}
    for page in pages:
        arriving.setdefault(page.stage, []).append(page.storage)
    runs: list[_ScheduledRun] = []
    for base in graph.ops:
        waiting = arriving.get(base.id, [])
        for number in reruns.get(base.id, ()):
            rerun = again(graph, number)
            runs += [_ScheduledRun(base.id, storage=s) for s in waiting if s in rerun.reads]
            waiting = [s for s in waiting if s not in rerun.reads]
            runs.append(_ScheduledRun(base.id, rerun))
        runs += [_ScheduledRun(base.id, storage=s) for s in waiting]
        runs.append(_ScheduledRun(base.id, base, first=True))
    return runs


def _copies(graph: Graph, runs: list[_ScheduledRun]) -> list[_ScheduledCopy]:
    """Find every copy of every storage and its last reader; the latest copy is the one that is read."""
    pinned = [storage.resident_at_end or storage.outside for storage in graph.storages]
    now: dict[StorageId, _ScheduledCopy] = {}
    copies: list[_ScheduledCopy] = []
    made_by = {storage: op.id for op in graph.ops for storage in op.creates}
    for position, run in enumerate(runs):
        run.copies = []
        for storage in run.op.reads if run.op else ():
            if storage in now:
                now[storage].last = now[storage].end = position
        if run.first and run.op is not None and run.op.id in graph.boundaries:
            for storage, copy in now.items():
                if graph.storages[storage].outside and graph.handover(made_by[storage]) == run.op.id:
                    copy.last = copy.end = position
        for storage in run.op.creates if run.op else (run.storage,):
            if storage not in now or not pinned[storage]:
                fresh = _ScheduledCopy(storage, position, position, position, run.op is None)
                if storage in now:
                    now[storage].after = fresh
                now[storage] = fresh
                run.copies.append(fresh)
                copies.append(fresh)
    return copies


def _mark_page_outs(
    copies: list[_ScheduledCopy], runs: list[_ScheduledRun], lags: dict[StorageId, int]
) -> None:
    """Write out the copy that stands before a storage's first page."""
    done: set[StorageId] = set()
    first_run = [position for position, run in enumerate(runs) if run.first]
    for copy in copies:
        if copy.after is not None and copy.after.paged and copy.storage not in done:
            done.add(copy.storage)
            copy.out = True
            stage = min(runs[copy.last].stage + lags[copy.storage], len(first_run) - 1)
            late = first_run[stage] if lags[copy.storage] else copy.last
            copy.end = max(copy.last, min(late, copy.after.made - 1))


def _steps(graph: Graph, runs: list[_ScheduledRun], copies: list[_ScheduledCopy], beside: bool) -> list[Step]:
    ends: dict[int, list[_ScheduledCopy]] = {}
    for copy in copies:
        ends.setdefault(copy.end, []).append(copy)
    last_page = {copy.storage: copy.made for copy in copies if copy.paged}
    arriving: dict[StorageId, int] = {}
    steps: list[Step] = []
    for position, run in enumerate(runs):
        if run.op is None:
            steps.append(PageIn(run.storage))
            arriving[run.storage] = position
        reads = run.op.reads if run.op else (run.storage,) if _unread(run) else ()
        for storage in reads:
            if storage in arriving:
                steps.append(Wait(storage))
                if arriving.pop(storage) == last_page[storage]:
                    steps.append(Free(storage, 1))
        dropped: set[StorageId] = set()
        if run.op is not None:
            kept = {copy.storage for copy in run.copies if copy.last > position or copy.out}
            dropped = set() if run.first else set(run.op.creates) - kept
            steps.append(Compute(run.op.id, tuple(sorted(dropped))))
        steps += _after(graph, run, ends.get(position, []), dropped, beside)
    return steps


def _unread(run: _ScheduledRun) -> bool:
    return all(copy.last == copy.made for copy in run.copies)


def _after(
    graph: Graph, run: _ScheduledRun, ending: list[_ScheduledCopy], dropped: set[StorageId], beside: bool
) -> list[Step]:
    """Release what has had its last reader; begin page-outs and end them."""
    ending = sorted(ending, key=lambda copy: copy.storage)
    steps: list[Step] = [
        Free(copy.storage)
        for copy in ending
        if not (copy.out or graph.storages[copy.storage].resident_at_end)
        and not (copy in run.copies and copy.storage in dropped)
    ]
    begun = sorted(copy.storage for copy in run.copies if copy.out) if beside else []
    steps += [PageOut(storage) for storage in begun]
    for copy in ending:
        if copy.out:
            steps += [Wait(copy.storage)] if beside else [PageOut(copy.storage), Wait(copy.storage)]
    return steps
