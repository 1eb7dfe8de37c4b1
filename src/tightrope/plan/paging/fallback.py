"""The search over re-runs and page-ins in Python, for machines without a C++ compiler.

Idea        While some run is over the limit, add the decision that removes the most bytes over the
            limit per price; then drop decisions that are not needed. Nothing is annealed.
Source      the greedy of `plan.fallback`, with page-ins beside re-runs
Guarantee   What it returns fits; it may find nothing where the native search does.
Complexity  (decisions taken) x (candidates) x (runs)
Gaps        Far slower and weaker than the native search; with copy engines, nothing is hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from tightrope.core import Bytes
from tightrope.native.solvers.paging import Decision, PagingGoal, PagingState, PagingTables

_MOST = 40
"""Candidates that are measured per step, cheapest per byte first."""


@dataclass(slots=True)
class _PagedCopy:
    storage: int
    made: int
    last: int
    paged: bool
    out: bool = False
    first_read: int = -1
    end: int = -1
    after: "_PagedCopy | None" = None


class PythonPaging:
    """One search: a current set of decisions, and the best one found; as `native.paging.PagingSolver`."""

    def __init__(self, tables: PagingTables) -> None:
        self._tables = tables
        self._now: tuple[Decision, ...] = ()
        self._best: tuple[Decision, ...] | None = None
        self._goal = PagingGoal(0, 0)
        self._left = 0
        self._over: list[int] = []

    def load(self, decisions: Sequence[Decision]) -> None:
        """Make ``decisions`` the current set."""
        self._now = tuple(sorted(decisions))

    def state(self, limit: Bytes, tier_limit: Bytes) -> PagingState:
        """Measure the current set against the limits of both tiers."""
        return self._measure(self._now, limit, tier_limit)

    def begin(self, goal: PagingGoal, *, seed: int, iterations: int, heat: float = 1.0) -> None:
        """Start the greedy from the current set; it draws nothing, so seed and heat do not matter."""
        del seed, heat
        self._goal, self._left, self._best = goal, iterations, None

    def run(self, iterations: int) -> int:
        """Take at most ``iterations`` decisions; return 0 when done."""
        for _ in range(min(iterations, self._left)):
            self._left -= 1
            if self._fits(self._now):
                self._now = self._best = self._pruned(self._now)
                self._left = 0
                break
            if not self._relieve():
                self._left = 0
                break
        return self._left

    def best(self) -> tuple[Decision, ...] | None:
        """List the best fitting set since `begin`, or None when none fitted."""
        return self._best

    def _relieve(self) -> bool:
        before = self._cost(self._now)
        ranked = sorted(self._candidates(), key=self._rank)[:_MOST]
        sets = [tuple(sorted({*self._now, decision})) for decision in ranked]
        costs = [self._cost(chosen) for chosen in sets]
        gains = [
            (before[0] - over) / max(value - before[1], 1e-12 * before[1], 1e-30) for over, value in costs
        ]
        if not gains or max(gains) <= 0:
            return False
        self._now = sets[gains.index(max(gains))]
        return True

    def _rank(self, decision: Decision) -> float:
        tables, (_, page, number, _) = self._tables, decision
        if page:
            size, _, out_ns, in_ns, *_ = tables.storages[number]
            return (sum(tables.joules[number]) if self._goal.by_joules else out_ns + in_ns) / size
        size = sum(tables.storages[s][0] for s in tables.again_creates[number])
        price = tables.ops[number][3] * (tables.watts * 1e-9 if self._goal.by_joules else 1)
        return price / max(size, 1)

    def _candidates(self) -> set[Decision]:
        """Decisions that end a copy before a run over the limit and bring it back after."""
        runs, copies = self._walk(self._now)
        memory = self._memory(runs, copies)
        worst = max(range(len(runs)), key=memory.__getitem__)
        found: set[Decision] = set()
        for copy in copies:
            if not copy.made < worst < copy.last or copy.storage in self._reads(runs[worst]):
                continue
            reader = next(k for k in range(worst + 1, len(runs)) if copy.storage in self._reads(runs[k]))
            stage, producer = runs[reader][2], self._tables.storages[copy.storage][4]
            *_, first, last = self._tables.ops[producer]
            if self._goal.rerun and first <= stage <= last:
                found.add((stage, 0, producer, 0))
            if self._goal.page and self._tables.storages[copy.storage][7] and stage > producer:
                found.add((stage, 1, copy.storage, 0))
        return found - set(self._now)

    def _pruned(self, chosen: tuple[Decision, ...]) -> tuple[Decision, ...]:
        for decision in sorted(chosen, key=self._rank, reverse=True):
            rest = tuple(other for other in chosen if other != decision)
            if self._fits(rest) and self._cost(rest)[1] <= self._cost(chosen)[1]:
                chosen = rest
        return chosen

    def _cost(self, chosen: tuple[Decision, ...]) -> tuple[float, float]:
        goal = self._goal
        state = self._measure(chosen, goal.limit, goal.tier_limit)
        return state.excess + state.tier_excess, state.joules if goal.by_joules else state.ns

    def _fits(self, chosen: tuple[Decision, ...]) -> bool:
        goal = self._goal
        state = self._measure(chosen, goal.limit, goal.tier_limit)
        in_time = (goal.ns is None or state.ns <= goal.ns) and (
            goal.joules is None or state.joules <= goal.joules
        )
        return in_time and not state.excess and not state.tier_excess

    def _reads(self, run: tuple[int, int, int]) -> Sequence[int]:
        kind, number, _ = run
        if kind == 2:
            return (number,)
        return self._tables.again_reads[number] if kind else self._tables.reads[number]

    def _walk(self, chosen: tuple[Decision, ...]) -> tuple[list[tuple[int, int, int]], list[_PagedCopy]]:
        """List the runs (0 first, 1 again, 2 page-in; number; stage), and every copy."""
        tables, runs = self._tables, list[tuple[int, int, int]]()
        for stage in range(len(tables.ops)):
            pages = [row[2] for row in chosen if row[0] == stage and row[1]]
            for _, _, op, _ in (row for row in chosen if row[0] == stage and not row[1]):
                early = [s for s in pages if s in tables.again_reads[op]]
                pages = [s for s in pages if s not in early]
                runs += [(2, s, stage) for s in early] + [(1, op, stage)]
            runs += [(2, s, stage) for s in pages] + [(0, stage, stage)]
        now: dict[int, _PagedCopy] = {}
        copies: list[_PagedCopy] = []
        for k, (kind, number, _) in enumerate(runs):
            for s in () if kind == 2 else self._reads(runs[k]):
                if s in now:
                    now[s].last = k
                    now[s].first_read = k if now[s].first_read < 0 else now[s].first_read
            made = (number,) if kind == 2 else (tables.again_creates if kind else tables.creates)[number]
            for s in made:
                if s not in now or not tables.storages[s][5]:
                    copy = _PagedCopy(s, k, k, kind == 2)
                    if s in now:
                        now[s].after = copy
                    now[s] = copy
                    copies.append(copy)
        self._page_outs(chosen, runs, copies)
        return runs, copies

    def _page_outs(
        self, chosen: tuple[Decision, ...], runs: list[tuple[int, int, int]], copies: list[_PagedCopy]
    ) -> None:
        lags: dict[int, int] = {}
        for _, page, storage, lag in chosen:
            if page:
                lags.setdefault(storage, lag)
        firsts = [k for k, run in enumerate(runs) if run[0] == 0]
        for copy in copies:
            copy.end = len(runs) if self._tables.storages[copy.storage][6] else copy.last
            if copy.after is not None and copy.after.paged and copy.storage in lags:
                copy.out, lag = True, lags.pop(copy.storage)
                late = firsts[min(runs[copy.last][2] + lag, len(firsts) - 1)] if lag else copy.last
                copy.end = max(copy.last, min(late, copy.after.made - 1))

    def _memory(self, runs: list[tuple[int, int, int]], copies: list[_PagedCopy]) -> list[Bytes]:
        tables, change = self._tables, [0] * (len(runs) + 2)
        for copy in copies:
            change[copy.made + 1] += tables.storages[copy.storage][0]
            change[min(copy.end, len(runs)) + 1] -= tables.storages[copy.storage][0]
        needs = [
            tables.storages[n][0] if kind == 2 else tables.ops[n][1 if kind else 0] for kind, n, _ in runs
        ]
        return [live + need for live, need in zip(accumulate(change), needs, strict=False)]

    def _measure(self, chosen: tuple[Decision, ...], limit: Bytes, tier_limit: Bytes) -> PagingState:
        tables = self._tables
        runs, copies = self._walk(chosen)
        memory = self._memory(runs, copies)
        change = [0] * (len(runs) + 1)
        for copy in copies:
            if copy.out:
                tail = _last_page(copy)
                size = tables.storages[copy.storage][1]
                change[copy.made if tables.engines else copy.end] += size
                change[tail.made if tail.first_read < 0 else tail.first_read] -= size
        tier = list(accumulate(change))
        outs, ins = [c.storage for c in copies if c.out], [n for kind, n, _ in runs if kind == 2]
        computing = sum(tables.ops[n][3 if kind else 2] for kind, n, _ in runs if kind < 2)
        joules = sum(tables.joules[s][0] for s in outs) + sum(tables.joules[s][1] for s in ins)
        return PagingState(
            joules + tables.watts * 1e-9 * computing,
            self._beside(runs, copies)
            if tables.engines and ins
            else computing
            + sum(tables.storages[s][2] for s in outs)
            + sum(tables.storages[s][3] for s in ins),
            sum(max(0, size - limit) for size in memory),
            max(memory, default=0),
            max(tier),
            sum(max(0, size - tier_limit) for size in tier),
        )

    def _beside(self, runs: list[tuple[int, int, int]], copies: list[_PagedCopy]) -> int:
        """Time with copy engines: a copy begins when it is issued or when its engine is free."""
        tables, now, engine = self._tables, 0, [0, 0]
        ready: dict[int, int] = {}
        for k, (kind, number, _) in enumerate(runs):
            now = max([now, *(ready[id(c)] for c in copies if c.paged and c.first_read == k)])
            way = 1 if kind == 2 and tables.engines == 2 else 0
            if kind == 2:
                (copy,) = (c for c in copies if c.made == k)
                engine[way] = ready[id(copy)] = max(now, engine[way]) + tables.storages[number][3]
                now += tables.storages[number][8]
                now = max(now, engine[way]) if copy.first_read < 0 else now
            else:
                now += tables.ops[number][3 if kind else 2]
            for copy in copies:
                if copy.out and copy.made == k:
                    engine[0] = ready[id(copy)] = max(now, engine[0]) + tables.storages[copy.storage][2]
                    now += tables.storages[copy.storage][8]
            now = max([now, *(ready[id(c)] for c in copies if c.out and c.end == k)])
        return now


def _last_page(copy: _PagedCopy) -> _PagedCopy:
    found, following = copy, copy.after
    while following is not None:
        found = following if following.paged else found
        following = following.after
    return found
